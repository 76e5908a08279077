"""A table as a file holds it, before anyone asks what its columns mean."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

SHOWN = 3
"""Bad rows that a notice names."""


@dataclass(frozen=True)
class TableOptions:
    """How tables are read.

    Args:
        encoding: Encoding of text files that are not UTF-8; None refuses these.
        skip_bad_rows: Whether rows that cannot be read are left out and told, and no error.
    """

    encoding: str | None = None
    skip_bad_rows: bool = False


@dataclass(frozen=True)
class Streamed(Iterable[object]):
    """Values that are read anew each time somebody goes through them, and are never all there.

    Args:
        read: Starts to read.
    """

    read: Callable[[], Iterator[object]]

    def __iter__(self) -> Iterator[object]:
        """Yield each value."""
        return self.read()


@dataclass(frozen=True)
class Table:
    """Columns of equal length, and where each row stands in its file.

    Args:
        title: Path of the file, or id and split on the Hub; used in messages.
        names: Names of the columns in their order.
        column: Gives the values of a column.
        size: Number of rows.
        lines: Line of each row in its file, counted from 1; None where rows have no lines and none
            was left out.
        unit: What `lines` counts: lines, or rows where a file has no lines.
        decimal_comma: Whether numbers are written with a comma, as beside semicolons.
        label_names: Names of integer labels by column, where the file itself holds them.
        source: What identifies the file's content: path, sha256 and the like.
        notices: What a reader of the results should know of how the file was read.
    """

    title: str
    names: tuple[str, ...]
    column: Callable[[str], Iterable[object]]
    size: int
    lines: Sequence[int] | None = None
    unit: str = "line"
    decimal_comma: bool = False
    label_names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    source: Mapping[str, Any] = field(default_factory=dict)
    notices: tuple[str, ...] = ()

    def where(self, index: int) -> str:
        """Name a row's place for an error: its line, else its row counted from 1."""
        if self.lines is not None:
            return f"{self.title}, {self.unit} {self.lines[index]}"
        return f"{self.title}, row {index + 1}"

    def without(self, bad: Mapping[int, str]) -> Table:
        """Leave rows out and say so.

        Args:
            bad: What is wrong with each of them, by index in ascending order.
        """
        if not bad:
            return self
        lines = range(1, self.size + 1) if self.lines is None else self.lines
        unit = "row" if self.lines is None else self.unit
        said = skipped_rows(self.title, {lines[row]: why for row, why in bad.items()}, unit=unit)
        return replace(
            self,
            column=lambda name: Streamed(lambda: _others(self.column(name), bad)),
            size=self.size - len(bad),
            lines=[line for row, line in enumerate(lines) if row not in bad],
            unit=unit,
            notices=(*self.notices, said),
        )


def skipped_rows(title: str, bad: Mapping[int, str], *, unit: str = "line") -> str:
    """Say how many bad rows are left out, and where the first are.

    Args:
        title: The table.
        bad: What is wrong, by line.
        unit: What is counted.

    Example:
        >>> skipped_rows("a.csv", {3: "no label"})
        'a.csv: 1 bad row is skipped: line 3 (no label).'
    """
    shown = [f"{unit} {line} ({why})" for line, why in list(bad.items())[:SHOWN]]
    more = ", ..." if len(bad) > SHOWN else ""
    rows = "row is" if len(bad) == 1 else "rows are"
    return f"{title}: {len(bad):,} bad {rows} skipped: {', '.join(shown)}{more}."


def _others(values: Iterable[object], bad: Collection[int]) -> Iterator[object]:
    return (value for row, value in enumerate(values) if row not in bad)
