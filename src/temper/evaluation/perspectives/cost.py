"""Cost: predicted rows and tokens per second, latency of one row, and peak memory.

The same validation rows are predicted several times: in batches for the throughput, and some of
them one by one for the latency. After one warm-up pass of each kind, the two kinds alternate, so
that a slowdown of the machine affects both. Each score is the median over its passes. The time
includes tokenization. Tokens are counted without padding.

Unlike those of other perspectives, the rows are not reproducible.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial

import numpy as np
from pydantic import Field

from temper.display.views import Heading
from temper.evaluation.common_settings import PerspectiveSettings
from temper.evaluation.measurement import Measurement
from temper.evaluation.perspectives.registry import Perspective
from temper.evaluation.predictor import TokenPredictor
from temper.evaluation.rows import Block, Condition
from temper.evaluation.scoring import ScoreEntry, Scoring
from temper.functional.resampling import FloatArray, weighted_median
from temper.functional.scores import ScoreFacts
from temper.functional.units import Unit
from temper.lazy import torch
from temper.memory import MEBIBYTE, Gauge, gauge_of

ROWS = 128
"""Maximum number of validation rows that are timed, chosen by hash."""
ALONE = 32
"""Maximum number of rows that are predicted one by one, because that is slow."""
REPETITIONS = 5
"""Timed passes, after one warm-up pass."""

NO_PASSES = "no pass could be measured"


class CostSettings(PerspectiveSettings):
    """Settings of the cost measurement."""

    batch: int = Field(default=32, ge=1, description="Rows of a forward pass.")


def rows(measurement: Measurement) -> Iterable[Block]:
    """Predict some validation rows several times; each block has one row per pass."""
    predictor = measurement.predictor
    settings = measurement.settings.section("cost", CostSettings)
    examples, _ = measurement.attacked(at_most=ROWS)
    few = examples.select(range(min(ALONE, len(examples))))
    device = getattr(predictor, "device", None)
    gauge = gauge_of(device if isinstance(device, torch.device) else None)
    if gauge is None:
        measurement.notices.append(
            "Cost is measured without memory: this system does not report a process's peak."
        )
    result = passes(
        {
            "batched": lambda: predictor.predict(examples, batch_size=settings.batch),
            "alone": lambda: predictor.predict(few, batch_size=1),
        },
        repetitions=REPETITIONS,
        gauge=gauge,
        tell=measurement.teller("cost"),
    )
    measures = {"rows_per_second": len(examples) / result["batched"]}
    if isinstance(predictor, TokenPredictor):
        tokens = sum(predictor.encoded(examples).lengths)
        measures["tokens_per_second"] = tokens / result["batched"]
    measures["seconds_per_row"] = result["alone"] / len(few)
    if gauge is not None:
        measures[gauge.name] = result[gauge.name] / MEBIBYTE
    for name, values in measures.items():
        index = np.arange(len(values))
        yield Block.of_values(
            Condition("cost", "dev", name), [examples.hash] * len(values), index, values
        )


def score(scoring: Scoring) -> list[ScoreEntry]:
    """Compute medians over the passes; n is the number of passes."""
    entries = []
    for block in scoring.of("cost"):
        values = np.asarray(block.value, dtype=np.float64)
        name, median = block.condition.name, partial(weighted_median, values)
        name = "memory_mib" if name.startswith("memory_") else name
        entries.append(scoring.entry(block.condition, name, statistic=median, rows=len(block)))
    return entries


def passes(
    work: Mapping[str, Callable[[], object]],
    *,
    repetitions: int,
    gauge: Gauge | None = None,
    clock: Callable[[], float] = time.perf_counter,
    tell: Callable[[int, int], None] | None = None,
) -> dict[str, FloatArray]:
    """Time several functions alternately, after one warm-up call of each.

    Args:
        work: Name -> function.
        repetitions: Number of timed calls of each function.
        gauge: Measures peak memory during each call of the first function.
        clock: Returns seconds.
        tell: Called after each round with the number of finished rounds and of all rounds.

    Returns:
        Name of a function -> seconds [repetitions], and name of the gauge -> peaks in bytes.
    """
    for run in work.values():
        run()
    first = next(iter(work))
    result: dict[str, list[float]] = {name: [] for name in work}
    for done in range(1, repetitions + 1):
        for name, run in work.items():
            if gauge is not None and name == first:
                gauge.start()
            started = clock()
            run()
            result[name].append(clock() - started)
            if gauge is not None and name == first:
                result.setdefault(gauge.name, []).append(float(gauge.peak()))
        if tell is not None:
            tell(done, repetitions)
    return {name: np.asarray(values, dtype=np.float64) for name, values in result.items()}


COST = Perspective(
    name="cost",
    title="Cost",
    order=140,
    heading=Heading.COST,
    explained="Seconds and forward passes to predict one text.",
    leads="seconds_per_row",
    counts="passes",
    judged=False,
    summary="rows and tokens per second, time of one row, peak memory",
    scores=(
        ScoreFacts("rows_per_second", "Rows a second", True, math.inf, NO_PASSES, Unit(1.0, 1, "")),
        ScoreFacts(
            "tokens_per_second", "Tokens a second", True, math.inf, NO_PASSES, Unit(1.0, 0, "")
        ),
        ScoreFacts("seconds_per_row", "Time a row", False, 0.0, NO_PASSES, Unit(1000.0, 3, "ms")),
        ScoreFacts(
            "memory_mib", "Peak memory of inference", False, 0.0, NO_PASSES, Unit(1.0, 1, "MiB")
        ),
    ),
    rows=rows,
    score=score,
    settings=CostSettings,
    perturbs=True,
    left_out="depends on the machine's load",
    # The i-th passes of two models are unrelated, so they cannot be paired.
    repeats=False,
)
