"""Distribution shift: the task's metric on labeled sets from other sources."""

from __future__ import annotations

from collections.abc import Iterable

from temper.display.views import Heading, mean_or_first
from temper.evaluation.measurement import Measurement
from temper.evaluation.perspectives.registry import ALL_KINDS, Perspective
from temper.evaluation.rows import Block
from temper.evaluation.scoring import METRICS, ScoreEntry, Scoring


def rows(measurement: Measurement) -> Iterable[Block]:
    for name, examples in measurement.shift.items():
        yield measurement.clean_block("shift", name, examples)


def score(scoring: Scoring) -> list[ScoreEntry]:
    return [
        entry
        for block in scoring.of("shift")
        for entry in scoring.entries(block, scoring.metrics(block))
    ]


SHIFT = Perspective(
    name="shift",
    title="Distribution shift",
    order=20,
    heading=Heading.ACCURACY,
    explained="The same task on texts from other sources, which no model here was trained on.",
    gain="reaches {ours} {score} under distribution shift ({compared})",
    short="Shift",
    sums_up=mean_or_first,
    improves=True,
    averaged=True,
    unperturbed=True,
    summary="the task's metric on labeled data from other sources (--shift, --suite)",
    scores=METRICS,
    kinds=ALL_KINDS,
    rows=rows,
    score=score,
)
