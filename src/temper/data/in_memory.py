"""Data that is passed to a Python call instead of a path.

Settings, metadata and fingerprints refer to data by a string. So data in memory gets a name, a hash
of its splits, columns and values: equal data has the same name in every process.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, time, timedelta
from decimal import Decimal
from functools import partial
from hashlib import blake2b
from typing import Any
from uuid import UUID

from temper.data.delimited import check_names
from temper.data.table import Table
from temper.errors import DataError, brief

Columns = Mapping[str, list[object]]

_NAME = re.compile(r"in-memory-[0-9a-f]{16}")
_PLAIN = (str, bytes, bool, int, float, date, time, timedelta, Decimal, UUID, type(None))
FORMS = (
    "a path, a Hub id, a pandas DataFrame, a datasets.Dataset, a dict of columns such as "
    '{"text": [...], "label": [...]}, or a dict (or DatasetDict) of these by split such as '
    '{"train": ..., "dev": ...}'
)


@dataclass(frozen=True)
class Held:
    """Split -> columns or `datasets.Dataset`; ``single`` data is one table without splits."""

    splits: Mapping[str, Any]
    single: bool


_held: dict[str, Held] = {}


def names_memory(source: str) -> bool:
    return _NAME.fullmatch(source) is not None


def all_held() -> dict[str, Held]:
    """Return name -> data for all data in memory, to send to another process."""
    return dict(_held)


def restore(held: Mapping[str, Held]) -> None:
    """Register data that `all_held` returned in another process."""
    _held.update(held)


def is_table(value: object) -> bool:
    """Return whether a value is a DataFrame, a Dataset, or a mapping of columns."""
    if isinstance(value, Mapping):
        return bool(value) and all(_is_column(column) for column in value.values())
    return _is_frame(value) or _is_dataset(value)


def hold(value: object) -> str:
    """Register data in memory, and return the name by which it is read like a path.

    Args:
        value: A table, tables by split, or a list of texts.

    Raises:
        DataError: The value is none of these, columns differ in length, or the content of a cell
            cannot be hashed.

    Example:
        >>> one, same = (hold({"text": ["good", "bad"], "label": [1, 0]}) for _ in range(2))
        >>> one == same and one.startswith("in-memory-")
        True
    """
    if isinstance(value, list) and value and all(isinstance(text, str) for text in value):
        value = {"text": value}
    single = is_table(value)
    given = {"train": value} if single else value
    if not isinstance(given, Mapping) or not given or not all(map(is_table, given.values())):
        came = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
        streams = " Load it without streaming=True." if "Iterable" in came else ""
        raise DataError(f"Data must be {FORMS}, got a value of type {came}.{streams}")
    splits = {str(split): _readable(table, str(split)) for split, table in given.items()}
    digest = blake2b(digest_size=8)
    for split, table in splits.items():
        columns = open_table(table, split)
        labels = sorted(columns.label_names.items())
        head = repr((split, single, columns.names, columns.size, labels))
        digest.update(head.encode("utf-8", "backslashreplace"))
        for name in columns.names:
            for row, cell in enumerate(columns.column(name)):
                plain = _content(cell, f"row {row + 1} of split {split!r}, column {name!r}")
                digest.update(plain.encode("utf-8", "backslashreplace"))
                digest.update(b"\0")
    name = f"in-memory-{digest.hexdigest()}"
    _held.setdefault(name, Held(splits, single))
    return name


def splits_of(name: str) -> tuple[dict[str, Callable[[], Table]], bool]:
    """Return split -> function that reads it, and whether the data is a single table."""
    entry = _held.get(name)
    if entry is None:
        raise DataError(
            f"{name} was given as data in memory, and this process does not have it. Pass the "
            "same data again (data=...), or save it to a file and train on that file, which other "
            "processes and machines can read."
        )
    readers: dict[str, Callable[[], Table]] = {
        split: partial(open_table, table, name if entry.single else f"{name}@{split}")
        for split, table in entry.splits.items()
    }
    return readers, entry.single


def open_table(table: Any, title: str) -> Table:
    """Read columns, or a `datasets.Dataset`, as a table."""
    if _is_dataset(table):
        return dataset_table(table, title, {"id": title.partition("@")[0]})
    columns: Columns = table
    size = len(next(iter(columns.values())))
    source = {"id": title.partition("@")[0]}
    return Table(title, tuple(columns), columns.__getitem__, size, source=source)


def dataset_table(rows: Any, title: str, source: Mapping[str, Any]) -> Table:
    """Read a `datasets.Dataset` as a table, which decodes a column when it is read."""
    plain = rows.with_format(None)
    names = {
        name: tuple(inner.names)  # type: ignore[union-attr]
        for name, feature in plain.features.items()
        # A feature with a list of classes has the class feature inside.
        for inner in (feature, getattr(feature, "feature", None))
        if type(inner).__name__ == "ClassLabel"
    }
    return Table(
        title,
        tuple(plain.column_names),
        lambda name: _decoded(plain[name]),
        len(plain),
        label_names=names,
        source=source,
    )


def _decoded(column: Any) -> Iterator[object]:
    """Yield the values of a column in blocks, because it may be larger than memory."""
    for start in range(0, len(column), 4096):
        yield from column[start : start + 4096]


def _readable(table: Any, split: str) -> Any:
    """Return a Dataset unchanged, and other tables as columns of plain Python values."""
    if _is_dataset(table):
        return table
    named = list(table.items())
    check_names([str(name) for name, _ in named], title=f"The data of split {split!r}")
    columns = {str(name): _values(column) for name, column in named}
    sizes = {name: len(values) for name, values in columns.items()}
    if len(set(sizes.values())) != 1:
        raise DataError(f"The columns of split {split!r} must have equal lengths, got {sizes}.")
    return columns


def _values(column: Any) -> list[object]:
    if _is_of(column, "pandas", "Series"):
        # pandas writes a missing value as NaN, NaT or NA; tables of files have None.
        column = column.astype(object).where(column.notna(), None)
    values = column.tolist() if hasattr(column, "tolist") else list(column)
    # Later checks of types expect Python numbers, not NumPy scalars.
    return [value.tolist() if type(value).__module__ == "numpy" else value for value in values]


def _content(value: object, where: str) -> str:
    """Serialize a cell so that different values have different texts."""
    if isinstance(value, _PLAIN):
        return repr(value)
    if isinstance(value, list | tuple | dict):
        try:
            return json.dumps(value, sort_keys=True)
        except (TypeError, ValueError):
            pass
    kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
    raise DataError(
        f"{where}: a value of type {kind} cannot be read ({brief(value)}). Drop the column, or "
        "convert it to text or numbers."
    )


def _is_column(value: object) -> bool:
    if isinstance(value, str | bytes | Mapping) or _is_frame(value) or _is_dataset(value):
        return False
    return isinstance(value, Sequence) or hasattr(value, "tolist")


def _is_frame(value: object) -> bool:
    return _is_of(value, "pandas", "DataFrame")


def _is_dataset(value: object) -> bool:
    return _is_of(value, "datasets", "Dataset")


def _is_of(value: object, package: str, name: str) -> bool:
    """Return whether a value is of a class in a package, without importing the package."""
    # Such an object exists only if its library is imported; a user's module may share the name.
    return isinstance(value, getattr(sys.modules.get(package), name, ()))


def texts_of(texts: Iterable[object]) -> Any:
    return texts.tolist() if hasattr(texts, "tolist") else texts
