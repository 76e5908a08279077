"""Proportions of rows and their closed-form intervals.

The percentile bootstrap of a proportion is too narrow on few rows and has no width at 0 and 1:
every resample of 120 rows that are all right is all right. A *statistic* here is a function of
resample counts [R, n], how often each row is drawn, to [R] values. Letters: n rows, R resamples.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from temper.functional.resampling import FloatArray, IntegerArray, divide, weighted_mean
from temper.functional.scores import least_accuracy, mean_group_accuracy
from temper.lazy import scipy


@dataclass(frozen=True)
class Interval:
    """An interval of a score or a difference.

    Args:
        low: Lower end, None if no interval can be given.
        high: Upper end, None if no interval can be given.
        undefined: Fraction of bootstrap resamples on which the score was undefined.
        p: Two-sided p-value of the hypothesis that a difference is 0; None for a score.
    """

    low: float | None
    high: float | None
    undefined: float = 0.0
    p: float | None = None


@dataclass(frozen=True)
class OfKinds:
    """A statistic whose uncertainty depends on the smallest of several kinds of rows.

    Args:
        measure: The statistic.
        kinds: Kind of each row, such as its class, [n].
    """

    measure: Callable[[FloatArray], FloatArray]
    kinds: NDArray[Any]

    def __call__(self, counts: FloatArray) -> FloatArray:
        return self.measure(counts)

    @property
    def fewest(self) -> int:
        """Number of rows of the rarest kind; 0 without rows."""
        return int(np.unique(self.kinds, return_counts=True)[1].min(initial=len(self.kinds)))


@dataclass(frozen=True)
class Proportion:
    """The proportion of rows that are right, as a statistic.

    ``right`` [n] is 0 or 1. ``among`` [n] is 1 for the rows that count; None counts all.
    """

    right: FloatArray
    among: FloatArray | None = None

    def __call__(self, counts: FloatArray) -> FloatArray:
        """Return the proportion on each resample, [R]; NaN without rows."""
        if self.among is None:
            return weighted_mean(self.right, counts)
        return divide(counts @ (self.right * self.among), counts @ self.among)

    @property
    def fewest(self) -> int:
        """Number of rows that count."""
        return len(self.right) if self.among is None else int(self.among.sum())

    def interval(self) -> Interval:
        """Return Wilson's 95% interval."""
        counted = self.right if self.among is None else self.right * self.among
        return Interval(*wilson(float(counted.sum()), self.fewest))


@dataclass(frozen=True)
class ProportionDifference:
    """The difference ``first - second`` of two proportions of the same rows, as a statistic.

    Both are 0 or 1, [n].
    """

    first: FloatArray
    second: FloatArray

    def __call__(self, counts: FloatArray) -> FloatArray:
        return weighted_mean(self.first - self.second, counts)

    @property
    def fewest(self) -> int:
        return len(self.first)

    def interval(self) -> Interval:
        """Return Bonett and Price's 95% interval and p-value."""
        return paired_proportions(self.first, self.second)


