"""A two-sample test for a shift between reference rows and a batch of inputs.

Letters: n reference rows, m rows of the batch, D states.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from temper.functional.resampling import FloatArray
from temper.lazy import scipy
from temper.seeding import derive_seed


@dataclass(frozen=True)
class ShiftTest:
    """A two-sample test of a batch against reference rows.

    Args:
        statistic: Unbiased estimate of the squared MMD; about 0 without a shift.
        p: Probability of a statistic this large if both are draws of one distribution.
        bandwidth: Width of the kernel, in the states' unit.
    """

    statistic: float
    p: float
    bandwidth: float


def mmd_test(
    reference: ArrayLike, batch: ArrayLike, *, seed: int, permutations: int = 999
) -> ShiftTest:
    """Test whether a batch comes from the distribution of reference rows (kernel two-sample test).

    ``MMD^2 = mean k(x, x') + mean k(y, y') - 2 mean k(x, y)`` over pairs of different rows, with
    ``k(a, b) = exp(-|a - b|^2 / (2 w^2))`` and the median distance of all rows together as w. The
    p value is the rank of the statistic among those of random splits of the rows in two such parts,
    ``(1 + #{permuted >= observed}) / (1 + permutations)``: at most ``alpha`` with probability
    ``alpha`` or less under exchangeability, for any number of rows. This holds on
    average over references. For a service that compares all batches with one reference, see
    `alarm_level`.

    Raises:
        ValueError: A side has fewer than two rows, sizes D differ, or a state is not finite.

    Example:
        >>> rows = np.random.default_rng(0).normal(size=(60, 2))
        >>> mmd_test(rows[:40], rows[40:] + 3.0, seed=0).p
        0.001

    References:
        Gretton et al., "A Kernel Two-Sample Test", JMLR 2012, Lemma 6 (statistic), Section 8
        (median distance). The p value: Phipson and Smyth, "Permutation p-values should never be
        zero", 2010.
    """
    first, second = _states(reference, "reference"), _states(batch, "batch")
    if first.shape[1] != second.shape[1]:
        raise ValueError(
            f"Reference and batch must have states of one size, got {first.shape[1]} and "
            f"{second.shape[1]}."
        )
    rows, size = np.concatenate([first, second]), len(first)
    # Centered: distances of states far from 0 would lose their digits.
    squares = scipy.spatial.distance.cdist(
        rows - rows.mean(axis=0), rows - rows.mean(axis=0), "sqeuclidean"
    )
    middle = float(np.median(squares[np.triu_indices(len(rows), k=1)]))
    # If most rows are equal, the median distance is 0; the mean is 0 only if all rows are equal.
    squared_width = middle if middle > 0 else float(squares.mean())
    kernel = np.exp(-squares / (2 * squared_width)) if squared_width > 0 else np.ones_like(squares)
    np.fill_diagonal(kernel, 0.0)
    draws = np.random.default_rng(derive_seed(seed, "mmd", len(first), len(second)))
    splits = np.zeros((1 + permutations, len(rows)))
    splits[0, :size] = 1.0
    for split in splits[1:]:
        split[draws.permutation(len(rows))[:size]] = 1.0
    statistics = _squared_mmd(kernel, splits)
    # Splits into the same two parts differ only by the rounding of their sums.
    as_large = statistics[1:] >= statistics[0] - 1e-12
    return ShiftTest(
        float(statistics[0]),
        (1 + int(as_large.sum())) / (1 + permutations),
        float(np.sqrt(squared_width)),
    )


def alarm_level(*, rate: float, references: float) -> float:
    """Return the level of a test that bounds the false alarm rate for one reference.

    All batches of a service are compared with the same reference rows, whose chance deviation
    affects every comparison: some references never cause a false alarm, others often do. The worst
    case is a difference of means in one direction. If the reference is ``z_references`` standard
    errors off, batches alarm at ``rate`` if the critical value is z with
    ``z^2 = z_references^2 + z_rate^2`` (Cauchy-Schwarz, for any numbers of rows).

    ``references`` is the fraction of references for which this holds.
    """
    apart = np.hypot(scipy.stats.norm.isf((1 - references) / 2), scipy.stats.norm.isf(rate))
    return float(2 * scipy.stats.norm.sf(apart))


def _states(values: ArrayLike, name: str) -> FloatArray:
    """Return states as float64 [n, D] with two finite rows or more."""
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 2 or len(array) < 2:
        raise ValueError(f"`{name}` must be states [n, D], n >= 2, got shape {list(array.shape)}.")
    if not bool(np.isfinite(array).all()):
        raise ValueError(f"`{name}` holds a state that is not finite.")
    return array


def _squared_mmd(kernel: FloatArray, splits: FloatArray) -> FloatArray:
    """Return the unbiased statistic of each of S splits, 0 or 1 by row, [S, n + m].

    The kernel has zeros on the diagonal.
    """
    n = splits[0].sum()
    m = splits.shape[1] - n
    within = splits @ kernel
    first = (within * splits).sum(axis=1)
    across = (within * (1.0 - splits)).sum(axis=1)
    second = kernel.sum() - first - 2.0 * across
    return np.asarray(first / (n * (n - 1)) + second / (m * (m - 1)) - 2.0 * across / (n * m))
