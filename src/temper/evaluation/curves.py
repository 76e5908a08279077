"""Score a curve: the metric at each size of a perturbation, and the area under it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from temper.evaluation.rows import Block, rows_at
from temper.evaluation.scoring import ScoreEntry, Scoring, statistic_of
from temper.functional.intervals import Statistic
from temper.functional.proportions import Share, ShareDifference
from temper.functional.resampling import FloatArray
from temper.functional.scores import SCORES


def curve_entries(scoring: Scoring, blocks: Sequence[Block], size: str) -> list[ScoreEntry]:
    """Score each size of one perturbation, and the area from none to the largest size.

    Args:
        scoring: All rows, with the clean ones.
        blocks: Rows at each size, the same examples in the same order; may be empty.
        size: Parameter that is the size.

    Returns:
        The task's metric and accuracy (MSE of a regression) of each block, then the area.
    """
    entries = [entry for block in blocks for entry in metric_entries(scoring, block)]
    if blocks:
        first = blocks[0]
        curve = [rows_at(scoring.clean, first), *blocks]
        sizes = [0.0, *(block.condition.parameters.number(size) or 0.0 for block in blocks)]
        entries.append(
            scoring.entry(
                first.condition.without(size),
                "area",
                statistic=area(scoring.metric, curve, sizes),
                rows=len(first),
                higher_is_better=SCORES[scoring.metric].higher_is_better,
            )
        )
    return entries


def metric_entries(scoring: Scoring, block: Block) -> list[ScoreEntry]:
    """Score the task's metric and accuracy (MSE of a regression) under one perturbation.

    Args:
        scoring: All rows.
        block: Those under the perturbation.
    """
    usual = "accuracy" if block.classifies else "mse"
    return [
        scoring.entry(
            block.condition,
            name,
            statistic=statistic_of(name, block),
            rows=len(block),
        )
        for name in dict.fromkeys((scoring.metric, usual))
    ]


def drop_of(metric: str, clean: Block, changed: Block) -> Statistic:
    """Return how much worse the metric got, on the same resamples of the same rows.

    Args:
        metric: The task's leading score.
        clean: Rows as they were.
        changed: The same rows under a perturbation or an attack.

    Returns:
        From counts [R, n] to [R] values, positive where the metric is worse.
    """
    before, after = statistic_of(metric, clean), statistic_of(metric, changed)
    if isinstance(before, Share) and isinstance(after, Share):
        return ShareDifference(before.right, after.right)
    sign = 1.0 if SCORES[metric].higher_is_better else -1.0
    return lambda counts: sign * (before(counts) - after(counts))


def area(metric: str, curve: Sequence[Block], sizes: Sequence[float]) -> Statistic:
    """Return the mean of the metric over the sizes, by the trapezoid rule.

    Args:
        metric: The task's leading score.
        curve: Rows at each size, the same examples in the same order.
        sizes: Size of each, distinct; any order.

    Returns:
        From counts [R, n] to [R] values, in the metric's unit.
    """
    order = np.argsort(sizes, kind="stable")
    points = np.asarray(sizes)[order]
    statistics = [statistic_of(metric, curve[place]) for place in order]

    def mean(counts: FloatArray) -> FloatArray:
        heights = np.stack([statistic(counts) for statistic in statistics], axis=-1)
        width = points[-1] - points[0]
        return np.asarray(np.trapezoid(heights, points, axis=-1) / width)

    return mean
