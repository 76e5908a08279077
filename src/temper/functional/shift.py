"""Test whether a batch of inputs has shifted from reference rows.

Letters: n reference rows, m rows of the batch, D dimensions of a hidden state.
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
    """Result of `mmd_test`.

    Args:
        statistic: Unbiased estimate of the squared MMD; about 0 without a shift.
        p: p-value of the hypothesis that both come from one distribution.
        bandwidth: Width w of the kernel, in the unit of the states.
    """

    statistic: float
    p: float
    bandwidth: float


def mmd_test(
    reference: ArrayLike, batch: ArrayLike, *, seed: int, permutations: int = 999
) -> ShiftTest:
    """Test whether a batch comes from the distribution of reference rows (kernel two-sample test).

    ``MMD^2 = mean k(x, x') + mean k(y, y') - 2 mean k(x, y)`` over pairs of different rows, with
    ``k(a, b) = exp(-|a - b|^2 / (2 w^2))``; w is the median distance between all rows. The p-value
    is that of a permutation test, ``(1 + #{permuted >= observed}) / (1 + permutations)``, valid for
    any number of rows. The false alarm rate holds on average over references. To compare many
    batches with one reference, use the level from `alarm_level`.

    Raises:
        ValueError: Reference or batch has fewer than two rows, D differs, or a state is not finite.

    Example:
        >>> rows = np.random.default_rng(0).normal(size=(60, 2))
        >>> mmd_test(rows[:40], rows[40:] + 3.0, seed=0).p
        0.001

    References:
        Gretton et al., "A Kernel Two-Sample Test", JMLR 2012, Lemma 6 (statistic), Section 8
        (median distance). p-value: Phipson and Smyth, "Permutation p-values should never be zero",
        2010.
    """
    first, second = _states(reference, "reference"), _states(batch, "batch")
    if first.shape[1] != second.shape[1]:
        raise ValueError(
            f"Reference and batch must have states of the same size, got {first.shape[1]} and "
            f"{second.shape[1]}."
        )
    rows, size = np.concatenate([first, second]), len(first)
    # Centered first: distances between states far from 0 would lose digits.
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
    # The tolerance counts a split equal to the observed one, whose sum is rounded differently.
    as_large = statistics[1:] >= statistics[0] - 1e-12
    return ShiftTest(
        float(statistics[0]),
        (1 + int(as_large.sum())) / (1 + permutations),
        float(np.sqrt(squared_width)),
    )


def alarm_level(*, rate: float, references: float) -> float:
    """Return the significance level that bounds the false alarm rate for one fixed reference.

    A service compares all batches with the same reference rows, whose sampling error affects every
    comparison. The level is such that for the fraction ``references`` of all possible references,
    at most the fraction ``rate`` of batches causes a false alarm.

    The worst case is a difference of means in one direction. If the reference is ``z_references``
    standard errors off, the critical value z is ``z^2 = z_references^2 + z_rate^2``
    (Cauchy-Schwarz, for any number of rows).
    """
    apart = np.hypot(scipy.stats.norm.isf((1 - references) / 2), scipy.stats.norm.isf(rate))
    return float(2 * scipy.stats.norm.sf(apart))


def _states(values: ArrayLike, name: str) -> FloatArray:
    """Return states as float64 [n, D]; raise unless n >= 2 and all are finite."""
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 2 or len(array) < 2:
        raise ValueError(f"`{name}` must be states [n, D], n >= 2, got shape {list(array.shape)}.")
    if not bool(np.isfinite(array).all()):
        raise ValueError(f"`{name}` contains a state that is NaN or infinite.")
    return array


def _squared_mmd(kernel: FloatArray, splits: FloatArray) -> FloatArray:
    """Return the unbiased squared MMD of each split, [S].

    ``splits`` [S, n + m] are 1 for rows of the first part, else 0. The kernel's diagonal is 0.
    """
    n = splits[0].sum()
    m = splits.shape[1] - n
    within = splits @ kernel
    first = (within * splits).sum(axis=1)
    across = (within * (1.0 - splits)).sum(axis=1)
    second = kernel.sum() - first - 2.0 * across
    return np.asarray(first / (n * (n - 1)) + second / (m * (m - 1)) - 2.0 * across / (n * m))
