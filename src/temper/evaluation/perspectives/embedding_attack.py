"""Embedding attack: the metric when an adversary moves the word embeddings within a radius.

The gradient is the predictor's own, in eval mode. Absolute and relative radii, norm, steps and
restarts stand in every row.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from temper.errors import ModelError
from temper.evaluation.attack import Budget, Outcome, Target, attack
from temper.evaluation.curves import drop_of, metric_entries
from temper.evaluation.measurement import Measurement, block_of, labels_of
from temper.evaluation.perspectives.contract import Perspective
from temper.evaluation.predictor import Part, Session
from temper.evaluation.rows import Block, Condition, rows_at
from temper.evaluation.scoring import Entry, Scoring
from temper.functional.resampling import FloatArray


@dataclass
class _Collected:
    """Answers of one attack at one radius, gathered batch by batch."""

    outcome: Outcome
    logits: FloatArray
    radius: FloatArray
    radius_relative: FloatArray


@dataclass
class _Answers:
    """Clean and attacked answers of the attacked rows."""

    rows: int
    clean: FloatArray | None = None
    attacked: list[_Collected] = field(default_factory=list)

    def add(self, indices: list[int], clean: Tensor, outcomes: Iterable[Outcome]) -> None:
        """Put a batch's answers where its rows stand."""
        if self.clean is None:
            self.clean = np.empty((self.rows, clean.shape[-1]))
        self.clean[indices] = clean.double().cpu().numpy()
        for number, outcome in enumerate(outcomes):
            if number == len(self.attacked):
                made = [np.empty(self.rows) for _ in range(2)]
                self.attacked.append(_Collected(outcome, np.empty_like(self.clean), *made))
            kept = self.attacked[number]
            kept.logits[indices] = outcome.logits.double().cpu().numpy()
            kept.radius[indices] = outcome.radius.cpu().numpy()
            kept.radius_relative[indices] = outcome.radius_relative.cpu().numpy()


def rows(measurement: Measurement) -> Iterable[Block]:
    """Attack the dev rows, batch by batch; the clean answers on the way are kept for the task."""
    examples, index = measurement.attacked()
    measurement.texts.keep("dev", examples, index)
    labels = labels_of(examples)
    answers = _Answers(len(examples))
    budget = _budget(measurement)
    with measurement.perturbable.session() as session:
        done = 0
        for part in session.parts(examples, batch_size=measurement.settings.batch_size):
            target = _target(measurement, session, part, labels)
            answers.add(part.indices, *attack(target, budget))
            done += len(part.indices)
            measurement.tell(done, len(examples), "embedding attack")
    if answers.clean is None:
        raise ModelError("The dev set has no rows to attack.")
    if len(index) == len(measurement.dev):
        truncated = measurement.perturbable.truncated(examples)
        measurement.keep("dev", replace(measurement.read(answers.clean), truncated=truncated))
    for kept in answers.attacked:
        outcome = kept.outcome
        condition = Condition(
            "embedding_attack",
            "dev",
            outcome.attack,
            outcome.norm,
            outcome.steps,
            outcome.restarts,
        )
        block = block_of(condition, examples, measurement.read(kept.logits), index=index)
        yield replace(
            block,
            radius=kept.radius,
            radius_relative=kept.radius_relative,
            relative=budget.relative,
        )


def score(scoring: Scoring) -> list[Entry]:
    """Score each attack at each radius, and its drop against the same rows unperturbed."""
    entries = []
    clean = scoring.clean
    for block in scoring.of("embedding_attack"):
        entries += metric_entries(scoring, block)
        entries.append(
            scoring.entry(
                block.condition,
                "drop",
                statistic=drop_of(scoring.metric, rows_at(clean, block), block),
                rows=len(block),
                block=block,
            )
        )
    return entries


def _budget(measurement: Measurement) -> Budget:
    settings = measurement.settings
    return Budget(
        attacks=settings.attacks,
        norms=settings.norms,
        radii=settings.radii,
        relative=settings.radii_relative,
        steps=settings.pgd_steps,
        step_fraction=settings.pgd_step_size,
        restarts=settings.restarts,
        seed=settings.seed,
    )


def _target(measurement: Measurement, session: Session, part: Part, labels: FloatArray) -> Target:
    """Describe a batch to the attack."""
    movable = part.batch.mask
    if not measurement.settings.special_tokens:
        movable = movable & ~part.special
    return Target(
        forward=lambda delta, places: session.logits(part.take(places), delta=delta),
        labels=torch.as_tensor(labels[part.indices], device=movable.device),
        embeddings=session.embeddings(part),
        movable=movable,
        rows=part.rows,
        regression=measurement.regression,
    )


EMBEDDING_ATTACK = Perspective(
    name="embedding_attack",
    summary="Embedding attack: the metric under FGM and PGD at given radii, and its drop",
    scores=("accuracy", "macro_f1", "mcc", "f1", "pearson", "spearman", "mse", "drop"),
    rows=rows,
    score=score,
    reads=(
        "attacks",
        "norms",
        "radii",
        "radii_relative",
        "pgd_steps",
        "pgd_step_size",
        "restarts",
        "special_tokens",
        "attack_rows",
    ),
    needs="embeddings",
)
