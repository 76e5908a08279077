"""Uncertainty of scores, and significance of differences between models.

For rows: closed forms for proportions (`temper.functional.proportions`), the bootstrap for other
scores, and the wider of both for proportions that depend on a threshold. For several methods:
Holm's correction. For seeds see `temper.functional.effects`. Letters: n rows, R resamples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean

import numpy as np
from numpy.typing import ArrayLike, NDArray

from temper.functional.proportions import (
    GroupProportions,
    Interval,
    OfKinds,
    Proportion,
    ProportionDifference,
    paired_proportions,
)
from temper.functional.resampling import FloatArray, weighted_mean
from temper.functional.thresholds import Judged, Refitted
from temper.seeding import derive_seed

CLOSED = (Proportion, ProportionDifference, GroupProportions)
"""Statistics whose interval has a closed form."""

Statistic = Callable[[FloatArray], FloatArray]
"""Score as a function of resample counts [R, n], how often each row is drawn: to [R] values."""


@dataclass(frozen=True)
class Centered:
    """A score that the bootstrap biases upwards, such as the ECE.

    Random deviations of a bin increase its absolute gap on average. The score of the rows contains
    this bias once, the score of a resample twice. So intervals are shifted by the bootstrap's
    estimate of the bias, the mean over resamples minus the score.
    """

    statistic: Statistic

    def __call__(self, counts: FloatArray) -> FloatArray:
        """Return the score on each resample, [R], without a correction."""
        return self.statistic(counts)


# Counts per block, to limit memory: a million doubles are 8 MB, and a correlation needs ten arrays.
_BLOCK = 1_000_000


# Computed, because 0.025 is not exactly (1 - 0.95) / 2 in double precision.
_EDGE = (1.0 - 0.95) / 2
_ENDS = [_EDGE, 1.0 - _EDGE]


@dataclass(frozen=True)
class Improvement:
    """The average relative improvement over the baseline, see `average_relative_improvement`.

    Args:
        value: Mean over perspectives in percent; None if it is undefined.
        parts: Perspective -> its improvement in percent, without undefined ones.
        reasons: Why perspectives are absent, one sentence each.
    """

    value: float | None
    parts: dict[str, float]
    reasons: tuple[str, ...] = ()


def resampled(*statistics: Statistic, rows: int, resamples: int, seed: int) -> list[FloatArray]:
    """Compute several statistics on the same resamples of the rows, [R] values each.

    Undefined values are NaN. The same seed and number of rows give the same resamples, so the
    values of two models are paired.
    """
    result = [
        [np.atleast_1d(statistic(counts)) for statistic in statistics]
        for counts in resample_counts(rows, resamples=resamples, seed=seed)
    ]
    return [np.concatenate(values) for values in zip(*result, strict=True)]


def resample_counts(rows: int, *, resamples: int, seed: int) -> Iterator[FloatArray]:
    """Draw bootstrap resamples: yield how often each row is drawn, in blocks [r, n].

    Example:
        >>> [block.sum(axis=1).tolist() for block in resample_counts(4, resamples=2, seed=0)]
        [[4.0, 4.0]]
    """
    if rows < 1 or resamples < 1:
        raise ValueError(f"A bootstrap needs rows and resamples >= 1, got {rows} and {resamples}.")
    draws = np.random.default_rng(derive_seed(seed, "bootstrap", rows))
    fractions = np.full(rows, 1.0 / rows)
    block = max(1, _BLOCK // rows)
    for start in range(0, resamples, block):
        counts = draws.multinomial(rows, fractions, size=min(block, resamples - start))
        yield counts.astype(np.float64)


def score_intervals(
    statistics: Sequence[Statistic],
    rows: int,
    *,
    resamples: int,
    seed: int,
) -> list[Interval]:
    """Return the 95% interval of each of several scores on the same rows.

    - A proportion of rows has a closed form, any other score the percentile bootstrap.
    - A proportion that depends on thresholds has the wider of both: the closed form is valid for
      few rows, and only the bootstrap includes the uncertainty of the thresholds.
    - The interval of a `Centered` score is shifted by its bias.

    Resamples on which the score is undefined (for instance without an OOD row) are left out. The
    interval is None if these are more than 5%, or if all resamples have the same score, such as an
    AUROC of 1.

    References:
        Efron and Tibshirani, "An Introduction to the Bootstrap", 1993, ch. 13.
    """
    drawn = [statistic for statistic in statistics if not isinstance(statistic, CLOSED)]
    values = iter(resampled(*drawn, rows=rows, resamples=resamples, seed=seed) if drawn else ())
    result = []
    for statistic in statistics:
        if isinstance(statistic, CLOSED):
            result.append(statistic.interval())
            continue
        if isinstance(statistic, Centered):
            score = statistic(np.ones((1, rows)))
            moved = np.maximum(_centered(next(values), score), 0.0)
            result.append(_interval(moved))
            continue
        interval = _interval(next(values))
        if isinstance(statistic, Judged) and statistic.closed is not None:
            interval = _wider(interval, statistic.closed.interval())
        result.append(interval)
    return result


def difference_intervals(
    pairs: Sequence[tuple[Statistic, Statistic]], rows: int, *, resamples: int, seed: int
) -> list[Interval]:
    """Return the 95% interval and p of ``first - second`` for each pair of scores of the same rows.

    Two proportions have a closed form; other pairs are bootstrapped on the same resamples.
    Proportions that depend on thresholds, and `Centered` scores, are treated as in
    `score_intervals`.

    The p of a bootstrap, ``2 min(P(d <= 0), P(d >= 0))``, is limited to [1 / resamples, 1].
    """
    closed = [_paired(first, second) for first, second in pairs]
    drawn = [
        partial(_apart, *pair)
        for pair, known in zip(pairs, closed, strict=True)
        if known is None or isinstance(pair[0], Judged)
    ]
    values = iter(resampled(*drawn, rows=rows, resamples=resamples, seed=seed) if drawn else ())
    result = []
    for (first, second), known in zip(pairs, closed, strict=True):
        if known is not None and not isinstance(first, Judged):
            result.append(known)
            continue
        apart = next(values)
        if isinstance(first, Centered):
            apart = _centered(apart, _apart(first, second, np.ones((1, rows))))
        interval = _with_p(apart)
        result.append(interval if known is None else _wider(interval, known))
    return result


def mean_difference_interval(
    first: ArrayLike, second: ArrayLike, *, resamples: int, seed: int
) -> Interval:
    """Return the 95% interval of the mean of ``first - second`` over the same rows.

    Example:
        >>> found = mean_difference_interval([1.0, 2.0] * 10, [0.0] * 20, resamples=100, seed=0)
        >>> found.low > 1 and found.high < 2
        True
    """
    first, second = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    scores = partial(weighted_mean, first), partial(weighted_mean, second)
    (result,) = difference_intervals([scores], len(first), resamples=resamples, seed=seed)
    return result


def _paired(first: Statistic, second: Statistic) -> Interval | None:
    """Return the closed-form interval for two proportions of the same rows, else None."""
    if isinstance(first, Judged) and isinstance(second, Judged):
        if first.closed is None or second.closed is None:
            return None
        return _paired(first.closed, second.closed)
    if not isinstance(first, Proportion) or not isinstance(second, Proportion):
        return None
    # With `among`, each model has its own rows, so the proportions are not paired.
    apart = first.among is not None or second.among is not None
    return None if apart else paired_proportions(first.right, second.right)


def _apart(first: Statistic, second: Statistic, counts: FloatArray) -> FloatArray:
    return first(counts) - second(counts)


def _centered(values: FloatArray, score: FloatArray) -> FloatArray:
    """Shift resampled values so that their mean is the score of the original rows."""
    defined = values[np.isfinite(values)]
    return values - (defined.mean() - score) if len(defined) else values


def _wider(first: Interval, second: Interval) -> Interval:
    """Return an interval that contains both, with the larger p; ignore an undefined one."""
    if first.low is None or first.high is None or second.low is None or second.high is None:
        return second if first.low is None else first
    both = [item.p for item in (first, second) if item.p is not None]
    low, high = min(first.low, second.low), max(first.high, second.high)
    return Interval(low, high, first.undefined, max(both, default=None))


def _with_p(values: FloatArray) -> Interval:
    """Return the interval and the p-value of resampled differences."""
    result = _interval(values)
    if result.low is None:
        return result
    defined = values[~np.isnan(values)]
    tail = 2.0 * min(float((defined <= 0).mean()), float((defined >= 0).mean()))
    return replace(result, p=min(1.0, max(tail, 1.0 / len(defined))))


def fewest_rows(statistic: Statistic, rows: int) -> int:
    """Return the number of rows in the smallest class or group that a score averages separately.

    It is ``rows`` if the score has no classes or groups.

    Example:
        >>> fewest_rows(OfKinds(lambda counts: counts[:, 0], np.array([0, 1, 1])), 3)
        1
    """
    if isinstance(statistic, Centered):
        return fewest_rows(statistic.statistic, rows)
    if isinstance(statistic, (*CLOSED, OfKinds, Judged, Refitted)):
        return statistic.fewest
    return rows


def standard_error(values: ArrayLike) -> float | None:
    """Return the standard error of a mean, ``s / sqrt(n)`` with the sample deviation s (n - 1).

    It is None for fewer than two rows or non-finite values.
    """
    array = np.asarray(values, dtype=np.float64)
    if len(array) < 2 or not bool(np.isfinite(array).all()):
        return None
    result = float(array.std(ddof=1)) / len(array) ** 0.5
    return result if np.isfinite(result) else None


LEAST_ROWS = 50
"""Minimum number of rows for a verdict on a difference, in the smallest class or group.

