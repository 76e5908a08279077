"""From rows to score entries with intervals, the format of ``scores.json``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from temper.evaluation.predictor import KINDS
from temper.evaluation.rows import TARGETS, Block, Condition, rows_at
from temper.functional import calibration, scores
from temper.functional.answers import SPAN_SCORES
from temper.functional.entities import RATIOS
from temper.functional.intervals import Centered, Statistic, fewest_rows, score_intervals
from temper.functional.proportions import OfKinds, Proportion, ProportionDifference
from temper.functional.resampling import FloatArray, divide, weighted_mean
from temper.functional.scores import SCORES
from temper.heads import HEADS, MultiLabel, Regression, Tokens

METRICS_OF = {kind: HEADS[kind].metrics for kind in dict.fromkeys(KINDS.values())}
"""Scores that can be a task's primary metric, by the kind of its labels."""

METRICS = tuple(dict.fromkeys(metric for each in METRICS_OF.values() for metric in each))

ScoreEntry = dict[str, Any]


@dataclass(frozen=True)
class Scoring:
    """All rows of an evaluation and how to score them; 0 ``resamples`` give no intervals."""

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
        """Return the scores of a labeled block: the primary metric first, then the usual ones."""
        usual: tuple[str, ...] = Regression.metrics
        if block.classifies:
            usual = ("accuracy", "macro_f1")
        elif block.several:
            usual = MultiLabel.metrics
        elif block.tagged:
            usual = Tokens.metrics if self.metric != "word_accuracy" else ()
        elif SPAN_SCORES[0] in block.measured:
            usual = SPAN_SCORES
        elif TARGETS[0] in block.measured:
            usual = ()
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

        ``rows`` are scored; a resample draws ``drawn`` rows, which include those that set
        thresholds; None draws only the scored ones.
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
        """Add values and intervals to the entries of scores that are defined."""
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

    def entries(
        self, block: Block, names: Iterable[str], *, condition: Condition | None = None
    ) -> list[ScoreEntry]:
        statistics = {name: statistic_of(name, block) for name in names}
        return self.entries_of(condition or block.condition, statistics, rows=len(block))

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
    """Return a labeled block's score, one of `temper.functional.scores.SCORES`, as a statistic."""
    if name == "accuracy":
        return Proportion(block.correct)
    if name in SPAN_SCORES:
        return mean_of(block.measured[name])
    if name == "completion_loss":
        losses, tokens = (block.measured[part] for part in TARGETS[:2])
        return lambda counts: divide(counts @ losses, counts @ tokens)
    if name in RATIOS:
        above, below = (sum(block.measured[part] for part in side) for side in RATIOS[name])
        return lambda counts: divide(counts @ above, counts @ below)
    if name in MultiLabel.metrics:
        measure, applies = scores.measure_of(name), block.applies
        given = block.probabilities if name == "map" else block.predicted
        return lambda counts: measure(applies, given, counts=counts)
    if name in scores.MEASURES:
        measure = scores.measure_of(name)

        def by_row(counts: FloatArray) -> FloatArray:
            return measure(block.label, block.prediction, counts=counts)

        return OfKinds(by_row, block.label) if block.classifies else by_row
    if name in ("ece_10", "ece_15"):
        bins = int(name.removeprefix("ece_"))
        correct, confidence = block.correct, block.confidence
        return Centered(
            lambda counts: calibration.expected_calibration_error(
                correct, confidence, bins=bins, counts=counts
            )
        )
    if name == "adaptive_ece":
        hits, sure = block.correct, block.confidence
        return Centered(
            lambda counts: calibration.adaptive_calibration_error(hits, sure, counts=counts)
        )
    if name == "classwise_ece" and block.several:
        labeled = list(zip(block.applies.T, block.probabilities.T, strict=True))
        return Centered(
            lambda counts: np.mean(
                [
                    calibration.expected_calibration_error(*each, bins=15, counts=counts)
                    for each in labeled
                ],
                axis=0,
            )
        )
    if name == "classwise_ece":
        return Centered(
            OfKinds(
                lambda counts: calibration.classwise_calibration_error(
                    block.label, block.probabilities, counts=counts
                ),
                block.label,
            )
        )
    if name == "brier":
        return mean_of(calibration.brier_of_rows(block.label, block.probabilities))
    if name == "nll":
        return mean_of(block.loss)
    raise ValueError(f"{name!r} is not a score of one labeled block.")


def mean_of(values: FloatArray) -> Statistic:
    """Average a value per row; if one is not finite, every resample's mean is undefined."""
    if not bool(np.isfinite(values).all()):
        return lambda counts: np.full(counts.shape[0], np.nan)
    return lambda counts: weighted_mean(values, counts)


def curve_entries(scoring: Scoring, blocks: Sequence[Block], size: str) -> list[ScoreEntry]:
    """Score each size of one perturbation, and the area from none to the largest size.

    The blocks have the same examples in the same order at each value of the parameter ``size``. The
    result has the task's metric and accuracy (MSE of a regression) of each block, then the area.
    """
    entries = [entry for block in blocks for entry in metric_entries(scoring, block)]
    if blocks:
        first = blocks[0]
        curve = [rows_at(scoring.clean, first), *blocks]
        sizes = [0.0, *(block.condition.parameters.number(size) or 0.0 for block in blocks)]
        condition = first.condition
        entry = scoring.entry(
            replace(condition, parameters=condition.parameters.without(size)),
            "area",
            statistic=area(scoring.metric, curve, sizes),
            rows=len(first),
        )
        entries.append(entry | {"higher_is_better": SCORES[scoring.metric].higher_is_better})
    return entries


def metric_entries(scoring: Scoring, block: Block) -> list[ScoreEntry]:
    """Score the task's metric and the usual one of its kind under one perturbation."""
    usual: tuple[str, ...] = ("accuracy",) if block.classifies else ("mse",)
    if SPAN_SCORES[0] in block.measured:
        usual = SPAN_SCORES
    elif block.several or block.tagged or TARGETS[0] in block.measured:
        usual = ()
    return scoring.entries(block, dict.fromkeys((scoring.metric, *usual)))


def drop_of(metric: str, clean: Block, changed: Block) -> Statistic:
    """Return how much worse the metric got, on the same resamples of the same rows."""
    before, after = statistic_of(metric, clean), statistic_of(metric, changed)
    if isinstance(before, Proportion) and isinstance(after, Proportion):
        return ProportionDifference(before.right, after.right)
    sign = 1.0 if SCORES[metric].higher_is_better else -1.0
    return lambda counts: sign * (before(counts) - after(counts))


def area(metric: str, curve: Sequence[Block], sizes: Sequence[float]) -> Statistic:
    """Return the mean of the metric over the sizes, by the trapezoid rule.

    ``curve`` has the same examples in the same order at each of the distinct sizes.
    """
    order = np.argsort(sizes, kind="stable")
    points = np.asarray(sizes)[order]
    statistics = [statistic_of(metric, curve[index]) for index in order]

    def mean(counts: FloatArray) -> FloatArray:
        heights = np.stack([statistic(counts) for statistic in statistics], axis=-1)
        width = points[-1] - points[0]
        return np.asarray(np.trapezoid(heights, points, axis=-1) / width)

    return mean
