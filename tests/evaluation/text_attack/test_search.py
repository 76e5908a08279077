"""The search: a slow reference gives the same texts and counts, and bounds hold for any text."""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from temper.data.examples import Examples
from temper.data.stored import RowHashes
from temper.evaluation.classifier import ClassifierPredictor
from temper.evaluation.function import CallablePredictor
from temper.evaluation.prediction import Prediction
from temper.evaluation.text_attack.contract import Ask, Draft, Position, Recipe, TextAttackSettings
from temper.evaluation.text_attack.recipes import CHARACTERS
from temper.evaluation.text_attack.search import (
    Outcome,
    Row,
    attack,
    attacked,
    draft_of,
    drafts_of,
    in_order,
    outputs_of,
    starved,
)
from temper.functional.resampling import FloatArray
from temper.seeding import derive_seed
from temper.testing.tiny import WORDS
from tests.evaluation.conftest import make_examples, make_model, make_tokenizer
from tests.evaluation.text_attack.slow_search import slow_attack
from tests.messages import assert_messages

ALL = TextAttackSettings(stop_words=False)


class Synonyms:
    """Offers other words of the tiny model's vocabulary, as each row's seed and the place say."""

    def propose(self, asked: Sequence[Ask]) -> list[list[str]]:
        return [
            self.words_for(ask.draft.word(ask.position), ask.seed, ask.position) for ask in asked
        ]

    @staticmethod
    def words_for(word: str, seed: int, position: Position) -> list[str]:
        draws = [WORDS[derive_seed(seed, tuple(position), k) % len(WORDS)] for k in range(6)]
        return [each for each in dict.fromkeys(draws) if each != word]


class Overlap:
    """Says that texts are as near as the fraction of the words that they have in common."""

    def similarity(self, texts: Sequence[str], others: Sequence[str]) -> FloatArray:
        return np.array(list(map(self.of, texts, others)))

    @staticmethod
    def of(one: str, two: str) -> float:
        return round(sum(map(ord, two)) % 97 / 97, 6)


def tiny(classes: int = 2) -> ClassifierPredictor:
    """Return a model whose every word moves its output."""
    network = make_model(classes=classes)
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in network.parameters():
            if weight.dim() == 2:
                weight.normal_(0, 0.4, generator=draw)
    return ClassifierPredictor(network, make_tokenizer(), max_length=64)


def bag(classes: int) -> CallablePredictor:
    """Return a function in which words count, later ones more, and their number the most."""

    def weight(*key: object) -> float:
        return math.sin(derive_seed(0, *key) % 1000)

    def logit(words: list[str], number: int) -> float:
        parts = [(1 + at / 10) * weight(word, number) for at, word in enumerate(words)]
        return 0.3 * sum(parts) + 3 * weight(len(words), number)

    def predict(texts: list[str]) -> list[list[float]]:
        return [[logit(text.split(), number) for number in range(classes)] for text in texts]

    return CallablePredictor(predict, gives="logits")


def rows_of(
    predictor: Any, texts: list[str], settings: TextAttackSettings, target: int | None = None
) -> list[Row]:
    """Return each text as a row whose label is what the predictor says now."""
    result = predictor.predict(Examples("toy", texts))
    labels = result.prediction.astype(int).tolist()
    drafts = drafts_of(Examples("toy", texts, labels=labels, kind="classification"), target)
    rows = attacked(drafts, outputs_of(result, drafts), "characters", settings, seed=0)
    return list(rows.values())


def summary(outcomes: list[Outcome]) -> list[tuple[str, int, int]]:
    return [(each.draft.text, each.queries, each.changed) for each in outcomes]


