"""Paired differences on the same rows: between two models, and between methods over seeds.

Differences of accuracies, and of other fractions of rows, have intervals in closed form. For other
scores, both models are scored on the same bootstrap resamples, so that the difficulty of a row
cancels. The interval for two models is valid for new rows of the distribution, not for new seeds.
For methods with several seeds, `RowSamples` gives the variance over rows, which
`temper.functional.effects` adds to the variance over seeds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from temper.errors import CheckpointError
from temper.evaluation import perspectives
from temper.evaluation.rows import Block, Condition, to_blocks
from temper.evaluation.scoring import ScoreEntry, Scoring
from temper.functional.effects import RowVariance
from temper.functional.intervals import Statistic, difference_intervals, resample_counts
from temper.functional.proportions import Interval
from temper.functional.resampling import FloatArray
from temper.lazy import pyarrow as pa

RESAMPLES = 10_000
VARIANCE_RESAMPLES = 200
"""Number of bootstrap resamples per variance over rows.

The relative standard error of the variance is then 10%.
"""
MOST_UNDEFINED = 0.05
"""Maximum fraction of resamples in which a score may be undefined; else it is left out."""


@dataclass(frozen=True)
class _Statistics(Scoring):
    """A `Scoring` that collects the statistic of each score instead of computing it."""

    taken: dict[tuple[Condition, str], tuple[ScoreEntry, Statistic, int]] = field(
        default_factory=dict
    )

    def compute(
        self, condition: Condition, wanted: Sequence[tuple[ScoreEntry, Statistic]], rows: int
    ) -> None:
        for entry, statistic in wanted:
            names = ("perspective", "set", "condition", "parameters", "name")
            named = {part: entry[part] for part in (*names, "n")}
            self.taken[condition, entry["name"]] = (named, statistic, rows)


def paired_differences(
    rows: pa.Table,
    reference: pa.Table,
    metric: str,
    *,
    chosen: Sequence[str],
    seed: int,
    resamples: int = RESAMPLES,
) -> list[dict[str, Any]]:
    """Compare two evaluations of the same rows, score by score.

    The tables are two models' ``rows.parquet``, and ``chosen`` the perspectives to score. The
    result has a mapping for each score that both have: the fields of its name, ``low`` and ``high``
    (95% interval of the first minus the second), ``p`` and ``n``. Undefined differences are left
    out.

    Raises:
        CheckpointError: The models were measured on different rows.

    References:
        Efron and Tibshirani, "An Introduction to the Bootstrap", 1993, ch. 8.3.
    """
    blocks, others = to_blocks(rows), to_blocks(reference)
    _check_same(blocks, others)
    first, second = (_statistics(result, metric, chosen, seed) for result in (blocks, others))
    both = [key for key in first if key in second and first[key][2] == second[key][2]]
    intervals: dict[tuple[Condition, str], Interval] = {}
    for size in {first[key][2] for key in both}:
        alike = [key for key in both if first[key][2] == size]
        pairs = [(first[key][1], second[key][1]) for key in alike]
        drawn = difference_intervals(pairs, size, resamples=resamples, seed=seed)
        intervals |= dict(zip(alike, drawn, strict=True))
    result = []
    for key in both:
        interval = intervals[key]
        if interval.low is not None:
            ends = {"low": interval.low, "high": interval.high}
            result.append({**first[key][0], **ends, "p": interval.p})
    return result


@dataclass(frozen=True)
class RowSamples:
    """The scores of one run on resamples of its rows.

    All runs on the same rows use the same resamples, so that the difficulty of a row cancels in
    their differences.

    Args:
        named: (condition, score) -> the fields of the score's name in ``scores.json``.
        samples: (condition, score) -> values on all resamples, [R].
        rows: Condition -> hash of the rows that it was measured on.
    """

    named: dict[tuple[Condition, str], ScoreEntry]
    samples: dict[tuple[Condition, str], FloatArray]
    rows: dict[Condition, int]

    @classmethod
    def of(cls, rows: pa.Table, metric: str, *, chosen: Sequence[str], seed: int) -> RowSamples:
        """Score resamples of one run's ``rows.parquet``; ``chosen`` are the perspectives."""
        blocks = to_blocks(rows)
        taken = _statistics(blocks, metric, chosen, seed)
        parts: dict[tuple[Condition, str], list[FloatArray]] = {}
        # Scores of the same number of rows share the draws, which take longer than most scores.
        for size in {n for _, _, n in taken.values() if n}:
            alike = {key: statistic for key, (_, statistic, n) in taken.items() if n == size}
            for counts in resample_counts(size, resamples=VARIANCE_RESAMPLES, seed=seed):
                for key, statistic in alike.items():
                    parts.setdefault(key, []).append(np.atleast_1d(statistic(counts)))
        samples = {key: np.concatenate(parts[key]) for key in taken if key in parts}
        same = {block.condition: hash(tuple(block.row)) for block in blocks}
        return cls({key: taken[key][0] for key in samples}, samples, same)


def row_variances(
    column: Sequence[RowSamples], reference: Sequence[RowSamples]
) -> list[tuple[ScoreEntry, RowVariance]]:
    """Return the variance over rows of the difference between two methods, score by score.

    Both methods must have runs at the same seeds, at least two. Scores that a run lacks, or that
    are undefined in more than 5% of the resamples, are left out. The result is empty if a run was
    measured on other rows.
    """
    runs = [*column, *reference]
    first_rows = column[0].rows
    if any(
        first_rows.get(condition, same) != same
        for run in runs
        for condition, same in run.rows.items()
    ):
        return []
    result = []
    for key, named in column[0].named.items():
        if any(key not in run.samples for run in runs):
            continue
        values = np.stack([run.samples[key] for run in runs])
        defined = values[:, np.isfinite(values).all(axis=0)]
        if defined.shape[1] < (1 - MOST_UNDEFINED) * values.shape[1]:
            continue
        first, second = defined[: len(column)], defined[len(column) :]
        of_difference = float((first.mean(axis=0) - second.mean(axis=0)).var(ddof=1))
        result.append((named, RowVariance(of_difference, (_within(first), _within(second)))))
    return result


def _within(samples: FloatArray) -> float:
    """Return the part of the variance over rows that the n runs of a method do not share, >= 0.

    ``samples`` are [n, R]. The variance of a run is that of the mean of all runs plus this part,
    which averaging over n runs divides by n.
    """
    runs = len(samples)
    of_run = float(samples.var(axis=1, ddof=1).mean())
    of_mean = float(samples.mean(axis=0).var(ddof=1))
    return max(0.0, (of_run - of_mean) * runs / (runs - 1))


def _statistics(
    blocks: Sequence[Block], metric: str, chosen: Sequence[str], seed: int
) -> dict[tuple[Condition, str], tuple[ScoreEntry, Statistic, int]]:
    scoring = _Statistics(blocks, metric, resamples=0, seed=seed)
    for name in perspectives.names():
        if name in chosen and perspectives.perspective(name).repeats:
            perspectives.perspective(name).score(scoring)
    return scoring.taken


def _check_same(blocks: Sequence[Block], others: Sequence[Block]) -> None:
    theirs = {block.condition: block.row for block in others}
    for block in blocks:
        row = theirs.get(block.condition)
        if row is not None and row != block.row:
            raise CheckpointError(
                f"The two models were measured on different rows of set {block.condition.set!r} "
                f"({block.condition.perspective}), so their scores cannot be paired. Evaluate "
                "both on the same data with the same settings."
            )
