"""Bootstrap of scores that depend on a threshold or temperature fitted on other rows.

Each resample also draws the rows that the threshold is fitted on, and refits it. With fixed
thresholds, up to 70% of one-seed studies find a significant difference between two models of the
same distribution. Letters: n rows drawn, of which the first m are fitted on and K are scored; R
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
    """Conformal thresholds by two-fold cross-fitting: each scored row gets that of the other fold.

    Args:
        scores: Scores of the rows that thresholds are fitted on, [m].
        folds: Fold of each of these rows, 0 or 1, [m].
        coverage: Fraction of rows that must be at or below the threshold, in (0, 1).
        indices: Index of each scored row among the rows drawn, [K].
        judged_folds: Fold of each scored row, 0 or 1, [K].
    """

    scores: FloatArray
    folds: IntegerArray
    coverage: float
    indices: IntegerArray
    judged_folds: IntegerArray
    # Caches the thresholds of the last counts: several scores are computed on the same counts.
    _last: list[tuple[FloatArray, list[FloatArray]]] = field(
        default_factory=list, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        for fold in (0, 1):
            conformal_quantile(self.scores[self.folds != fold], coverage=self.coverage)

    def of_fold(self, fold: int, counts: FloatArray) -> FloatArray:
        """Return the threshold for the scored rows of a fold in each resample, [R]."""
        if not self._last or self._last[0][0] is not counts:
            both = []
            for judged in (0, 1):
                rows = np.flatnonzero(self.folds != judged)
                drawn = counts[:, rows]
                both.append(resampled_quantiles(self.scores[rows], drawn, coverage=self.coverage))
            self._last[:] = [(counts, both)]
        return self._last[0][1][fold]

    def of_rows(self) -> FloatArray:
        """Return the threshold of each scored row without resampling, [K]."""
        once = np.ones((1, len(self.scores)))
        return np.concatenate([self.of_fold(fold, once) for fold in (0, 1)])[self.judged_folds]


@dataclass(frozen=True)
class Judged:
    """A mean over rows that depends on thresholds, as a function of resample counts.

    Args:
        thresholds: The thresholds, which each resample refits.
        values: Function from a threshold and indices of scored rows to one value per row.
        rows: Indices among the K scored rows of those that are averaged, [k].
        closed: The proportion at fixed thresholds, which has a closed form; None if the mean is no
            proportion.
        groups: Group of each averaged row, numbered from 0 without gaps, [k]; the score is the
            lowest mean of any group. None averages over all rows.
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
            # Many resamples share a threshold, because each threshold is the score of a row.
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
        """The number of rows in the smallest group, or that are fitted on if these are fewer."""
        judged = len(self.rows) if self.groups is None else int(np.bincount(self.groups).min())
        return min(judged, len(self.thresholds.scores)) if len(self.rows) else 0


def resampled_quantiles(scores: FloatArray, counts: FloatArray, *, coverage: float) -> FloatArray:
    """Return the `conformal_quantile` of scores [m] in each resample, [R].

    ``counts`` [R, m] are how often each row is drawn. A quantile is infinite if a resample has too
    few rows for the coverage.
    """
    order = np.argsort(scores, kind="stable")
    reached = np.cumsum(counts[:, order], axis=1)
    totals, which = np.unique(reached[:, -1], return_inverse=True)
    ranks = np.array([conformal_rank(int(total), coverage) for total in totals])[which]
    quantiles = scores[order][(reached >= ranks[:, None]).argmax(axis=1)]
    return np.where(ranks > reached[:, -1], np.inf, quantiles)


@dataclass(frozen=True)
class FittedOn:
    """Rows that a temperature is fitted on, and the derivatives of their loss.

    Args:
        rows: Indices of these rows among the rows drawn, [m].
        slopes: Derivative of each row's NLL by the log temperature at the optimum, [m]; they sum to
            0.
        curvatures: Expected second derivative of each row's NLL, >= 0, [m].
    """

    rows: IntegerArray
    slopes: FloatArray
    curvatures: FloatArray

    @classmethod
    def of(cls, labels: ArrayLike, logits: ArrayLike, rows: IntegerArray) -> FittedOn:
        """Fit a temperature to m rows and compute the derivatives.

        Logits may be log-probabilities; for ``rows`` see the class.
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
        """Return the change of the log temperature in each resample, to first order, [R]."""
        drawn = counts[:, self.rows]
        curvature = drawn @ self.curvatures
        return -(drawn @ self.slopes) / np.where(curvature > 0, curvature, np.nan)

    @property
    def error(self) -> float:
        """Standard error of the log temperature."""
        return float(np.sqrt((self.slopes**2).sum()) / self.curvatures.sum())


@dataclass(frozen=True)
class Refitted:
    """A score after temperature scaling, as a function of resample counts.

    Args:
        score: The score at the original temperatures, from counts of the scored rows [R, K] to [R].
        indices: Index of each scored row among the rows drawn, [K].
        fits: Fit of the temperature of each of F folds.
        slopes: Derivative of the score by the log temperature of each fold, [F].
        fewest: Number of rows in the smallest class.
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
