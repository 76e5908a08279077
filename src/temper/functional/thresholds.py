"""Scores of rows that depend on a threshold, which other rows set.

The threshold is as random as the judged rows, so a resample also draws the rows that set it and
recomputes it. With fixed thresholds, two models from the same distribution differ significantly in
up to 70% of one-seed studies. Letters: n rows drawn, m of them set thresholds, K are judged, R
resamples, G groups.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike

from temper.functional.calibration import fit_temperature
from temper.functional.conformal import conformal_quantile, conformal_rank
from temper.functional.proportions import GroupProportions, Proportion
from temper.functional.resampling import FloatArray, IntegerArray, divide, group_sums


@dataclass(frozen=True)
class Thresholds:
    """Conformal thresholds in two folds: each judged row gets that of the other fold's rows.

    Args:
        scores: Scores of the rows that set thresholds, [m]; these are the first rows drawn.
        folds: Fold of each, 0 or 1, [m].
        coverage: Fraction of such rows that must not be above the threshold, in (0, 1).
        indices: Index of each judged row among the rows drawn, [K].
        judged_folds: Fold of each judged row, [K].
    """

    scores: FloatArray
    folds: IntegerArray
    coverage: float
    indices: IntegerArray
    judged_folds: IntegerArray
    # A cache of the last counts and their thresholds: several scores use the same ones in a row.
    _last: list[tuple[FloatArray, list[FloatArray]]] = field(
        default_factory=list, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        for fold in (0, 1):
            conformal_quantile(self.scores[self.folds != fold], coverage=self.coverage)

    def of_fold(self, fold: int, counts: FloatArray) -> FloatArray:
        """Return the threshold that judges a fold's rows in each resample, [R]."""
        if not self._last or self._last[0][0] is not counts:
            both = []
            for judged in (0, 1):
                rows = np.flatnonzero(self.folds != judged)
                drawn = counts[:, rows]
                both.append(resampled_quantiles(self.scores[rows], drawn, coverage=self.coverage))
            self._last[:] = [(counts, both)]
        return self._last[0][1][fold]

    def of_rows(self) -> FloatArray:
        """Return the threshold for each row, from the given rows, [K]."""
        once = np.ones((1, len(self.scores)))
        return np.concatenate([self.of_fold(fold, once) for fold in (0, 1)])[self.judged_folds]


@dataclass(frozen=True)
class Judged:
    """A mean over rows that depends on thresholds: from counts [R, n] to [R] values.

    Args:
        thresholds: The rule that computes the thresholds.
        values: From a threshold and indices of judged rows to one value per such row.
        rows: Indices of the judged rows that are averaged, [k].
        closed: The same fraction at fixed thresholds, for its closed form; None for a mean that is
            not a fraction.
        groups: Group of each of these rows, whole numbers from 0 without a gap, [k]: the score is
            the smallest of the groups' means. None takes one mean over all rows.
    """

    thresholds: Thresholds
    values: Callable[[float, IntegerArray], FloatArray]
    rows: IntegerArray
    closed: Proportion | GroupProportions | None = None
    groups: IntegerArray | None = None

    def __call__(self, counts: FloatArray) -> FloatArray:
        """Return the score on each resample, [R]; NaN without rows."""
        if not len(self.rows):
            return np.full(len(counts), np.nan)
        groups = np.zeros(len(self.rows), np.int64) if self.groups is None else self.groups
        size = int(groups.max()) + 1
        folds, indices = self.thresholds.judged_folds, self.thresholds.indices
        sums = np.zeros((len(counts), size))
        for fold in (0, 1):
            in_fold = np.flatnonzero(folds[self.rows] == fold)
            drawn = counts[:, indices[self.rows[in_fold]]]
            # Resamples share few thresholds, each of which is one row's score.
            limits, which = np.unique(self.thresholds.of_fold(fold, counts), return_inverse=True)
            for number, limit in enumerate(limits.tolist()):
                alike = which == number
                result = self.values(limit, self.rows[in_fold])
                sums[alike] += group_sums(result, groups[in_fold], size, drawn[alike])
        everyone = counts[:, indices[self.rows]]
        means = divide(sums, group_sums(np.ones(len(self.rows)), groups, size, everyone))
        # A group without a row in a resample is ignored, as in `least_accuracy`.
        least = np.where(np.isnan(means), np.inf, means).min(axis=1)
        return np.where(np.isinf(least), np.nan, least)

    @property
    def fewest(self) -> int:
        """The rows of the smallest group, or those that set thresholds if these are fewer."""
        judged = len(self.rows) if self.groups is None else int(np.bincount(self.groups).min())
        return min(judged, len(self.thresholds.scores)) if len(self.rows) else 0


