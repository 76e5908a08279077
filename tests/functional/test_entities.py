"""Entities in tags of words, against references written from their definitions."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from temper.functional.entities import COUNTS, RATIOS, entities_of, tag_counts, tag_score, to_iob2

NAMES = ("O", "B-A", "I-A", "B-B", "I-B")
SIGNS = dict(zip(NAMES, "OaxbY", strict=True))

tags = st.lists(st.sampled_from(NAMES), max_size=12)


def strict_entities(row: Sequence[str]) -> list[tuple[str, int, int]]:
    """Find ``B I*`` of one type by a regular expression."""
    signs = "".join(SIGNS[tag] for tag in row)
    result = re.finditer("a(x*)|b(Y*)", signs)
    return [("A" if m.group()[0] == "a" else "B", *m.span()) for m in result]


@given(tags)
def test_strict_entities_are_a_beginning_and_what_continues_it(row: list[str]) -> None:
    assert entities_of(row) == strict_entities(row)


@given(tags)
def test_lenient_entities_are_those_of_the_converted_tags(row: list[str]) -> None:
    ((converted,), _) = to_iob2([row])
    assert entities_of(row, strict=False) == entities_of(converted)
    assert to_iob2([converted])[1] is None


@pytest.mark.parametrize(
    ("scheme", "row"),
    [
        ("IOB1", ["I-A", "I-A", "B-A", "I-A", "O", "I-B"]),
        ("BIOES", ["B-A", "E-A", "B-A", "E-A", "O", "S-B"]),
        ("BIOES", ["B-A", "L-A", "B-A", "L-A", "O", "U-B"]),
    ],
)
def test_other_schemes_are_converted(scheme: str, row: list[str]) -> None:
    assert to_iob2([row]) == ([["B-A", "I-A", "B-A", "I-A", "O", "B-B"]], scheme)


@pytest.mark.parametrize("row", [["DET", "NOUN"], ["B-A", "X"], ["A-B", "O"]])
def test_tags_without_a_scheme_are_unchanged(row: list[str]) -> None:
    assert to_iob2([row]) == ([row], None)


rows_of_two = st.lists(
    st.integers(1, 9).flatmap(
        lambda size: st.tuples(*[st.lists(st.integers(0, 4), min_size=size, max_size=size)] * 2)
    ),
    min_size=1,
    max_size=5,
)


@given(rows_of_two)
def test_scores_equal_precision_recall_and_f1(pairs: list[tuple[list[int], list[int]]]) -> None:
    truth, result = set(), set()
    for number, (wanted, predicted) in enumerate(pairs):
        truth |= {(number, *each) for each in strict_entities([NAMES[tag] for tag in wanted])}
        result |= {(number, *each) for each in strict_entities([NAMES[tag] for tag in predicted])}
    sums = tag_counts([pair[0] for pair in pairs], [pair[1] for pair in pairs], NAMES).sum(0)
    scores = {name: float(tag_score(name, dict(zip(COUNTS, sums, strict=True)))) for name in RATIOS}
    both = len(truth & result)
    words = [own == other for pair in pairs for own, other in zip(*pair, strict=True)]
    expected = {
        "entity_precision": both / len(result) if result else np.nan,
        "entity_recall": both / len(truth) if truth else np.nan,
        "entity_f1": 2 * both / (len(truth) + len(result)) if truth or result else np.nan,
        "word_accuracy": sum(words) / len(words),
    }
    for name, value in expected.items():
        assert scores[name] == pytest.approx(value, nan_ok=True)


def test_words_that_were_not_read_count_as_outside() -> None:
    (row,) = tag_counts([[1, 2, 1]], [[1, -1]], NAMES)
    counts = dict(zip(COUNTS, row, strict=True))
    assert (counts["entities"], counts["predicted"], counts["found"]) == (2, 1, 0)
    (row,) = tag_counts([[0, 1]], [[0]], ("DET", "NOUN"))
    assert dict(zip(COUNTS, row, strict=True))["right_words"] == 1
