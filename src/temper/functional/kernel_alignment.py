"""Centered kernel alignment (CKA): the similarity of two models' hidden states.

Linear CKA compares the Gram matrices ``K = X X^T`` and ``L = Y Y^T`` of the states X and Y of the
same rows: ``HSIC(K, L) / sqrt(HSIC(K, K) HSIC(L, L))``. It is 1 if the states differ only by a
rotation, a shift and a factor. Each HSIC is averaged over batches with an unbiased estimator, so
its expected value does not depend on the batch size. Letters: n rows of a batch, D dimensions, k
batches, R resamples.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from temper.functional.resampling import Counts, FloatArray, divide, row_counts

LEAST = 4
"""Minimum number of rows for the unbiased estimator."""


def unbiased_hsic(first: ArrayLike, second: ArrayLike) -> float:
    """Estimate HSIC (Hilbert-Schmidt independence criterion) of linear kernels without bias.

    ``[tr(K~ L~) + (1'K~1)(1'L~1) / ((n-1)(n-2)) - 2 (1'K~L~1) / (n-2)] / (n (n-3))``, with K~ and
    L~ the Gram matrices without their diagonals. It is computed from U-centered matrices, which
    gives the same number with smaller rounding errors.

    The states are finite, [n, D] and [n, D'] with n >= 4. The result may be below 0 unless both are
    equal.

    References:
        Song et al., "Feature Selection via Dependence Maximization", JMLR 2012, Eq. 5 (HSIC_1).
        Szekely and Rizzo, "Partial distance correlation", 2014, for the U-centered form.
    """
    one, two = (np.asarray(side, dtype=np.float64) for side in (first, second))
    rows = len(one)
    return float((_centered(one) * _centered(two)).sum()) / (rows * (rows - 3))


def kernel_alignment(
    cross: ArrayLike, first: ArrayLike, second: ArrayLike, *, counts: Counts = None
) -> FloatArray:
    """Compute linear CKA from the HSIC of k batches.

    ``mean_i HSIC(K_i, L_i) / sqrt(mean_i HSIC(K_i, K_i) mean_i HSIC(L_i, L_i))``.

    Arguments are `unbiased_hsic` by batch, [k]: ``cross`` between the two models, ``first`` and
    ``second`` of each model with itself. ``counts``, [k] or [R, k] (bootstrap), is how often each
    batch is drawn. The result is in [-1, 1], a scalar or [R]; NaN if a model's states are constant.

    References:
        Kornblith et al., "Similarity of Neural Network Representations Revisited", ICML 2019.
        Nguyen, Raghu and Kornblith, "Do Wide and Deep Networks Learn the Same Things?", ICLR 2021,
        Eq. 3.
    """
    sides = [np.asarray(side, dtype=np.float64) for side in (cross, first, second)]
    weights = row_counts(len(sides[0]), counts)
    both, left, other = (_weighted(weights, side) for side in sides)
    spread = np.sqrt(np.maximum(left, 0.0)) * np.sqrt(np.maximum(other, 0.0))
    return np.clip(divide(both, spread), -1.0, 1.0)[()]


def _centered(states: NDArray[Any]) -> FloatArray:
    """Return the U-centered Gram matrix [n, n]: rows sum to 0, the diagonal is 0."""
    rows = len(states)
    # The shift changes only the rounding; it makes the states exactly zero if all are equal.
    shifted = states - states[0]
    shifted = shifted - shifted.mean(axis=0)
    gram = shifted @ shifted.T
    np.fill_diagonal(gram, 0.0)
    sums = gram.sum(axis=0)
    gram -= (sums[:, None] + sums[None, :]) / (rows - 2)
    gram += sums.sum() / ((rows - 1) * (rows - 2))
    np.fill_diagonal(gram, 0.0)
    return np.asarray(gram, dtype=np.float64)


def _weighted(weights: FloatArray, values: FloatArray) -> FloatArray:
    """Return weighted sums over batches; all are NaN if a value is not finite."""
    if not bool(np.isfinite(values).all()):
        return np.full(weights.shape[:-1], np.nan)
    return np.asarray(weights @ values)