def resampled_quantiles(scores: FloatArray, counts: FloatArray, *, coverage: float) -> FloatArray:
    """Return the conformal quantile of scores [m] in each resample, [R]; see `conformal_quantile`.

    It is infinite if a resample has too few rows for the coverage. ``counts`` are [R, m].
    """
    order = np.argsort(scores, kind="stable")
    reached = np.cumsum(counts[:, order], axis=1)
    totals, which = np.unique(reached[:, -1], return_inverse=True)
    ranks = np.array([conformal_rank(int(total), coverage) for total in totals])[which]
    quantiles = scores[order][(reached >= ranks[:, None]).argmax(axis=1)]
    return np.where(ranks > reached[:, -1], np.inf, quantiles)


@dataclass(frozen=True)
class FittedOn:
    """The rows that a temperature is fitted on, with their derivatives of the loss.

    Args:
        rows: Their indices among the rows drawn, [m].
        slopes: Derivative of each row's NLL with respect to the logarithm of the temperature, at
            the fitted temperature, [m]; they sum to 0.
        curvatures: Expected second derivative, >= 0, [m].
    """

    rows: IntegerArray
    slopes: FloatArray
    curvatures: FloatArray

    @classmethod
    def of(cls, labels: ArrayLike, logits: ArrayLike, rows: IntegerArray) -> FittedOn:
        """Fit the temperature to m rows, and compute their derivatives.

        ``rows`` are their indices among the rows drawn; a logit may be the logarithm of a
        probability.
        """
        array, classes = np.asarray(logits, dtype=np.float64), np.asarray(labels).astype(np.int64)
        inverse = 1.0 / fit_temperature(classes, array).value
        # A class of probability 0 has no weight at any temperature.
        possible = np.isfinite(array)
        values = np.where(possible, array - array.max(axis=1, keepdims=True), 0.0) * inverse
        weights = np.where(possible, np.exp(values), 0.0)
        weights /= weights.sum(axis=1, keepdims=True)
        mean = (weights * values).sum(axis=1)
        chosen = values[np.arange(len(classes)), classes]
        return cls(rows, chosen - mean, (weights * (values - mean[:, None]) ** 2).sum(axis=1))

    def moves(self, counts: FloatArray) -> FloatArray:
        """Return how far each resample moves the logarithm of the temperature, [R]."""
        drawn = counts[:, self.rows]
        curvature = drawn @ self.curvatures
        return -(drawn @ self.slopes) / np.where(curvature > 0, curvature, np.nan)

    @property
    def error(self) -> float:
        """The standard error of the logarithm of the temperature."""
        return float(np.sqrt((self.slopes**2).sum()) / self.curvatures.sum())


@dataclass(frozen=True)
class Refitted:
    """A score after temperature scaling, as a statistic: from counts [R, n] to [R] values.

    Args:
        score: The score at the fitted temperatures, from counts of the scored rows [R, K].
        indices: Index of each scored row among the rows drawn, [K].
        fits: The fit of each fold's temperature, F of them.
        slopes: Derivative of the score with respect to the logarithm of each fold's temperature,
            [F].
        fewest: Rows of the smallest class behind the score.
    """

    score: Callable[[FloatArray], FloatArray]
    indices: IntegerArray
    fits: Sequence[FittedOn]
    slopes: Sequence[float]
    fewest: int

    def __call__(self, counts: FloatArray) -> FloatArray:
        """Return the score on each resample, [R]."""
        values = self.score(counts[:, self.indices])
        for fit, slope in zip(self.fits, self.slopes, strict=True):
            values = values + slope * fit.moves(counts)
        return values
