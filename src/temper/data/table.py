"""A table as a file holds it, before anyone asks what its columns mean."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


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
        lines: Line of each row in its file, counted from 1; None where rows have no lines.
        label_names: Names of integer labels by column, where the file itself holds them.
        source: What identifies the file's content: path, sha256 and the like.
        notices: What a reader of the results should know of how the file was read.
    """

    title: str
    names: tuple[str, ...]
    column: Callable[[str], Iterable[object]]
    size: int
    lines: Sequence[int] | None = None
    label_names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    source: Mapping[str, Any] = field(default_factory=dict)
    notices: tuple[str, ...] = ()

    def where(self, index: int) -> str:
        """Name a row's place for an error: its line, else its row counted from 1."""
        if self.lines is not None:
            return f"{self.title}, line {self.lines[index]}"
        return f"{self.title}, row {index + 1}"
