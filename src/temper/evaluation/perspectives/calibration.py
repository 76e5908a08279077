"""Calibration: ECE, Brier and NLL of the clean labelled rows, without a temperature.

The rows of dev, of the shift and of the adversarial sets are scored.
"""

from __future__ import annotations

from collections.abc import Iterable

from temper.evaluation.measurement import Measurement
from temper.evaluation.perspectives.contract import Perspective
from temper.evaluation.rows import Block, Condition
from temper.evaluation.scoring import Entry, Scoring, statistic_of

NAMES = ("ece_10", "ece_15", "brier", "nll")


def rows(measurement: Measurement) -> Iterable[Block]:
    """Add no rows: those of task, shift and adversarial are scored."""
    return ()


def score(scoring: Scoring) -> list[Entry]:
    """Score the clean rows of dev, of the shift and of the adversarial sets."""
    entries = []
    for block in scoring.of("task", "shift", "adversarial"):
        condition = Condition("calibration", block.condition.set)
        for name in NAMES:
            if not block.classifies:
                reason = "a regression gives no probabilities"
                entries.append(scoring.undefined(condition, name, reason=reason, rows=len(block)))
                continue
            statistic = statistic_of(name, block)
            entries.append(scoring.entry(condition, name, statistic=statistic, rows=len(block)))
    return entries


CALIBRATION = Perspective(
    name="calibration",
    summary="Calibration: ECE with 10 and 15 bins, Brier, NLL on dev, shift and adversarial sets",
    scores=NAMES,
    rows=rows,
    score=score,
)
