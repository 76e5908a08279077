"""Scores of answers: numbers worked by hand, as SQuAD's script has them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from temper.functional.answers import answer_scores, normalized


@pytest.mark.parametrize(
    ("prediction", "answers", "f1", "exact"),
    [
        ("The Eiffel Tower!", ["eiffel tower"], 1.0, 1.0),
        ("in the old tower", ["the tower", "castle"], 2 * (1 / 3) * 1 / (1 / 3 + 1), 0.0),
        ("castle", ["the tower", "a castle"], 1.0, 1.0),
        ("b b c", ["b c c"], 2 / 3, 0.0),
        ("", ["tower"], 0.0, 0.0),
        ("x", ["tower"], 0.0, 0.0),
    ],
)
def test_an_answer_is_scored_by_its_best_reference(
    prediction: str, answers: list[str], f1: float, exact: float
) -> None:
    assert answer_scores([prediction], [answers])[0] == pytest.approx([f1, exact])


@given(st.text(max_size=20))
def test_normalizing_an_answer_twice_changes_nothing(answer: str) -> None:
    once = normalized(answer)
    assert once == " ".join(once.split())
    if once:
        assert answer_scores([answer], [[once]])[0].tolist() == [1.0, 1.0]
