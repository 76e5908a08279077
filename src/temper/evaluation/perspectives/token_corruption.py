"""Token corruption: the metric against the share of corrupted tokens, and its area.

Tokens are swapped for random ones, masked or dropped (`temper.data.corruptions`), keyed by seed,
row and kind; the rates of a kind are one nested family. The rows that are corrupted alike at two
rates are answered once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from temper.data.corruptions import Corruption, Vocabulary, corrupt
from temper.data.encode import EncodedExamples
from temper.evaluation.curves import curve_entries
from temper.evaluation.measurement import Measurement, block_of
from temper.evaluation.perspectives.contract import Perspective
from temper.evaluation.predictor import Predictor, TokenPredictor
from temper.evaluation.rows import Block, Condition
from temper.evaluation.scoring import Entry, Scoring
from temper.functional.resampling import IntegerArray

if TYPE_CHECKING:
    # The settings list the perspectives, and these take the settings.
    from temper.evaluation.settings import EvaluationSettings


def rows(measurement: Measurement) -> Iterable[Block]:
    """Predict the dev rows at every rate of every kind that the tokenizer allows."""
    vocabulary = measurement.tokens.vocabulary()
    for kind in measurement.settings.corruptions:
        if reason := vocabulary.lacks(kind):
            measurement.notices.append(f"Token corruption by {kind!r} is left out: {reason}.")
            continue
        yield from _of_kind(measurement, kind, vocabulary)


def score(scoring: Scoring) -> list[Entry]:
    """Score each rate of each kind, and each kind's area from no corruption to the largest rate."""
    blocks = scoring.of("token_corruption")
    kinds = dict.fromkeys(block.condition for block in blocks)
    return [
        entry
        for kind in kinds
        for entry in curve_entries(scoring, [block for block in blocks if block.condition == kind])
    ]


def faults(predictor: Predictor, settings: EvaluationSettings) -> list[str]:
    """Say what is wrong where a tokenizer allows none of the kinds that were asked for."""
    assert isinstance(predictor, TokenPredictor)
    vocabulary = predictor.vocabulary()
    reasons = {kind: vocabulary.lacks(kind) for kind in settings.corruptions}
    if not all(reasons.values()):
        return []
    said = ", ".join(f"{kind!r} because {reason}" for kind, reason in reasons.items())
    return [
        f"token_corruption can do none of `corruptions`: not {said}. Give other kinds, or leave "
        "token_corruption out of `perspectives`."
    ]


def _of_kind(measurement: Measurement, kind: Corruption, vocabulary: Vocabulary) -> Iterable[Block]:
    """Predict the dev rows at every rate of one kind."""
    settings, predictor = measurement.settings, measurement.tokens
    examples, index = measurement.attacked()
    encoded = predictor.encoded(examples)
    items = [
        corrupt(item, kind=kind, rate=rate, row=row, vocabulary=vocabulary, seed=settings.seed)
        for rate in settings.corruption_rates
        for item, row in zip(encoded.items, examples.rows, strict=True)
    ]
    distinct, places = _distinct(items)
    answers = predictor.outputs(
        EncodedExamples(distinct),
        batch_size=settings.batch_size,
        tell=lambda done, total: measurement.tell(done, total, f"token corruption ({kind})"),
    )
    by_rate = places.reshape(len(settings.corruption_rates), len(examples))
    for rate, chosen in zip(settings.corruption_rates, by_rate, strict=True):
        condition = Condition("token_corruption", "dev", kind)
        answered = block_of(condition, examples, measurement.read(answers[chosen]), index=index)
        yield replace(answered, radius=np.full(len(examples), rate))


def _distinct(items: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], IntegerArray]:
    """Return each different row once, and where each row's stands."""
    found: dict[tuple[tuple[int, ...], ...], int] = {}
    first, places = [], []
    for item in items:
        key = tuple(tuple(values) for values in item.values())
        if key not in found:
            found[key] = len(found)
            first.append(item)
        places.append(found[key])
    return first, np.asarray(places, dtype=np.int64)


TOKEN_CORRUPTION = Perspective(
    name="token_corruption",
    summary="Token corruption: the metric with tokens swapped, masked or dropped, and its area",
    scores=("area", "accuracy", "macro_f1", "mcc", "f1", "pearson", "spearman", "mse"),
    rows=rows,
    score=score,
    reads=("corruptions", "corruption_rates", "attack_rows"),
    needs="tokens",
    faults=faults,
)
