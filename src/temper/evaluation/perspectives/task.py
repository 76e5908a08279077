"""In distribution: the task's metric and the usual scores of its labels on validation rows."""

from __future__ import annotations

from collections.abc import Iterable

from temper.display.views import Heading, mean_or_first
from temper.evaluation.measurement import Measurement
from temper.evaluation.perspectives.registry import ALL_KINDS, Perspective
from temper.evaluation.rows import Block
from temper.evaluation.scoring import METRICS, ScoreEntry, Scoring


def rows(measurement: Measurement) -> Iterable[Block]:
    yield measurement.clean_block("task", "dev", measurement.dev)


def score(scoring: Scoring) -> list[ScoreEntry]:
    return scoring.entries(scoring.clean, scoring.metrics(scoring.clean))


TASK = Perspective(
    name="task",
    title="In distribution",
    order=10,
    heading=Heading.ACCURACY,
    explained="The fraction of in-distribution texts that are predicted correctly, or the task's "
    "metric.",
    gain="reaches {ours} {score} ({compared})",
    sums_up=mean_or_first,
    averaged=True,
    unperturbed=True,
    summary="the task's metric and the usual scores of its labels on the validation set",
    scores=METRICS,
    kinds=ALL_KINDS,
    rows=rows,
    score=score,
)
