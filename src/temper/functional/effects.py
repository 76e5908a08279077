"""The difference of two columns over seeds and rows: interval, p, minimum detectable effect.

Letters: n seeds, m columns that vary, two or one, s_c the standard deviation of column c over the
seeds. The difference of two columns over other seeds *and* other rows has the variance
``V = A + max(0, sum_c s_c^2 - sum_c G_c) / n``: A is that of the difference of the means over the
rows, G_c what the rows by themselves make one run of column c vary from seed to seed, both from
resampled rows. The seeds' variance cannot be below that fraction, which hundreds of rows tell; so
three seeds that happen to agree make no verdict. Without rows A and G_c are 0, and the interval is
of other seeds alone.

The reach is that of t, with m (n - 1) degrees of freedom for the part that few seeds tell. Pairing
leaves half of these and wins only if scores of one seed are correlated by about a half or more (in
the kept results the median is 0.2); pooling the variance of *all* columns of a study gives false
verdicts if one column is noisier than the others. docs/evaluation.md has the simulation, ``python
-m dev.benchmarks.power``, and says where the rule does not hold.
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
"""Largest p, after correction, of a difference that is called one."""
POWER = 0.8
"""Fraction of studies in which an effect of the least size that can be seen is seen."""
LEAST_SEEDS = 3
"""Seeds from which on a difference over seeds alone has an interval and a verdict."""
LEAST_SEEDS_WITH_ROWS = 2
"""The same where the variance over rows is known too."""
MOST_SEEDS = 100
"""Largest number of seeds that is tried to detect a difference."""

# Of the rows' fraction of the variance over seeds this much counts as known, which raises the
# degrees of freedom: a variance that cannot be below a known part is surer than its few seeds. With
# more of it dev.benchmarks.power finds more false verdicts than 5%.
_KNOWN = 0.15
# A variance that the rows alone tell has as many degrees of freedom as makes no difference.
_FREEDOM = 10_000.0
# Rows that would change everything leave less than one degree of freedom, but never none.
_LEAST_FREEDOM = 0.1


@dataclass(frozen=True)
class RowVariance:
    """How much a difference of two columns varies with the rows that are scored.

    Args:
        difference: Variance over rows of the difference of the columns' means over their seeds, A.
        columns: For each column, the variance that rows by themselves add to one run from seed to
            seed (row-by-seed interaction), G_c >= 0.
    """

    difference: float
    columns: tuple[float, float]


@dataclass(frozen=True)
class Effect:
    """A difference over seeds, or a mean set against a known number, with its 95% interval.

    Args:
        mean: Mean difference.
        low, high: Its interval.
        p: Two-sided p of a true difference of 0.
        seeds: Number of seeds, n.
        standard_error: Of the mean, ``sqrt(V)``.
        freedom: Degrees of freedom of the interval (Satterthwaite).
        row_variance: Part of V that more seeds would not lower; None if rows were not kept.
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
    def inside_noise(self) -> bool:
        """Whether the interval holds 0."""
        return self.low <= 0.0 <= self.high

    @property
    def least(self) -> float:
        """The smallest true difference that such a study sees four times in five."""
        return _least_shift(self.freedom) * self.standard_error


