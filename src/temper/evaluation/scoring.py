"""Compute the score entries of ``scores.json`` from rows, with intervals."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from temper.evaluation.rows import TARGETS, Block, Condition, rows_at
from temper.functional import scores
from temper.functional.answers import SPAN_SCORES
from temper.functional.entities import RATIOS
from temper.functional.intervals import Statistic, fewest_rows, score_intervals
from temper.functional.proportions import OfKinds, Proportion, ProportionDifference
from temper.functional.resampling import FloatArray, divide, weighted_mean
from temper.functional.scores import SCORES

METRICS = tuple(name for name, score in SCORES.items() if score.kinds)
"""Scores that can be a task's primary metric."""

ScoreEntry = dict[str, Any]


@dataclass(frozen=True)
class Scoring:
    """All rows of an evaluation, and how to score them.

    ``metric`` is the primary metric. ``resamples`` are for bootstrap intervals; 0 computes none.
    """

    blocks: Sequence[Block]
    metric: str
    resamples: int = 1000
    seed: int = 0

    def of(self, *perspectives: str) -> list[Block]:
        return [block for block in self.blocks if block.condition.perspective in perspectives]

    @property
    def clean(self) -> Block:
        """The clean validation rows, which every evaluation has."""
        return self.of("task")[0]

    def metrics(self, block: Block) -> tuple[str, ...]:
        """Return the names of a labeled block's scores: the primary metric, then the usual ones."""
        usual = [name for name in scores.metrics_of(block.kind) if SCORES[name].usual]
        if self.metric == "word_accuracy":
            # The usual scores of tags need entities, which these tags do not mark.
            usual = []
        return tuple(dict.fromkeys((self.metric, *usual)))

    def entry(
        self,
        condition: Condition,
        name: str,
        *,
        statistic: Statistic,
        rows: int,
        drawn: int | None = None,
    ) -> ScoreEntry:
        """Compute a score with its interval.

        ``rows`` is the number of scored rows. ``drawn`` is the number of rows that a resample
        draws, if it includes rows that set thresholds; None draws only the scored rows.
        """
        (made,) = self.entries_of(condition, {name: statistic}, rows=rows, drawn=drawn)
        return made

    def entries_of(
        self,
        condition: Condition,
        statistics: Mapping[str, Statistic],
        *,
        rows: int,
        drawn: int | None = None,
    ) -> list[ScoreEntry]:
        """Compute several scores of the same rows, with their intervals; see `entry`."""
        entries = [
            self.undefined(condition, name, reason=scores.facts(name).undefined, rows=rows)
            for name in statistics
        ]
        wanted = list(zip(entries, statistics.values(), strict=True))
        self.compute(condition, wanted, rows if drawn is None else drawn)
        return entries

    def compute(
        self, condition: Condition, wanted: Sequence[tuple[ScoreEntry, Statistic]], rows: int
    ) -> None:
        """Add value and interval to each entry whose statistic is defined."""
        defined = []
        for made, statistic in wanted:
            value = float(statistic(np.ones((1, rows)))[0])
            if np.isfinite(value):
                del made["reason"]
                made |= {"value": value, "fewest": fewest_rows(statistic, rows)}
                defined.append((made, statistic))
        if self.resamples and defined:
            of = [statistic for _, statistic in defined]
            intervals = score_intervals(of, rows, resamples=self.resamples, seed=self.seed)
            for (made, _), result in zip(defined, intervals, strict=True):
                made |= {"low": result.low, "high": result.high}

    def entries(self, block: Block, names: Iterable[str]) -> list[ScoreEntry]:
        statistics = {name: statistic_of(name, block) for name in names}
        return self.entries_of(block.condition, statistics, rows=len(block))

    def undefined(self, condition: Condition, name: str, *, reason: str, rows: int) -> ScoreEntry:
        """Return the entry of a score that has no value."""
        return {
            "perspective": condition.perspective,
            "set": condition.set,
            "condition": condition.name,
            "parameters": dict(condition.parameters),
            "name": name,
            "value": None,
            "n": rows,
            "fewest": None,
            "low": None,
            "high": None,
            "standard_error": None,
            "higher_is_better": scores.facts(name).higher_is_better,
            "reason": reason,
        }


