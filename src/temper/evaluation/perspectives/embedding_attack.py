"""Embedding attack: the task's metric if an adversary moves the word embeddings within a radius.

The attacked model is in eval mode. Rows store the absolute and relative radius, norm, steps and
restarts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from temper.data.examples import Examples
from temper.display.cells import Comparison, ScoreKey
from temper.display.charts import Figure, strength_curves
from temper.display.folders import Source
from temper.display.records import Parameters
from temper.display.views import Heading
from temper.display.wording import described
from temper.evaluation.attack import EmbeddingAttackSettings, Outcome, Target, attack
from temper.evaluation.blocks import block_of, labels_of
from temper.evaluation.measurement import Measurement
from temper.evaluation.perspectives.registry import ALL_KINDS, ONE_PREDICTION, Perspective
from temper.evaluation.prediction import Prediction
from temper.evaluation.predictor import RowBatch, Session, in_order
from temper.evaluation.rows import Block, Condition, rows_at
from temper.evaluation.scoring import (
    METRICS,
    ScoreEntry,
    Scoring,
    drop_of,
    metric_entries,
)
from temper.functional.resampling import FloatArray
from temper.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


def rows(measurement: Measurement) -> Iterable[Block]:
    """Attack the validation rows by batch, and cache their clean predictions."""
    examples, index = measurement.attacked()
    measurement.texts.keep("dev", examples, index)
    labels = labels_of(examples, labeled=examples.kind in ONE_PREDICTION)
    settings = measurement.settings.section("embedding_attack", EmbeddingAttackSettings)
    indices: list[int] = []
    clean: list[Prediction] = []
    attacked: list[list[tuple[Outcome, Prediction]]] = []
    boundary = _boundary(measurement)
    with measurement.perturbable.session() as session:
        for part in measurement.parts(session, examples, "embedding attack"):
            movable = part.movable
            if not settings.special_tokens:
                movable = movable & ~part.special
            target = Target(
                forward=partial(_logits, session, part, boundary),
                labels=_labels(part, examples, labels),
                embeddings=session.embeddings(part),
                movable=movable,
                rows=part.rows,
                regression=measurement.regression,
            )
            logits, outcomes = attack(target, settings, seed=measurement.settings.seed)
            indices += part.indices
            shift = boundary.to(logits.device)
            clean.append(measurement.predictions(part, logits + shift))
            # Only the budgets are kept: the logits of all batches may not fit on the device.
            nothing = logits.new_empty(0)
            attacked.append(
                [
                    (
                        replace(outcome, logits=nothing),
                        measurement.predictions(part, outcome.logits + shift),
                    )
                    for outcome in outcomes
                ]
            )
    # For completions, the attack's clean predictions lack the bins of confidence.
    if len(index) == len(measurement.dev) and examples.kind != "completions":
        truncated = measurement.perturbable.truncated(examples)
        predictions = measurement.joined(indices, clean)
        measurement.keep("dev", replace(predictions, truncated=truncated))
    for batches in zip(*attacked, strict=True):
        result = [outcome for outcome, _ in batches]
        outcome = result[0]
        parameters = Parameters(
            {"radius_relative" if settings.relative else "radius": outcome.radius_set},
            norm=outcome.norm,
            steps=outcome.steps,
            restarts=outcome.restarts,
        )
        condition = Condition("embedding_attack", "dev", outcome.attack, parameters)
        predictions = measurement.joined(indices, [kept for _, kept in batches])
        measured = {
            "radius": in_order(indices, [item.radius for item in result]),
            "radius_relative": in_order(indices, [item.radius_relative for item in result]),
        }
        block = block_of(condition, examples, predictions, index=index)
        yield replace(block, measured={**block.measured, **measured})


def _labels(part: RowBatch, examples: Examples, labels: FloatArray) -> Tensor | None:
    """Return the labels of a batch in the shapes of `temper.evaluation.attack`."""
    if part.prompt is not None:
        return None
    if part.batch.labels is not None:
        return part.batch.labels
    labels_of_part: Any = labels[part.indices]
    if examples.kind == "multi_label" and examples.labels is not None:
        labels_of_part = [examples.labels[index] for index in part.indices]
    return torch.as_tensor(labels_of_part, device=part.batch.mask.device)


def _boundary(measurement: Measurement) -> Tensor:
    """Return logits [2] at the decision threshold of two classes; a 0 without a threshold.

    If they are subtracted, the larger logit is the decision, as the attack expects.
    """
    if measurement.thresholds is None or measurement.predictor.gives != "logits":
        return torch.zeros(())
    return torch.tensor([0.5, *measurement.thresholds]).logit()


def _logits(
    session: Session, part: RowBatch, boundary: Tensor, delta: Tensor, indices: Tensor
) -> Tensor:
    return session.logits(part.take(indices), delta=delta) - boundary.to(delta.device)


def score(scoring: Scoring) -> list[ScoreEntry]:
    """Score each attack at each radius, and the drop from the same rows without attack."""
    entries = []
    clean = scoring.clean
    for block in scoring.of("embedding_attack"):
        entries += metric_entries(scoring, block)
        drop = drop_of(scoring.metric, rows_at(clean, block), block)
        entries.append(scoring.entry(block.condition, "drop", statistic=drop, rows=len(block)))
    return entries


def figures(source: Source, comparison: Comparison) -> list[Figure]:
    """Plot the task's metric against the attack radius, one figure per attack and set."""
    return strength_curves(
        comparison,
        "embedding_attack",
        "radius",
        heading=_heading,
        caption="The metric under attack",
    )


def _heading(key: ScoreKey) -> str:
    kind = described(key.parameters.without("radius", "radius_relative"))
    return f"{key.condition.upper()} {kind}, {key.set}"


EMBEDDING_ATTACK = Perspective(
    name="embedding_attack",
    title="Embedding attack",
    order=50,
    heading=Heading.ROBUSTNESS,
    explained="Each word's vector is moved a little, in the direction that misleads the model "
    "most.",
    gain="reaches {ours} {score} under embedding attack ({compared})",
    conditions={"fgm": "FGM", "pgd": "PGD"},
    figures=figures,
    unchanged_texts=True,
    summary="the task's metric under FGM and PGD on the word embeddings, for each radius, and its "
    "drop",
    scores=(*METRICS, "drop"),
    kinds=ALL_KINDS,
    rows=rows,
    score=score,
    settings=EmbeddingAttackSettings,
    perturbs=True,
    needs="embeddings",
)