def seeds_to_detect(
    difference: float,
    *,
    seeds: int,
    standard_error: float,
    freedom: float,
    row_variance: float | None = None,
) -> int | None:
    """Return the approximate number of seeds that detect a true difference at `POWER`.

    The size must be stated beforehand. The mean of a study without a significant difference is
    mostly chance and must not be used as this size.

    Args:
        difference: The true difference, > 0.
        seeds: Seeds of the study that the next three numbers describe, >= 2.
        standard_error: Of its mean difference; see `Effect`, also for the next two.
        freedom: Degrees of freedom of its interval.
        row_variance: Part of the variance that more seeds do not lower.

    Returns:
        The fewest seeds; None if more than `MOST_SEEDS` are needed: more rows may help then.

    Example:
        >>> seeds_to_detect(0.02, seeds=3, standard_error=0.01, freedom=4.0)
        7
    """
    rows, total = row_variance or 0.0, standard_error**2
    least = LEAST_SEEDS if row_variance is None else LEAST_SEEDS_WITH_ROWS
    for count in range(least, MOST_SEEDS + 1):
        # The seeds' part falls as 1 / n, and what is unsure of it as 1 / (n^2 (n - 1)).
        changed = rows + (total - rows) * seeds / count
        growth = (count / seeds) ** 2 * (count - 1) / (seeds - 1)
        ratio = (changed / total) ** 2 * growth if total else 1.0
        # No t test sees less than a normal one, which is quick to say.
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
    """Compare a column with another over the seeds that both have, or its mean with 0.

    Args:
        values: One score a seed, finite.
        others: The other column's at the same seeds; None sets ``values`` against 0.
        rows: What other rows would change; None leaves the seeds alone.
        confidence: Confidence of the interval, in (0, 1).

    Returns:
        The effect; None if the seeds are too few (`LEAST_SEEDS`, or with rows
        `LEAST_SEEDS_WITH_ROWS`), or where nothing varies and the mean is not 0: scores that are
        coarse enough to be equal at every seed say nothing of the noise.

    Raises:
        ValueError: A score is not finite, or the columns have different seeds.

    Example:
        >>> found = effect([0.86, 0.88, 0.87], [0.82, 0.83, 0.81])
        >>> round(found.mean, 3), round(found.low, 3), round(found.high, 3), found.freedom
        (0.05, 0.027, 0.073, 4.0)

    References:
        Satterthwaite, "An Approximate Distribution of Estimates of Variance Components", 1946.
    """
    columns = [values] if others is None else [values, others]
    if len({len(column) for column in columns}) > 1:
        raise ValueError(f"Expected one score a seed of each, got {list(map(len, columns))}.")
    if not all(np.isfinite(column).all() for column in columns):
        raise ValueError(f"Scores must be finite, got {columns}.")
    n = len(values)
    if n < (LEAST_SEEDS if rows is None else LEAST_SEEDS_WITH_ROWS):
        return None
    alike = others is not None and list(values) == list(others)
    if alike and rows is not None and not rows.difference:
        # Alike in every row and seed, as the runs of two columns are whose settings do the same.
        return Effect(0.0, 0.0, 0.0, 1.0, n, 0.0, n - 1.0, 0.0)
    mean = fmean(a - b for a, b in zip(values, others or [0.0] * n, strict=True))
    of_seeds = np.array([_variance(column) for column in columns])
    known = np.zeros(len(columns)) if rows is None else np.array(rows.columns)
    # A column that never varies, such as a known number, adds no degrees of freedom.
    varies = (of_seeds > 0.0) | (known > 0.0)
    luck = 0.0 if rows is None else rows.difference
    total, freedom = combined(of_seeds[varies], known[varies], luck, n)
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
        of_seeds: Variance over the seeds of each column, s_c^2, [..., c].
        known: Part of it that the rows by themselves make, G_c, [..., c] or [c].
        rows: Variance over rows of the difference, A, [...] or a number.
        seeds: Number of seeds, n.

    Returns:
        ``V = A + max(0, S - G) / n`` with S and G summed over the columns, and Satterthwaite's
        ``m (n - 1) V^2 / ((max(S, G) - 0.15 G) / n)^2``, from 0.1 to 10,000; both [...].

    Example:
        >>> total, freedom = combined(np.array([4.0, 4.0]), np.zeros(2), 0.0, 4)
        >>> float(total), float(freedom)
        (2.0, 6.0)
    """
    columns = max(1, of_seeds.shape[-1])
    seen, floor = of_seeds.sum(axis=-1), known.sum(axis=-1)
    total = rows + np.maximum(seen - floor, 0.0) / seeds
    unsure = (np.maximum(seen, floor) - _KNOWN * floor) / seeds
    # Never 0: a variance without an unsure part has as many degrees of freedom as are counted.
    least = np.maximum(total / _FREEDOM, np.finfo(np.float64).tiny)
    ratio = total / np.maximum(unsure, least)
    return total, np.clip(columns * (seeds - 1) * ratio**2, _LEAST_FREEDOM, _FREEDOM)


def _variance(values: Sequence[float]) -> float:
    """Return the sample variance, 0 of values that are equal up to rounding."""
    numbers = [float(value) for value in values]
    if np.ptp(numbers) <= 1e-9 * max(map(abs, numbers)):
        return 0.0
    return variance(numbers)


def _least_shift(freedom: float) -> float:
    """Return the mean, in standard errors, that a t test of some freedom sees at `POWER`."""
    tenths = max(round(freedom, 1), _LEAST_FREEDOM)
    return _shift(tenths) if freedom < 30 else _shift(float(round(freedom)))


@cache
def _shift(freedom: float) -> float:
    reach = scipy.stats.t.ppf(1 - LEVEL / 2, freedom)
    if freedom > 200:
        return float(reach + scipy.stats.norm.ppf(POWER))
    if reach > 100.0:
        # Beside so wide a reach the normal part of t is nothing, and its chi part decides alone.
        return float(reach * (scipy.stats.chi2.ppf(POWER, freedom) / freedom) ** 0.5)
    # The other tail's fraction of the power is below 1e-4 there.
    result = scipy.optimize.brentq(
        lambda shift: scipy.stats.nct.sf(reach, freedom, shift) - POWER, 0.0, 1e4
    )
    return float(result)