def statistic_of(name: str, block: Block) -> Statistic:
    """Return one of `METRICS` of a labeled block, as a function of resample counts [R, n]."""
    if name == "accuracy":
        return Proportion(block.correct)
    if name in SPAN_SCORES:
        return mean_of(block.measured[name])
    if name == "completion_loss":
        return ratio_of(*(block.measured[part] for part in TARGETS[:2]))
    if name in RATIOS:
        sums = (np.sum([block.measured[part] for part in side], axis=0) for side in RATIOS[name])
        return ratio_of(*sums)
    score = scores.facts(name)
    if block.kind == "multi_label":
        given = block.probabilities if name == "map" else block.predicted
        return score.statistic(block.applies, given)
    by_row = score.statistic(block.label, block.prediction)
    return OfKinds(by_row, block.label) if block.classifies else by_row


def mean_of(values: FloatArray) -> Statistic:
    """Return the mean of a value per row, as a statistic; NaN if a value is not finite."""
    if not bool(np.isfinite(values).all()):
        return lambda counts: np.full(counts.shape[0], np.nan)
    return lambda counts: weighted_mean(values, counts)


def ratio_of(above: FloatArray, below: FloatArray) -> Statistic:
    """Return the ratio of the sums of two values per row, as a statistic."""
    return lambda counts: divide(counts @ above, counts @ below)


def curve_entries(scoring: Scoring, blocks: Sequence[Block], size: str) -> list[ScoreEntry]:
    """Score each size of one perturbation, and the area under this curve from size 0.

    ``size`` is the name of the parameter by which the blocks differ; they have the same examples in
    the same order. The result has the task's metric and accuracy (MSE of a regression) of each
    block, then the area.
    """
    entries = [entry for block in blocks for entry in metric_entries(scoring, block)]
    if blocks:
        first = blocks[0]
        curve = [rows_at(scoring.clean, first), *blocks]
        sizes = [0.0, *(block.condition.parameters.number(size) or 0.0 for block in blocks)]
        condition = first.condition
        condition = replace(condition, parameters=condition.parameters.without(size))
        under = area(scoring.metric, curve, sizes)
        entry = scoring.entry(condition, "area", statistic=under, rows=len(first))
        entries.append(entry | {"higher_is_better": SCORES[scoring.metric].higher_is_better})
    return entries


def metric_entries(scoring: Scoring, block: Block) -> list[ScoreEntry]:
    """Compute the task's metric, and accuracy (MSE of a regression), of one block."""
    usual = {"classification": ("accuracy",), "regression": ("mse",), "spans": SPAN_SCORES}
    return scoring.entries(block, dict.fromkeys((scoring.metric, *usual.get(block.kind, ()))))


def drop_of(metric: str, clean: Block, changed: Block) -> Statistic:
    """Return how much worse the metric is on ``changed`` than on ``clean``, as a statistic."""
    before, after = statistic_of(metric, clean), statistic_of(metric, changed)
    if isinstance(before, Proportion) and isinstance(after, Proportion):
        return ProportionDifference(before.right, after.right)
    sign = 1.0 if SCORES[metric].higher_is_better else -1.0
    return lambda counts: sign * (before(counts) - after(counts))


def area(metric: str, curve: Sequence[Block], sizes: Sequence[float]) -> Statistic:
    """Return the mean of the metric over the sizes, by the trapezoid rule, as a statistic.

    ``curve`` has a block per size, with the same examples in the same order.
    """
    order = np.argsort(sizes, kind="stable")
    points = np.asarray(sizes)[order]
    statistics = [statistic_of(metric, curve[index]) for index in order]

    def mean(counts: FloatArray) -> FloatArray:
        heights = np.stack([statistic(counts) for statistic in statistics], axis=-1)
        width = points[-1] - points[0]
        return np.asarray(np.trapezoid(heights, points, axis=-1) / width)

    return mean
