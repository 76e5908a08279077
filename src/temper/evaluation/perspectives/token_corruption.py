"""Token corruption: the task's metric by the fraction of corrupted tokens, and the area under it.

Tokens are replaced by random ones, masked or dropped (`temper.data.corruptions`). The choice
depends on seed, row and kind. A higher rate corrupts all tokens of a lower rate. Rows that are
equal at two rates are predicted once.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from pydantic import Field

from temper.data.corruptions import Corruption, corrupt
from temper.data.encode import EncodedExamples
from temper.display.cells import Comparison, ScoreKey
from temper.display.charts import Figure, strength_curves
from temper.display.folders import Source
from temper.display.records import Parameters
from temper.display.views import Heading
from temper.display.wording import title
from temper.evaluation.blocks import block_of
from temper.evaluation.common_settings import CommonSettings, PerspectiveSettings, Rate
from temper.evaluation.measurement import EvaluationData, Measurement
from temper.evaluation.perspectives.registry import ONE_LABEL, Perspective
from temper.evaluation.predictor import Predictor, TokenPredictor
from temper.evaluation.rows import Block, Condition
from temper.evaluation.scoring import METRICS, ScoreEntry, Scoring, curve_entries


class TokenCorruptionSettings(PerspectiveSettings):
    """Settings of the token corruption."""

    kinds: tuple[Corruption, ...] = Field(
        default=("random", "mask", "drop"),
        description="`random` (another token of the vocabulary), `mask` ([MASK]; skipped with a "
        "notice if the tokenizer has none), `drop`.",
    )
    rates: tuple[Rate, ...] = Field(
        default=(0.05, 0.1, 0.2), description="Probabilities that a token is corrupted."
    )


def rows(measurement: Measurement) -> Iterable[Block]:
    """Predict the validation rows at every rate of every kind that the tokenizer allows."""
    settings, predictor = measurement.settings, measurement.predictor
    assert isinstance(predictor, TokenPredictor)
    asked = settings.section("token_corruption", TokenCorruptionSettings)
    vocabulary = predictor.vocabulary()
    examples, index = measurement.attacked()
    encoded = predictor.encoded(examples)
    clean = measurement.clean("dev", measurement.dev).take(index)
    unperturbed = block_of(Condition("token_corruption", "dev"), examples, clean, index=index)
    for kind in asked.kinds:
        reason = vocabulary.lacks(kind)
        if kind == "drop" and examples.kind == "tokens":
            reason = "a word that is dropped has no tag"
        if reason:
            measurement.notices.append(f"Token corruption by {kind!r} is left out: {reason}.")
            continue
        items = [
            corrupt(item, kind=kind, rate=rate, row=row, vocabulary=vocabulary, seed=settings.seed)
            for rate in asked.rates
            for item, row in zip(encoded.items, examples.rows, strict=True)
        ]
        keys = [tuple(map(tuple, item.values())) for item in items]
        distinct = dict(zip(keys, items, strict=True))
        predictions = predictor.predict_encoded(
            EncodedExamples(list(distinct.values())),
            batch_size=settings.batch_size,
            tell=measurement.teller(f"token corruption ({kind})"),
        )
        indices = {key: position for position, key in enumerate(distinct)}
        chosen = np.asarray([indices[key] for key in keys]).reshape(len(asked.rates), -1)
        for rate, positions in zip(asked.rates, chosen, strict=True):
            condition = Condition("token_corruption", "dev", kind, Parameters(rate=rate))
            at_rate = predictions.take(positions).decided(measurement.thresholds)
            block = block_of(condition, examples, at_rate, index=index)
            measurement.keep_errors(block, examples, unperturbed=unperturbed)
            yield block


def score(scoring: Scoring) -> list[ScoreEntry]:
    """Score each kind of corruption at each rate, and the area from rate 0 to the largest."""
    blocks = scoring.of("token_corruption")
    kinds: dict[str, list[Block]] = {}
    for block in blocks:
        kinds.setdefault(block.condition.name, []).append(block)
    return [entry for alike in kinds.values() for entry in curve_entries(scoring, alike, "rate")]


def faults(predictor: Predictor, data: EvaluationData, settings: CommonSettings) -> list[str]:
    """Return an error if the tokenizer supports none of the requested kinds."""
    assert isinstance(predictor, TokenPredictor)
    vocabulary = predictor.vocabulary()
    asked = settings.section("token_corruption", TokenCorruptionSettings)
    reasons = {kind: vocabulary.lacks(kind) for kind in asked.kinds}
    if not all(reasons.values()):
        return []
    message = ", ".join(f"{kind!r} because {reason}" for kind, reason in reasons.items())
    return [
        f"token_corruption supports none of `kinds`: not {message}. Choose other kinds, or leave "
        "token_corruption out of `perspectives`."
    ]


def lacking(predictor: Predictor, data: EvaluationData) -> str:
    """Return why a model that reads windows is not supported: its windows share tokens."""
    # Settings import this module, and they are checked without torch.
    from temper.evaluation.classifier import TextPredictor

    if not isinstance(predictor, TextPredictor) or predictor.windows is None:
        return ""
    return "token_corruption changes tokens, and windows of a text share some."


KINDS = {"random": "random tokens", "mask": "masked tokens", "drop": "dropped tokens"}


def words(key: ScoreKey) -> str:
    """Return the label of a score with the kind of corruption, and its rate if it has one."""
    kind, rate = KINDS.get(key.condition, key.condition), key.parameters.number("rate")
    label = kind if rate is None else f"{kind}, {round(100 * rate, 4):g}%"
    return ", ".join(part for part in (title(key.name), label, key.set) if part)


def figures(source: Source, comparison: Comparison) -> list[Figure]:
    """Plot the task's metric against the rate of corrupted tokens, one figure per kind and set."""
    return strength_curves(
        comparison,
        "token_corruption",
        "rate",
        heading=lambda key: f"{KINDS.get(key.condition, key.condition).capitalize()}, {key.set}",
        caption="The metric when each token that is not special is corrupted with that probability",
        axis="rate of corrupted tokens",
    )


TOKEN_CORRUPTION = Perspective(
    name="token_corruption",
    title="Token corruption",
    order=80,
    heading=Heading.ROBUSTNESS,
    explained="Random tokens are dropped, masked or replaced; the score is the area under the "
    "curve over the rates.",
    leads="area",
    conditions=KINDS,
    words=words,
    figures=figures,
    summary="the task's metric with tokens replaced at random, masked or dropped, and the area "
    "under its curve over the rates",
    scores=("area", *METRICS),
    rows=rows,
    score=score,
    kinds=(*ONE_LABEL, "multi_label", "tokens"),
    settings=TokenCorruptionSettings,
    perturbs=True,
    needs="tokens",
    faults=faults,
    lacking=lacking,
)
