"""Means, medians and sums of rows under bootstrap resamples.

``counts`` are how often each row is drawn, [n] or [R, n]. Letters: n rows, R resamples.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

FloatArray = NDArray[np.float64]
IntegerArray = NDArray[np.int64]
Counts = ArrayLike | None
"""How often each row is drawn, [n] or [R, n] (bootstrap); None for once."""

# Cells of the largest temporary table: 2 MB of doubles.
_CELLS = 1 << 18


def stretches(rows: int, *, width: int = 1) -> Iterator[slice]:
    """Split rows into slices of at most 262,144 cells, ``width`` cells per row, to limit memory."""
    size = max(1, _CELLS // width)
    for start in range(0, rows, size):
        yield slice(start, min(start + size, rows))


def row_counts(rows: int, counts: Counts) -> FloatArray:
    """Return resample counts [n] or [R, n] as float64; ones [n] if None."""
    if counts is None:
        return np.ones(rows)
    array = np.asarray(counts, dtype=np.float64)
    if array.ndim == 0 or array.shape[-1] != rows:
        raise ValueError(
            f"`counts` must have shape [{rows}] or [R, {rows}], got {list(array.shape)}."
        )
    return array


def weighted_mean(values: ArrayLike, counts: Counts = None) -> FloatArray:
    """Return the mean of values [n], weighted by counts [n] or [R, n]; NaN without rows."""
    array = np.asarray(values, dtype=np.float64)
    weights = row_counts(len(array), counts)
    return divide(weights @ array, weights.sum(axis=-1))


def group_sums(values: ArrayLike, groups: ArrayLike, size: int, weights: FloatArray) -> FloatArray:
    """Sum values [n] within each group, with weights [n] or [R, n]: [size] or [R, size].

    ``groups`` [n] are whole numbers in [0, size).
    """
    array, indices = pair(values, groups)
    sums = np.zeros((*weights.shape[:-1], size))
    for rows in stretches(len(array), width=size):
        table = np.zeros((rows.stop - rows.start, size))
        table[np.arange(len(table)), indices[rows]] = array[rows]
        sums += weights[..., rows] @ table
    return sums


def weighted_median(values: ArrayLike, counts: Counts = None) -> FloatArray:
    """Return the median of values [n], repeated by counts [n] or [R, n]: a scalar or [R].

    Counts are whole numbers. The median is NaN without rows or if a value is not finite.
    """
    array = np.asarray(values, dtype=np.float64)
    weights = row_counts(len(array), counts)
    if not len(array) or not bool(np.isfinite(array).all()):
        return np.full(weights.shape[:-1], np.nan)[()]
    order = np.argsort(array, kind="stable")
    reached = np.cumsum(weights[..., order], axis=-1)
    total = reached[..., -1:]
    below = array[order][(reached >= np.floor((total + 1) / 2)).argmax(axis=-1)]
    above = array[order][(reached >= np.floor(total / 2) + 1).argmax(axis=-1)]
    return np.where(total[..., 0] > 0, (below + above) / 2, np.nan)[()]


def pair(first: ArrayLike, second: ArrayLike) -> tuple[NDArray[Any], NDArray[Any]]:
    """Convert both to arrays; raise a `ValueError` unless they are [n] of the same length."""
    one, two = np.asarray(first), np.asarray(second)
    if one.ndim != 1 or one.shape != two.shape:
        raise ValueError(
            f"Expected two arrays [n] of one length, got {list(one.shape)} and {list(two.shape)}."
        )
    return one, two


def divide(numerator: Any, denominator: Any) -> FloatArray:
    """Divide arrays; NaN where the denominator is 0."""
    above, below = (
        np.asarray(numerator, dtype=np.float64),
        np.asarray(denominator, dtype=np.float64),
    )
    return np.where(below == 0, np.nan, above / np.where(below == 0, 1.0, below))[()]
