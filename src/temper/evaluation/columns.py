"""Columns of a table of rows, which share what they can: arrays, and whole stretches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import pyarrow as pa

from temper.functional.resampling import FloatArray

STRETCH = 4096
"""Rows for which what all of them share is written out; further ones repeat it at no cost."""


@contextmanager
def system_memory() -> Iterator[None]:
    """Let Arrow take its memory where arrays have it from, for as long as a block lasts.

    What scores have taken and let go can then be taken again; Arrow's own pool lies beside it.
    """
    before = pa.default_memory_pool()
    pa.set_memory_pool(pa.system_memory_pool())
    try:
        yield
    finally:
        pa.set_memory_pool(before)


def same(value: str | int | None, kind: pa.DataType, rows: int) -> pa.ChunkedArray:
    """Return a column of one value: the same stretch of rows as often as it takes.

    Args:
        value: What every row holds.
        kind: The column's type.
        rows: Number of rows.
    """
    stretch = pa.repeat(pa.scalar(value, kind), min(rows, STRETCH))
    whole, rest = divmod(rows, STRETCH)
    return pa.chunked_array([stretch] * whole + [stretch.slice(0, rest)] * (rest > 0), kind)


def hashes(row: Sequence[str]) -> pa.ChunkedArray:
    """Return a column of row hashes, of which a stretch at a time is there as strings.

    Args:
        row: Hash of each text.
    """
    starts = range(0, len(row), STRETCH)
    parts = [pa.array(list(row[start : start + STRETCH]), pa.string()) for start in starts]
    return pa.chunked_array(parts, pa.string())


def lists(values: FloatArray) -> pa.ChunkedArray:
    """Return a column of lists of one length, whose places are written out for one stretch.

    Args:
        values: [n, C]; the column shares them.
    """
    rows, width = values.shape
    flat = pa.array(np.ascontiguousarray(values, dtype=np.float64).reshape(-1))
    places = pa.array(np.arange(STRETCH + 1, dtype=np.int32) * width)
    parts = []
    for start in range(0, rows, STRETCH):
        size = min(STRETCH, rows - start)
        own = flat.slice(start * width, size * width)
        parts.append(pa.ListArray.from_arrays(places.slice(0, size + 1), own))
    return pa.chunked_array(parts, pa.list_(pa.float64()))


def numbers(values: FloatArray) -> pa.Array:
    """Return a column of numbers with NaN as null: pandas and JSON readers would confuse the two.

    Args:
        values: [n]; the column shares them.
    """
    missing = np.isnan(values)
    return pa.array(values, pa.float64(), mask=missing if bool(missing.any()) else None)
