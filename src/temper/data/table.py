"""A table as read from a file, before its columns have a meaning."""

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
        encoding: Encoding of text files that are not UTF-8; None raises an error on them.
        skip_bad_rows: Whether to skip rows that cannot be read, with a notice.
        unread: Columns that are not needed; a row of delimited text may end before them.
        others: Whether to keep further columns (ids, metadata), unconverted.
        named: Column names that the user gave.
    """

    encoding: str | None = None
    skip_bad_rows: bool = False
    unread: frozenset[str] = frozenset()
    others: bool = False
    named: frozenset[str] = frozenset()

    def needed(self, names: Sequence[str]) -> int:
        """Return how many fields a row must have; the last columns are optional if ``unread``.

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
        column: Returns the values of a column by name; may read the file again at each call.
        lines: First line of each row in its file, from 1; None for files without lines.
        numbers: Number of each row in its file, from 1; by default those of a table with all rows.
        decimal_comma: Whether numbers may have a decimal comma, as is common with semicolons.
        label_names: Column -> names of its integer labels, if the file has them.
        source: Metadata that identifies the content: path, sha256 and the like.
        notices: Messages about how the file was read.
    """

    title: str
    names: tuple[str, ...]
    column: Callable[[str], Iterable[object]]
    size: int
    lines: Sequence[int] | None = None
    numbers: Sequence[int] = ()
    decimal_comma: bool = False
    label_names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    source: Mapping[str, Any] = field(default_factory=dict)
    notices: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.numbers:
            object.__setattr__(self, "numbers", range(1, self.size + 1))

    @property
    def _positions(self) -> tuple[str, Sequence[int]]:
        return ("row", self.numbers) if self.lines is None else ("line", self.lines)

    def where(self, index: int) -> str:
        """Return a row's position for an error: title, and line or row number."""
        unit, positions = self._positions
        return f"{self.title}, {unit} {positions[index]}"

    def without(self, bad: Mapping[int, str]) -> Table:
        """Leave out bad rows, with a notice; ``bad`` maps row index (ascending) to fault."""
        if not bad:
            return self
        unit, positions = self._positions
        faults = {positions[row]: why for row, why in bad.items()}
        return replace(
            self,
            column=lambda name: _others(self.column(name), bad),
            size=self.size - len(bad),
            lines=None if self.lines is None else array("q", _others(self.lines, bad)),
            numbers=array("q", _others(self.numbers, bad)),
            notices=(*self.notices, skipped_rows(self.title, faults, unit=unit)),
        )


def read_rows(
    table: Table, columns: Sequence[str], read: Callable[..., Any], *, skip: bool
) -> tuple[list[Any], Table]:
    """Apply ``read`` to the values of each row in some columns; it raises `ValueError` on bad rows.

    Returns:
        The results, and the table without the bad rows.

    Raises:
        DataError: A row is bad and ``skip`` is False, or all rows are bad.
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
    """Return the notice on skipped rows: their number, and the faults of the first ones by line.

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
