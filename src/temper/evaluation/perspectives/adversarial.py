"""Adversarial sets: the task's metric on labeled sets that were written to mislead models.

If a set has contrast pairs (rows with the same pair name), ``consistency`` is the fraction of pairs
all of whose rows are right.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from temper.display.views import Heading, mean_or_first
from temper.evaluation.measurement import Measurement
from temper.evaluation.perspectives.registry import ALL_KINDS, Perspective
from temper.evaluation.rows import Block
from temper.evaluation.scoring import METRICS, ScoreEntry, Scoring
from temper.functional.proportions import Proportion
from temper.functional.resampling import FloatArray
from temper.functional.scores import ScoreFacts

CONSISTENCY = ScoreFacts("consistency", "Contrast pairs right", True, 1.0, "there are no pairs")


def rows(measurement: Measurement) -> Iterable[Block]:
    for name, examples in measurement.adversarial.items():
        yield measurement.clean_block("adversarial", name, examples)


def score(scoring: Scoring) -> list[ScoreEntry]:
    """Score each set, and its contrast pairs if it has any."""
    entries = []
    for block in scoring.of("adversarial"):
        entries += scoring.entries(block, scoring.metrics(block))
        right = pairs_right(block)
        if len(right):
            # Whole pairs are resampled, because their rows are not independent.
            statistics = {"consistency": Proportion(right)}
            entries += scoring.entries_of(block.condition, statistics, rows=len(right))
    return entries


def pairs_right(block: Block) -> FloatArray:
    """Return 1 for each contrast pair all of whose rows are right, else 0, sorted by pair name.

    Pairs with a single row are left out.
    """
    if block.pair is None or not block.classifies:
        return np.zeros(0)
    rows: dict[str, list[float]] = {}
    for name, correct in zip(block.pair, block.correct, strict=True):
        if name is not None:
            rows.setdefault(name, []).append(float(correct))
    return np.array([min(rows[name]) for name in sorted(rows) if len(rows[name]) > 1])


ADVERSARIAL = Perspective(
    name="adversarial",
    title="Adversarial sets",
    order=30,
    heading=Heading.ROBUSTNESS,
    explained="Texts that were written or picked to mislead models of this kind.",
    gain="reaches {ours} {score} on adversarial texts ({compared})",
    short="Adversarial",
    sums_up=mean_or_first,
    improves=True,
    averaged=True,
    unperturbed=True,
    summary="the task's metric on adversarial sets (--adversarial, --suite), and the fraction of "
    "contrast pairs with both rows correct",
    scores=(*METRICS, CONSISTENCY),
    kinds=ALL_KINDS,
    rows=rows,
    score=score,
)