It comes from the simulation `dev.benchmarks.verdicts` (docs/evidence.md).
"""


def holm(p_values: Sequence[float]) -> list[float]:
    """Correct p-values for multiple comparisons with Holm's method.

    ``p'_(i) = max_{j <= i} min(1, (m - j + 1) p_(j))`` over the m sorted values.

    References:
        Holm, "A simple sequentially rejective multiple test procedure", 1979.
    """
    if not all(0.0 <= value <= 1.0 for value in p_values):
        raise ValueError(f"p values must be in [0, 1], got {list(p_values)}.")
    corrected = [0.0] * len(p_values)
    highest = 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[index]))
        corrected[index] = highest
    return corrected


def relative_improvement(score: float, reference: float, perfect: float) -> float:
    """Return the improvement over the baseline in percent of the largest possible one.

    ``100 (s - s_reference) / (s_perfect - s_reference)``; also valid for scores where lower is
    better.

    Raises:
        ValueError: The baseline is perfect, so nothing can improve on it.

    Example:
        >>> relative_improvement(0.9, 0.8, 1.0), relative_improvement(0.05, 0.1, 0.0)
        (50.0, 50.0)
    """
    if reference == perfect:
        raise ValueError(
            f"The baseline is perfect ({perfect:g}): the relative improvement is undefined."
        )
    # Rounded, because tables would cut 49.99999999999999, the result of (0.9 - 0.8) / (1 - 0.8).
    return round(100.0 * (score - reference) / (perfect - reference), 10)


def average_relative_improvement(
    scores: Mapping[str, float | None],
    reference: Mapping[str, float | None],
    *,
    perfect: Mapping[str, float],
) -> Improvement:
    """Average the relative improvement over the baseline over perspectives.

    A perspective without a score of both is left out, with a reason. The average is undefined if
    the baseline is perfect on one.

    ``scores`` and ``reference`` (the baseline) have the mean over seeds by perspective, such as
    ``shift``; ``perfect`` has the perfect score of each perspective to average.

    References:
        RoAST (arXiv 2312.04032), Section 5.1; UEGR (arXiv 2503.16550), Table III.
    """
    parts: dict[str, float] = {}
    reasons: list[str] = []
    undefined = False
    for part, best in perfect.items():
        score, base = scores.get(part), reference.get(part)
        if score is None or base is None:
            who = "the model" if score is None else "the baseline"
            reasons.append(f"{part} is left out: {who} has no score for it.")
        elif base == best:
            undefined = True
            reasons.append(f"{part}: the baseline is perfect, so the improvement is undefined.")
        else:
            parts[part] = relative_improvement(score, base, best)
    value = None if undefined or not parts else fmean(parts.values())
    return Improvement(value, parts, tuple(reasons))


def _interval(values: ArrayLike) -> Interval:
    """Return the 95% percentile interval of the defined resamples."""
    array: NDArray[np.float64] = np.asarray(values, dtype=np.float64)
    defined = array[np.isfinite(array)]
    undefined = (len(array) - len(defined)) / len(array)
    # The last condition: all resamples have the same score, up to rounding.
    if undefined > 0.05 or np.ptp(defined) <= 1e-12 * np.abs(defined).max():
        return Interval(None, None, undefined)
    low, high = np.quantile(defined, _ENDS)
    return Interval(float(low), float(high), undefined)
