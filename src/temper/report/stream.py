"""Read Parquet files a piece at a time: a file may hold far more rows than a page shows."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from temper.errors import CheckpointError

ROWS = 1 << 15
"""Rows that are in memory at a time, at most."""


def columns(path: Path, *, what: str) -> list[str]:
    """Return the names of a file's columns.

    Args:
        path: A Parquet file.
        what: What the file holds, for the error.

    Raises:
        CheckpointError: The file is missing or damaged.
    """
    try:
        return list(pq.read_schema(path).names)
    except (OSError, pa.ArrowException) as error:
        raise CheckpointError(
            f"Cannot read {what} in {path}: {error}. Evaluate the model again."
        ) from error


def pieces(path: Path, columns: Sequence[str], *, what: str) -> Iterator[pd.DataFrame]:
    """Yield a file's rows in order, a piece at a time.

    Args:
        path: A Parquet file.
        columns: Names of the columns to read.
        what: What the file holds, for the error.

    Yields:
        Some rows; their index is where each stands in the file.

    Raises:
        CheckpointError: The file is missing, damaged or lacks a column.
    """
    at = 0
    for batch in _batches(path, columns, what=what):
        yield batch.to_pandas().set_axis(range(at, at + len(batch)))
        at += len(batch)


def taken(
    path: Path, columns: Sequence[str], places: Collection[int], *, what: str
) -> dict[int, dict[str, Any]]:
    """Return some rows of a file.

    Args:
        path: A Parquet file.
        columns: Names of the columns to read.
        places: Where the rows stand in the file.
        what: What the file holds, for the error.

    Returns:
        The rows by place.

    Raises:
        CheckpointError: The file is missing, damaged or lacks a column.
    """
    found: dict[int, dict[str, Any]] = {}
    wanted = sorted(set(places))
    at = 0
    for batch in _batches(path, columns, what=what):
        own = [place for place in wanted if at <= place < at + len(batch)]
        if own:
            rows = batch.take(pa.array([place - at for place in own])).to_pylist()
            found.update(zip(own, rows, strict=True))
        at += len(batch)
    return found


def _batches(path: Path, columns: Sequence[str], *, what: str) -> Iterator[pa.RecordBatch]:
    try:
        with pq.ParquetFile(path) as file:
            lacking = [name for name in columns if name not in file.schema_arrow.names]
            if lacking:
                raise CheckpointError(
                    f"{path} lacks the columns {lacking}. Evaluate the model again."
                )
            yield from file.iter_batches(batch_size=ROWS, columns=list(columns))
    except (OSError, pa.ArrowException) as error:
        raise CheckpointError(
            f"Cannot read {what} in {path}: {error}. Evaluate the model again."
        ) from error
