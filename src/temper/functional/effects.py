"""The difference of two methods over seeds and rows: interval, p, minimum detectable effect.

Letters: n seeds; m methods whose scores vary (1 if a method is compared with a fixed number); s_c
the standard deviation of method c over the seeds. Over other seeds *and* other test rows, the
difference of two methods has the variance ``V = A + max(0, sum_c s_c^2 - sum_c G_c) / n``. A is the
variance over rows of the difference of the means. G_c is the part of ``s_c^2`` that is due to the
finite number of rows. Both come from a bootstrap over rows. G_c is a lower bound of ``s_c^2``, so
three seeds that agree by chance do not make a difference significant. Without results by row, A and
G_c are 0, and the interval covers only other seeds.

The interval is a t interval, with m (n - 1) degrees of freedom for the part of V that is estimated
from seeds. A paired test has half of these. It is better only if the two scores of a seed are
correlated by about 0.5 or more (the median in our results is 0.2). Pooling the variance of *all*
methods of a study gives false positives if one method is noisier than the others. docs/evidence.md
has a simulation (``python -m dev.benchmarks.power``) and the limits of this rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from statistics import fmean, variance

import numpy as np

from temper.functional.resampling import FloatArray
from temper.lazy import scipy

LEVEL = 0.05
"""Significance level: largest corrected p of a significant difference."""
POWER = 0.8
"""Power: fraction of studies that detect an effect of the minimum detectable size."""
LEAST_SEEDS = 3
"""Minimum number of seeds for an interval and a verdict without the variance over rows."""
LEAST_SEEDS_WITH_ROWS = 2
"""Minimum number of seeds if the variance over rows is known."""
MOST_SEEDS = 100
"""Largest number of seeds that `seeds_to_detect` tries."""

# This fraction of the rows' part of the variance over seeds counts as known, which raises the
# degrees of freedom: a variance with a known lower bound is more certain than one from a few seeds.
# With a larger fraction, dev.benchmarks.power finds more than 5% false positives.
_KNOWN = 0.15
# Degrees of freedom of a variance that is known from rows alone; practically infinite.
_FREEDOM = 10_000.0
# Lower limit of the degrees of freedom, if almost all of the variance is uncertain.
_LEAST_FREEDOM = 0.1


@dataclass(frozen=True)
class RowVariance:
    """The variance over rows of a difference of two methods.

    Args:
        difference: A, the variance over rows of the difference of the methods' means over seeds.
        columns: G_c >= 0 of each method, the part of its variance over seeds that is due to the
            finite number of rows (row-by-seed interaction).
    """

    difference: float
    columns: tuple[float, float]


@dataclass(frozen=True)
class Effect:
    """The mean difference of two methods over seeds, or the mean of one, with its interval.

    Args:
        mean: Mean difference.
        low, high: Confidence interval of the mean.
        p: Two-sided p-value of the hypothesis that the true difference is 0.
        seeds: Number of seeds, n.
        standard_error: Standard error of the mean, ``sqrt(V)``.
        freedom: Degrees of freedom of the interval (Satterthwaite).
        row_variance: Part of V that more seeds would not reduce; None without results by row.
    """

    mean: float
    low: float
    high: float
    p: float
    seeds: int
    standard_error: float
    freedom: float
    row_variance: float | None = None

    @property
    def includes_zero(self) -> bool:
        """Whether the interval contains 0."""
        return self.low <= 0.0 <= self.high

    @property
    def least(self) -> float:
        """Minimum detectable effect: a true difference that is found with probability `POWER`."""
        return _least_shift(self.freedom) * self.standard_error


def seeds_to_detect(
    difference: float,
    *,
    seeds: int,
    standard_error: float,
    freedom: float,
    row_variance: float | None = None,
) -> int | None:
    """Estimate how many seeds detect a true difference with probability `POWER`.

    Choose the difference before the study. Do not pass the observed mean of a study without a
    significant difference, which is mostly chance.

    Args:
        difference: The true difference, > 0.
        seeds: Number of seeds of a finished study, >= 2. The other arguments describe it.
        standard_error: Standard error of its mean difference; see `Effect`.
        freedom: Degrees of freedom of its interval.
        row_variance: Part of its variance that more seeds do not reduce.

    Returns:
        The minimum number of seeds; None if it exceeds `MOST_SEEDS`. Then use more test rows.

    Example:
        >>> seeds_to_detect(0.02, seeds=3, standard_error=0.01, freedom=4.0)
        7
    """
    rows, total = row_variance or 0.0, standard_error**2
    least = LEAST_SEEDS if row_variance is None else LEAST_SEEDS_WITH_ROWS
    for count in range(least, MOST_SEEDS + 1):
        # The part of the variance from seeds falls as 1 / n, and the variance of its estimate as
        # 1 / (n^2 (n - 1)).
        changed = rows + (total - rows) * seeds / count
        growth = (count / seeds) ** 2 * (count - 1) / (seeds - 1)
        ratio = (changed / total) ** 2 * growth if total else 1.0
        # Quick check: a t test needs at least the difference of a z test, 2.8 standard errors.
        if 2.8 * changed**0.5 > difference:
            continue
        if _least_shift(min(freedom * ratio, _FREEDOM)) * changed**0.5 <= difference:
            return count
    return None


def effect(
    values: Sequence[float],
    others: Sequence[float] | None = None,
    *,
    rows: RowVariance | None = None,
    confidence: float = 0.95,
) -> Effect | None:
    """Compare two methods over the same seeds, or the mean of one with 0.

    Args:
        values: One score per seed, finite.
        others: Scores of the other method at the same seeds; None compares ``values`` with 0.
        rows: Variance over test rows; None ignores it.
        confidence: Confidence of the interval, in (0, 1).

    Returns:
        The effect; None with fewer seeds than `LEAST_SEEDS` (`LEAST_SEEDS_WITH_ROWS` if ``rows`` is
        given). Also None if the methods differ but neither varies over the seeds, because then the
        noise is unknown.

    Example:
        >>> found = effect([0.86, 0.88, 0.87], [0.82, 0.83, 0.81])
        >>> round(found.mean, 3), round(found.low, 3), round(found.high, 3), found.freedom
        (0.05, 0.027, 0.073, 4.0)

    References:
        Satterthwaite, "An Approximate Distribution of Estimates of Variance Components", 1946.
    """
    columns = [values] if others is None else [values, others]
    if len({len(column) for column in columns}) > 1:
        raise ValueError(f"Expected as many scores of each method, got {list(map(len, columns))}.")
    if not all(np.isfinite(column).all() for column in columns):
        raise ValueError(f"Scores must be finite, got {columns}.")
    n = len(values)
    if n < (LEAST_SEEDS if rows is None else LEAST_SEEDS_WITH_ROWS):
        return None
    alike = others is not None and list(values) == list(others)
    if alike and rows is not None and not rows.difference:
        # Equal in every row and seed, as for two methods with equivalent settings.
        return Effect(0.0, 0.0, 0.0, 1.0, n, 0.0, n - 1.0, 0.0)
    mean = fmean(a - b for a, b in zip(values, others or [0.0] * n, strict=True))
    of_seeds = np.array([_variance(column) for column in columns])
    known = np.zeros(len(columns)) if rows is None else np.array(rows.columns)
    # A method that never varies, such as a known number, adds no degrees of freedom.
    varies = (of_seeds > 0.0) | (known > 0.0)
    row_variance = 0.0 if rows is None else rows.difference
    total, freedom = combined(of_seeds[varies], known[varies], row_variance, n)
    error, degrees = float(total) ** 0.5, float(freedom)
    if error == 0.0:
        largest = max(abs(float(value)) for column in columns for value in column)
        if abs(mean) > 1e-9 * largest:
            return None
        return Effect(0.0, 0.0, 0.0, 1.0, n, 0.0, n - 1.0, None if rows is None else 0.0)
    reach = float(scipy.stats.t.ppf(0.5 + confidence / 2, degrees)) * error
    p = 2.0 * float(scipy.stats.t.sf(abs(mean) / error, degrees))
    kept = None if rows is None else max(0.0, rows.difference - float(known.sum()) / n)
    return Effect(mean, mean - reach, mean + reach, p, n, error, degrees, kept)


def combined(
    of_seeds: FloatArray, known: FloatArray, rows: FloatArray | float, seeds: int
) -> tuple[FloatArray, FloatArray]:
    """Return the variance of a difference of means, and its degrees of freedom.

    Args:
        of_seeds: s_c^2, the variance of each method over seeds, [..., c].
        known: G_c, its part that is due to the rows, [..., c] or [c].
        rows: A, the variance of the difference over rows, [...] or a number.
        seeds: Number of seeds, n.

    Returns:
        ``V = A + max(0, S - G) / n`` with S and G summed over the methods, and Satterthwaite's
        ``m (n - 1) V^2 / ((max(S, G) - 0.15 G) / n)^2``, from 0.1 to 10,000; both [...].
    """
    columns = max(1, of_seeds.shape[-1])
    seen, floor = of_seeds.sum(axis=-1), known.sum(axis=-1)
    total = rows + np.maximum(seen - floor, 0.0) / seeds
    unsure = (np.maximum(seen, floor) - _KNOWN * floor) / seeds
    # Never 0: a variance without an uncertain part has the maximum degrees of freedom.
    least = np.maximum(total / _FREEDOM, np.finfo(np.float64).tiny)
    ratio = total / np.maximum(unsure, least)
    return total, np.clip(columns * (seeds - 1) * ratio**2, _LEAST_FREEDOM, _FREEDOM)


def _variance(values: Sequence[float]) -> float:
    """Return the sample variance; 0 if the values are equal up to rounding."""
    numbers = [float(value) for value in values]
    if np.ptp(numbers) <= 1e-9 * max(map(abs, numbers)):
        return 0.0
    return variance(numbers)


def _least_shift(freedom: float) -> float:
    """Return the true mean, in standard errors, that a t test detects at `POWER`."""
    tenths = max(round(freedom, 1), _LEAST_FREEDOM)
    return _shift(tenths) if freedom < 30 else _shift(float(round(freedom)))


@cache
def _shift(freedom: float) -> float:
    reach = scipy.stats.t.ppf(1 - LEVEL / 2, freedom)
    if freedom > 200:
        return float(reach + scipy.stats.norm.ppf(POWER))
    if reach > 100.0:
        # The critical value is so large that only the chi part of t matters, not the normal part.
        return float(reach * (scipy.stats.chi2.ppf(POWER, freedom) / freedom) ** 0.5)
    # The other rejection region adds less than 1e-4 to the power.
    result = scipy.optimize.brentq(
        lambda shift: scipy.stats.nct.sf(reach, freedom, shift) - POWER, 0.0, 1e4
    )
    return float(result)