@dataclass(frozen=True)
class GroupProportions:
    """The lowest or the mean accuracy of groups of rows, as a statistic.

    ``right`` [n] is 0 or 1; ``groups`` [n] numbers the groups from 0 without gaps. ``least``
    selects the lowest accuracy, otherwise it is the unweighted mean.

    Raises:
        ValueError: If ``groups`` are not whole numbers.
    """

    right: FloatArray
    groups: IntegerArray
    least: bool

    def __post_init__(self) -> None:
        if self.groups.dtype.kind not in "iu":
            raise ValueError(
                f"Groups must be whole numbers from 0 on, got {self.groups.dtype}. Number the "
                "groups, for example with np.unique(groups, return_inverse=True)."
            )

    def __call__(self, counts: FloatArray) -> FloatArray:
        measure = least_accuracy if self.least else mean_group_accuracy
        return measure(self.right, self.groups, counts=counts)

    @property
    def fewest(self) -> int:
        """Number of rows of the smallest group; 0 without rows."""
        return int(np.bincount(self.groups).min(initial=len(self.right)))

    def interval(self) -> Interval:
        """Return a 95% interval that combines the Wilson intervals of the groups.

        For the lowest accuracy, it reaches from the smallest lower end to the smallest upper end.
        The upper ends are at level ``alpha / G``, because any of the G groups may be lowest by
        chance. For the mean, the distances from the groups' proportions to their ends add like
        standard errors (MOVER).
        """
        if not len(self.right):
            return Interval(None, None)
        rows = np.bincount(self.groups)
        hits = np.bincount(self.groups, weights=self.right).astype(np.float64)
        low, high = wilson_ends(hits, rows)
        if self.least:
            corrected = 1.0 - (1.0 - 0.95) / len(rows)
            _, high = wilson_ends(hits, rows, confidence=corrected)
            return Interval(float(low.min()), float(high.min()))
        proportions = hits / rows
        mean = float(proportions.mean())
        below = math.sqrt(float(((proportions - low) ** 2).sum())) / len(rows)
        above = math.sqrt(float(((high - proportions) ** 2).sum())) / len(rows)
        return Interval(max(0.0, mean - below), min(1.0, mean + above))


def wilson(right: float, rows: int) -> tuple[float, float]:
    """Return Wilson's 95% interval of the proportion ``right / rows``.

    References:
        Wilson, "Probable Inference, the Law of Succession, and Statistical Inference", 1927.
    """
    if rows < 1 or not 0 <= right <= rows:
        raise ValueError(f"Expected 0 <= right <= rows and rows >= 1, got {right} of {rows}.")
    low, high = wilson_ends(np.array([right]), np.array([rows]))
    return float(low[0]), float(high[0])


def wilson_ends(
    right: FloatArray, rows: IntegerArray, *, confidence: float = 0.95
) -> tuple[FloatArray, FloatArray]:
    """Return the lower and upper ends of Wilson's intervals of several proportions."""
    z = _quantile(confidence)
    proportion, weight = right / rows, z * z / rows
    middle = (proportion + weight / 2) / (1 + weight)
    reach = z / (1 + weight) * np.sqrt(proportion * (1 - proportion) / rows + weight / (4 * rows))
    # With 0 or n right, one end is exactly 0 or 1; rounding would miss it by an ulp.
    low = np.where(right == 0, 0.0, middle - reach)
    return low, np.where(right == rows, 1.0, middle + reach)


def paired_proportions(first: FloatArray, second: FloatArray) -> Interval:
    """Return the 95% interval and p of ``first - second``, proportions of the same rows.

    This is Bonett and Price's adjusted Wald interval. With b rows that only the first has right and
    c rows that only the second has right, ``p_b = (b + 1) / (n + 2)``, ``p_c = (c + 1) / (n + 2)``,
    and the interval is ``p_b - p_c +- z sqrt((p_b + p_c - (p_b - p_c)^2) / (n + 2))``.

    Both arguments are 0 or 1, [n], n >= 1. The interval is clipped to [-1, 1]; p is two-sided.

    References:
        Bonett and Price, "Adjusted Wald Confidence Interval for a Difference of Binomial
        Proportions Based on Paired Data", 2012.
    """
    if not len(first) or first.shape != second.shape:
        raise ValueError(
            f"Expected two arrays of the same length >= 1, got {list(first.shape)} and "
            f"{list(second.shape)}."
        )
    rows = len(first) + 2
    only_first = (float(((first == 1) & (second == 0)).sum()) + 1) / rows
    only_second = (float(((first == 0) & (second == 1)).sum()) + 1) / rows
    middle = only_first - only_second
    error = math.sqrt((only_first + only_second - middle**2) / rows)
    reach = _quantile(0.95) * error
    p = 2.0 * float(scipy.stats.norm.sf(abs(middle) / error))
    return Interval(max(-1.0, middle - reach), min(1.0, middle + reach), p=p)


def _quantile(confidence: float) -> float:
    """Return the half width of a two-sided normal interval in standard errors."""
    return float(scipy.stats.norm.ppf(0.5 + confidence / 2))
