"""A table as read from a file, before its columns are interpreted."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from temper.errors import DataError

SHOWN = 3
"""Maximum number of bad rows that a notice lists."""


@dataclass(frozen=True)
class TableOptions:
    """Options for reading tables.

    Args:
        encoding: Encoding of text files that are not UTF-8; None raises on them.
        skip_bad_rows: Whether to skip rows that cannot be read, with a notice.
        unread: Names of columns that are not read: a row of delimited text may end before them.
        others: Whether to keep the columns without a role, without conversion.
        named: Names of columns that the user gave.
    """

    encoding: str | None = None
    skip_bad_rows: bool = False
    unread: frozenset[str] = frozenset()
    others: bool = False
    named: frozenset[str] = frozenset()

    def needed(self, names: Sequence[str]) -> int:
        """Return the required number of fields of a row, without the last columns that are unread.

        Example:
            >>> TableOptions(unread=frozenset({"label"})).needed(["id", "text", "Label"])
            2
        """
        for size in range(len(names), 0, -1):
            if not self.unread & {names[size - 1], names[size - 1].casefold()}:
                return size
        return len(names)


@dataclass(frozen=True)
class Table:
    """Columns of equal length, and the position of each row in its file.

    Args:
        title: Path of the file, or id and split on the Hub; used in messages.
        column: Yields the values of a column; a text file may be read again at each call.
        lines: Line of each row in its file, counted from 1; None if rows have no lines and none was
            left out.
        unit: Unit of `lines`: lines, or rows if a file has no lines.
        numbers: Number of each row among all rows of the file, counted from 1; None if no row was
            left out.
        decimal_comma: Whether numbers have a decimal comma, as is common with semicolons.
        label_names: Names of integer labels by column, if the file has them.
        source: Metadata that identifies the file's content: path, sha256 and the like.
        notices: Notes about how the file was read.
    """

    title: str
    names: tuple[str, ...]
    column: Callable[[str], Iterable[object]]
    size: int
    lines: Sequence[int] | None = None
    unit: str = "line"
    numbers: Sequence[int] | None = None
    decimal_comma: bool = False
    label_names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    source: Mapping[str, Any] = field(default_factory=dict)
    notices: tuple[str, ...] = ()

    def where(self, index: int) -> str:
        """Return a row's position for an error: its line, else its number from 1."""
        if self.lines is not None:
            return f"{self.title}, {self.unit} {self.lines[index]}"
        return f"{self.title}, row {index + 1}"

    def without(self, bad: Mapping[int, str]) -> Table:
        """Leave rows out, with a notice; ``bad`` has their faults by ascending index."""
        if not bad:
            return self
        lines = range(1, self.size + 1) if self.lines is None else self.lines
        unit = "row" if self.lines is None else self.unit
        numbers = range(1, self.size + 1) if self.numbers is None else self.numbers
        message = skipped_rows(self.title, {lines[row]: why for row, why in bad.items()}, unit=unit)
        return replace(
            self,
            column=lambda name: _others(self.column(name), bad),
            size=self.size - len(bad),
            lines=array("q", _others(lines, bad)),
            unit=unit,
            numbers=array("q", _others(numbers, bad)),
            notices=(*self.notices, message),
        )


def read_rows(
    table: Table, columns: Sequence[str], read: Callable[..., Any], *, skip: bool
) -> tuple[list[Any], Table]:
    """Read each row by a function of some columns, which raises a `ValueError` with the fault.

    Returns:
        Its results, and the table without the skipped rows.

    Raises:
        DataError: A row cannot be read, and rows are not skipped; or none can.
    """
    rows, bad = [], dict[int, str]()
    for index, values in enumerate(zip(*map(table.column, columns), strict=True)):
        try:
            rows.append(read(*values))
        except ValueError as error:
            bad[index] = str(error)
    if bad and not (skip and rows):
        first = min(bad)
        raise DataError(
            f"{table.where(first)}: {bad[first]}. Fix the row, or leave such rows out with "
            "--set data.skip_bad_rows=true."
        )
    return rows, table.without(bad)


def skipped_rows(title: str, bad: Mapping[int, str], *, unit: str = "line") -> str:
    """Report the number of skipped bad rows, whose faults are given by line, and the first ones.

    Example:
        >>> skipped_rows("a.csv", {3: "no label"})
        'a.csv: 1 bad row is skipped: line 3 (no label).'
    """
    shown = [f"{unit} {line} ({why})" for line, why in list(bad.items())[:SHOWN]]
    more = ", ..." if len(bad) > SHOWN else ""
    rows = "row is" if len(bad) == 1 else "rows are"
    return f"{title}: {len(bad):,} bad {rows} skipped: {', '.join(shown)}{more}."


def _others(values: Iterable[Any], bad: Collection[int]) -> Iterator[Any]:
    return (value for row, value in enumerate(values) if row not in bad)
