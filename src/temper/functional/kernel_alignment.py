"""Centered kernel alignment (CKA): the similarity of two models' states of the same rows.

Linear CKA compares the Gram matrices ``K = X X^T`` and ``L = Y Y^T`` of the states X and Y of the
same rows: ``HSIC(K, L) / sqrt(HSIC(K, K) HSIC(L, L))``. It is 1 for states that differ by an
orthogonal map, a shift and a factor. Over batches each HSIC is the mean of an estimator without
bias, so that the size of the batches does not change the expected value. Letters: n rows of a
batch, D dimensions, k batches, R resamples.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from temper.functional.resampling import FloatArray, divide, row_counts

LEAST = 4
"""Minimum number of rows of the estimator."""


def unbiased_hsic(first: ArrayLike, second: ArrayLike) -> float:
    """Estimate HSIC of linear kernels without bias, HSIC_1 of the reference.

    ``[tr(K~ L~) + (1'K~1)(1'L~1) / ((n-1)(n-2)) - 2 (1'K~L~1) / (n-2)] / (n (n-3))``, with K~ and
    L~ the Gram matrices without their diagonals. It is computed as the product of the U-centered
    matrices over ``n (n-3)``, which is the same number without its cancellation.

    States are finite, [n, D] and [n, D'] with n >= 4. The value may be below 0, but not if both are
    the same states.

    References:
        Song et al., "Feature Selection via Dependence Maximization", JMLR 2012, Eq. 5. Szekely and
        Rizzo, "Partial distance correlation", 2014, for the U-centered form.
    """
    one, two = (np.asarray(side, dtype=np.float64) for side in (first, second))
    if one.ndim != 2 or two.ndim != 2 or len(one) != len(two):
        raise ValueError(
            f"Both sides must be [n, D] of the same n, got {list(one.shape)} and {list(two.shape)}."
        )
    rows = len(one)
    if rows < LEAST:
        raise ValueError(f"HSIC needs at least {LEAST} rows, got {rows}. Give more rows.")
    return float((_centered(one) * _centered(two)).sum()) / (rows * (rows - 3))


def kernel_alignment(
    cross: ArrayLike, first: ArrayLike, second: ArrayLike, *, counts: ArrayLike | None = None
) -> FloatArray:
    """Combine the HSIC of batches into linear CKA.

    ``mean_i HSIC(K_i, L_i) / sqrt(mean_i HSIC(K_i, K_i) mean_i HSIC(L_i, L_i))``.

    The arguments are the `unbiased_hsic` of k batches, [k]: of both models' states, then of each
    model's states with themselves. ``counts``, [k] or [R, k], is how often each batch is in the
    data. The result is in [-1, 1], a scalar or [R]; NaN if the states of a model do not vary.

    References:
        Kornblith et al., "Similarity of Neural Network Representations Revisited", ICML 2019.
        Nguyen, Raghu and Kornblith, "Do Wide and Deep Networks Learn the Same Things?", ICLR 2021,
        Eq. 3.
    """
    sides = [np.asarray(side, dtype=np.float64) for side in (cross, first, second)]
    if any(side.ndim != 1 or side.shape != sides[0].shape for side in sides):
        raise ValueError(f"All must be [k] of one k, got {[list(side.shape) for side in sides]}.")
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
    """Return the sums over batches; a value that is not finite makes each of them NaN."""
    if not bool(np.isfinite(values).all()):
        return np.full(weights.shape[:-1], np.nan)
    return np.asarray(weights @ values)
