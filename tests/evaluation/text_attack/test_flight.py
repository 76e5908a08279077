"""What a search holds while rows are in flight, and rows whose queries ranking takes."""

from __future__ import annotations

import weakref
from dataclasses import replace
from typing import Any

import pytest

from temper.data.examples import Examples
from temper.evaluation.function import CallablePredictor
from temper.evaluation.predictor import Prediction
from temper.evaluation.text_attack.contract import Recipe
from temper.evaluation.text_attack.recipes import characters
from temper.evaluation.text_attack.search import attack, starved
from tests.evaluation.conftest import make_examples
from tests.evaluation.text_attack.test_search import (
    ALL,
    ByLength,
    Synonyms,
    bag,
    rows_of,
    summary,
)


def test_rows_that_are_done_make_room_and_the_others_keep_no_answers_of_a_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = ALL.model_copy(update={"max_changed": 0.6})
    texts = [text for text in make_examples(rows=20, seed=5).text if " " in text][:12]
    inner = bag(classes=2)
    rows = rows_of(inner, texts, settings)
    recipe = Recipe("characters", Synonyms())
    whole = summary(attack(rows, inner, recipe, settings))
    given: list[weakref.ref[Any]] = []
    alive: list[int] = []
    asked: list[set[str]] = []

    class Watched:
        gives, label_names = inner.gives, inner.label_names

        def predict(self, examples: Examples, *, batch_size: int | None = None) -> Prediction:
            alive.append(sum(each() is not None for each in given))
            prediction = inner.predict(examples, batch_size=batch_size)
            arrays = (prediction.probabilities, prediction.prediction, prediction.logits)
            given.extend(weakref.ref(array) for array in arrays if array is not None)
            asked.append(set(examples.text))
            return prediction

    monkeypatch.setattr("temper.evaluation.text_attack.search.IN_FLIGHT", 4)
    told: list[tuple[int, int]] = []
    found = attack(rows, Watched(), recipe, settings, tell=lambda *both: told.append(both))
    assert summary(found) == whole
    # Of every earlier round no array is left, though rows keep an answer out of it.
    assert len(alive) > 8
    assert set(alive) == {0}
    assert any(outcome.changed for outcome in found)
    assert told[-1] == (12, 12)
    # Four of twelve rows begin.
    assert len(asked[0]) == sum(len(row.places) for row in rows[:4])
    for outcome in found:
        source = outcome.answer.source
        for held in (source.probabilities, source.prediction, source.logits):
            assert held is not None
            assert held.base is None
            assert len(held) == 1


def test_rows_for_which_ranking_takes_all_queries_are_counted() -> None:
    predictor = CallablePredictor(lambda texts: [[0.6, 0.4]] * len(texts), gives="probabilities")
    texts = ["alpha bravo charlie", "alpha bravo charlie delta echo", "alpha bravo", "alpha"]
    rows = rows_of(predictor, texts, ALL)
    poor = ALL.model_copy(update={"max_queries": 3})
    found = attack(rows, predictor, characters(), poor)
    # Three and five words leave nothing of three queries, two leave one; one word is not ranked.
    assert [(each.ranking, each.queries) for each in found] == [(3, 3), (5, 3), (2, 3), (0, 3)]
    said = starved(found, "characters", poor)
    assert said == (
        "The text attack 'characters' spent all queries that it may ask (`max_queries` 3) on "
        "ranking the words of 2 of 4 attacked rows, so that no change of them was tried. Ranking "
        "takes up to 5 queries a row: set `max_queries` above that, or leave it out."
    )
    enough = ALL.model_copy(update={"max_queries": 6})
    assert starved(attack(rows, predictor, characters(), enough), "characters", enough) == ""
    assert starved(attack(rows, predictor, characters(), ALL), "characters", ALL) == ""


def test_a_ranker_that_takes_all_queries_is_told_too_and_one_too_dear_is_not_asked() -> None:
    predictor = CallablePredictor(lambda texts: [[0.6, 0.4]] * len(texts), gives="probabilities")
    recipe = replace(characters(), ranker=ByLength())
    rows = rows_of(predictor, ["aaa bbbbb c"], ALL)
    for most, expected in ((2, ""), (3, "1 of 1 attacked rows"), (4, "")):
        settings = ALL.model_copy(update={"max_queries": most})
        said = starved(attack(rows, predictor, recipe, settings), "swaps", settings)
        assert expected in said
        assert bool(expected) == bool(said)