SETTINGS = {
    "network": {"max_changed": 0.6},
    "plain": {},
    "most words": {"max_changed": 0.9},
    "few queries": {"max_queries": 12},
    "protected": {"protected": ("WORD1", "word2", "word3", "word4", "word5"), "max_changed": 0.6},
    "similarity": {"min_similarity": 0.4, "similarity_model": "given", "max_changed": 0.6},
    "targeted": {"goal": "targeted", "target": 2, "max_changed": 0.7},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_slow_reference_gives_the_same_texts_and_query_counts(name: str) -> None:
    settings = TextAttackSettings.model_validate({"stop_words": False, **SETTINGS[name]})
    target = settings.target if isinstance(settings.target, int) else None
    network = name == "network"
    predictor = tiny(classes=3) if network else bag(classes=3)
    texts = make_examples(rows=8 if network else 30, seed=3).text
    rows = rows_of(predictor, texts, settings, target)
    rows = [row for row in rows if row.draft.label != target]
    near = None if settings.min_similarity is None else Overlap()
    recipe = Recipe("characters", Synonyms().propose)
    predict = partial(predictor.predict, batch_size=7)
    result = attack(rows, predict, recipe, settings, encoder=near)

    def ask(text: str) -> list[float]:
        logits = predictor.predict(Examples("one", [text])).logits
        assert logits is not None
        weights = [math.exp(float(value)) for value in logits[0]]
        return [weight / sum(weights) for weight in weights]

    expected = [
        slow_attack(
            row.draft.text,
            row.draft.label,
            ask,
            lambda words, at, row=row: Synonyms.words_for(words[at], row.seed, Position(0, at)),
            target=target,
            kept=[word.lower() for word in settings.protected],
            max_changed=settings.max_changed,
            max_queries=settings.max_queries,
            near=None if near is None else near.of,
            least=-1.0 if settings.min_similarity is None else settings.min_similarity,
        )
        for row in rows
    ]
    assert summary(result) == expected
    # A comparison in which nothing ever happens, or everything, would show little.
    assert len({each.changed for each in result}) > 1
    assert network or {each.output.reached for each in result} == {False, True}


def test_neither_batch_size_nor_the_other_rows_change_a_result() -> None:
    predictor, recipe = tiny(), Recipe("characters", Synonyms().propose)
    settings = ALL.model_copy(update={"max_changed": 0.6})
    rows = rows_of(predictor, make_examples(rows=6, seed=5).text, settings)
    whole, single, five = (partial(predictor.predict, batch_size=size) for size in (64, 1, 5))
    result = summary(attack(rows, whole, recipe, settings))
    assert result == summary(attack(rows, single, recipe, settings))
    alone = [attack([row], predictor.predict, recipe, settings)[0] for row in rows]
    assert result == summary(alone)
    turned = attack(rows[::-1], five, recipe, settings)
    assert result == summary(turned[::-1])


def test_queries_of_all_rows_are_batched_within_the_memory_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[int] = []

    def predict(texts: list[str]) -> list[list[float]]:
        calls.append(len(texts))
        return [[0.9, 0.1]] * len(texts)

    predictor = CallablePredictor(predict, gives="probabilities")
    rows = rows_of(predictor, ["alpha bravo", "charlie delta echo", "foxtrot"], ALL)
    calls.clear()
    result = attack(rows, predictor.predict, CHARACTERS, ALL)
    # Two and three words are ranked in one call with the five edits of the row that has one word.
    assert calls[0] == 2 + 3 + result[2].queries
    assert sum(calls) == sum(each.queries for each in result)
    calls.clear()
    monkeypatch.setattr("temper.evaluation.text_attack.search._AT_A_TIME", 4)
    assert summary(attack(rows, predictor.predict, CHARACTERS, ALL)) == summary(result)
    assert max(calls) == 4


@given(st.text(max_size=40), st.floats(0.01, 1.0), st.integers(1, 30))
@example("don't stop, won't stop", 0.3, 5)
@example(" ".join(["lengthy"] * 5000), 0.3, 5)
def test_bounds_hold_whatever_the_text(text: str, fraction: float, queries: int) -> None:
    # Every change of a letter raises the loss of class 0, and none ever reaches class 1.
    def predict(texts: list[str]) -> list[list[float]]:
        raised = [min(abs(hash_of(each) - hash_of(text)), 0.4) for each in texts]
        return [[0.95 - each, 0.05 + each] for each in raised]

    predictor = CallablePredictor(predict, gives="probabilities")
    settings = TextAttackSettings(max_changed=fraction, max_queries=queries, protected=("stop",))
    row = rows_of(predictor, [text], settings)[0]
    outcome = attack([row], predictor.predict, CHARACTERS, settings)[0]
    before, after = row.draft.sides[0], outcome.draft.sides[0]
    moved = [at for at, word in enumerate(before.words) if after.words[at] != word]
    assert before.gaps == after.gaps
    assert len(moved) == outcome.changed <= max(1, math.floor(fraction * len(before) + 1e-9))
    assert {Position(0, at) for at in moved} <= set(row.positions)
    assert outcome.queries <= queries
    assert outcome.fraction == (len(moved) / len(before) if len(before) else 0)


def hash_of(text: str) -> float:
    return int(RowHashes.of([text])[0], 16) / 2**64


def test_equal_gains_keep_their_order_and_infinite_ones_do_not_disturb() -> None:
    assert in_order([0.0, math.inf, 1.0, math.inf, -math.inf]) == [1, 3, 2, 0, 4]
    assert in_order([1.0, 1.00005, 1.0001, 2.0]) == [3, 0, 1, 2]
    assert in_order([]) == []


def by_length(
    drafts: Sequence[Draft], positions: Sequence[Sequence[Position]]
) -> list[list[float]]:
    """Rank longer words first."""
    return [
        [float(len(draft.word(position))) for position in own]
        for draft, own in zip(drafts, positions, strict=True)
    ]


def test_a_ranker_replaces_queries_for_ranking() -> None:
    asked: list[str] = []

    def predict(texts: list[str]) -> list[list[float]]:
        asked.extend(texts)
        return [[0.6, 0.4]] * len(texts)

    predictor = CallablePredictor(predict, gives="probabilities")
    recipe = replace(CHARACTERS, rank=by_length)
    rows = rows_of(predictor, ["aaa bbbbb c"], ALL)
    asked.clear()
    result = attack(rows, predictor.predict, recipe, ALL)[0]
    assert asked[0].split()[0] == "aaa"
    assert asked[0].split()[1] != "bbbbb"
    assert result.queries == len(asked) + 1


def test_gains_are_log_odds_that_do_not_saturate() -> None:
    drafts = [draft_of("r", 0, "a b", None)] * 2
    sure = Prediction.of_logits(np.array([[50.0, 0.0], [60.0, 0.0]]))
    assert sure.probabilities[:, 0].tolist() == [1.0, 1.0]
    assert [output.gain for output in outputs_of(sure, drafts)] == [-50.0, -60.0]
    given = Prediction.of_probabilities([[0.2, 0.3, 0.5], [1.0, 0.0, 0.0]])
    gains = [output.gain for output in outputs_of(given, drafts)]
    assert gains == [pytest.approx(math.log(4)), -math.inf]
    aimed = [replace(draft, target=2) for draft in drafts]
    gains = [output.gain for output in outputs_of(given, aimed)]
    assert gains == [pytest.approx(0.0), -math.inf]
    assert [output.reached for output in outputs_of(given, aimed)] == [True, False]


def test_finished_rows_are_released_during_the_search(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = ALL.model_copy(update={"max_changed": 0.6})
    texts = [text for text in make_examples(rows=20, seed=5).text if " " in text][:12]
    inner = bag(classes=2)
    rows = rows_of(inner, texts, settings)
    recipe = Recipe("characters", Synonyms().propose)
    whole = summary(attack(rows, inner.predict, recipe, settings))
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
    progress: list[tuple[int, int]] = []
    result = attack(
        rows, Watched().predict, recipe, settings, tell=lambda *both: progress.append(both)
    )
    assert summary(result) == whole
    # Of every earlier round no array is left, though rows keep an output out of it.
    assert len(alive) > 8
    assert set(alive) == {0}
    assert any(outcome.changed for outcome in result)
    assert progress[-1] == (12, 12)
    # Four of twelve rows begin.
    assert len(asked[0]) == sum(len(row.positions) for row in rows[:4])
    for outcome in result:
        source = outcome.output.source
        for kept in (source.probabilities, source.prediction, source.logits):
            assert kept is not None
            assert kept.base is None
            assert len(kept) == 1


def test_rows_for_which_ranking_takes_all_queries_are_counted() -> None:
    predictor = CallablePredictor(lambda texts: [[0.6, 0.4]] * len(texts), gives="probabilities")
    texts = ["alpha bravo charlie", "alpha bravo charlie delta echo", "alpha bravo", "alpha"]
    rows = rows_of(predictor, texts, ALL)
    poor = ALL.model_copy(update={"max_queries": 3})
    result = attack(rows, predictor.predict, CHARACTERS, poor)
    # Three and five words leave nothing of three queries, two leave one; one word is not ranked.
    assert [(each.ranking, each.queries) for each in result] == [(3, 3), (5, 3), (2, 3), (0, 3)]
    message = starved(result, "characters", poor)
    facts = r"'characters' .*`max_queries` 3\) .* 2 of 4 attacked rows.* 5 queries per row"
    assert_messages([message], facts)
    enough = ALL.model_copy(update={"max_queries": 6})
    assert starved(attack(rows, predictor.predict, CHARACTERS, enough), "characters", enough) == ""
    assert starved(attack(rows, predictor.predict, CHARACTERS, ALL), "characters", ALL) == ""


def test_rows_for_which_a_ranker_takes_all_queries_are_counted_too() -> None:
    predictor = CallablePredictor(lambda texts: [[0.6, 0.4]] * len(texts), gives="probabilities")
    recipe = replace(CHARACTERS, rank=by_length)
    rows = rows_of(predictor, ["aaa bbbbb c"], ALL)
    for most, expected in ((1, "1 of 1 attacked rows"), (2, "")):
        settings = ALL.model_copy(update={"max_queries": most})
        message = starved(attack(rows, predictor.predict, recipe, settings), "swaps", settings)
        assert expected in message
        assert bool(expected) == bool(message)
