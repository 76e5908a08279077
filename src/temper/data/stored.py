"""Texts that are held outside of Python's objects: in one piece of memory, or past it in a file.

A Python string takes some 50 bytes beside its letters. Here a text takes its UTF-8 bytes and 16 for
where it stands, and once the texts are more than `IN_MEMORY` bytes, these lie in an unnamed
temporary file that is gone with the process, and each is read when it is asked for.
"""

from __future__ import annotations

import os
import tempfile
import weakref
from array import array
from collections.abc import Iterable, Iterator, Sequence
from threading import Lock
from typing import IO, Any, overload

import numpy as np
from numpy.typing import NDArray

from temper.errors import DataError

IN_MEMORY = 1 << 24
"""Bytes of text that stay in memory."""

# Bytes that are read at a time where texts are wanted one after the other.
_AHEAD = 1 << 16


# It moves no position that processes forked from this one share; Windows has neither.
_READ_AT = getattr(os, "pread", None)


class StoredTexts(Sequence[str]):
    """Texts whose bytes stand one after the other; a sequence of strings to whoever reads it.

    Make one with `of`. It equals every sequence of the same texts, a list among them.

    Example:
        >>> texts = StoredTexts.of(["good", "naïve"])
        >>> len(texts), texts[1], texts == ["good", "naïve"]
        (2, 'naïve', True)
    """

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, store: _Store, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> None:
        self._store = store
        self._starts = starts
        self._ends = ends

    @classmethod
    def of(cls, texts: Iterable[str], *, in_memory: int | None = None) -> StoredTexts:
        """Store texts as they come; all of them are never held as strings.

        Args:
            texts: The texts.
            in_memory: Bytes that stay in memory, None for `IN_MEMORY`.

        Raises:
            DataError: The temporary folder cannot take them.
        """
        limit = IN_MEMORY if in_memory is None else in_memory
        store, lengths = _Store(), array("q")
        for text in texts:
            content = text.encode()
            store.add(content, limit)
            lengths.append(len(content))
        store.close()
        ends = np.cumsum(np.frombuffer(lengths, dtype=np.int64), dtype=np.int64)
        return cls(store, np.append(np.int64(0), ends[:-1]) if len(ends) else ends, ends)

    @property
    def on_disk(self) -> bool:
        """Whether the texts lie in a file."""
        return self._store.file is not None

    def __len__(self) -> int:
        """Return the number of texts."""
        return len(self._ends)

    @overload
    def __getitem__(self, place: int) -> str: ...
    @overload
    def __getitem__(self, place: slice) -> StoredTexts: ...
    def __getitem__(self, place: int | slice) -> str | StoredTexts:
        """Return a text, or those of a slice, which are not read yet."""
        if isinstance(place, slice):
            return StoredTexts(self._store, self._starts[place], self._ends[place])
        return self._store.read(int(self._starts[place]), int(self._ends[place])).decode()

    def __iter__(self) -> Iterator[str]:
        """Yield each text."""
        content, first, last = b"", 0, 0
        for start, end in zip(_numbers(self._starts), _numbers(self._ends), strict=True):
            if not first <= start <= end <= last:
                first, last = start, max(end, start + _AHEAD)
                content = self._store.read(first, last)
            yield content[start - first : end - first].decode()

    def __eq__(self, other: object) -> bool:
        """Say whether another sequence holds the same texts in the same order."""
        if isinstance(other, str) or not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(
            one == two for one, two in zip(self, other, strict=True)
        )

    def __repr__(self) -> str:
        """Say how many there are and where."""
        return f"StoredTexts({len(self)} texts{' on disk' if self.on_disk else ''})"

    def at(self, places: Sequence[int] | NDArray[Any]) -> StoredTexts:
        """Return the texts at some positions, in their order, which are not read yet.

        Args:
            places: Positions, each in [0, len).
        """
        chosen = np.asarray(places, dtype=np.int64)
        return StoredTexts(self._store, self._starts[chosen], self._ends[chosen])


def texts_at(texts: Sequence[str], places: Sequence[int] | NDArray[Any]) -> Sequence[str]:
    """Return texts at some positions, in the form that all are held in.

    Args:
        texts: Texts, n of them.
        places: Positions, each in [0, n).
    """
    if isinstance(texts, StoredTexts):
        return texts.at(places)
    return [texts[place] for place in places]


class _Store:
    """Bytes in memory, or in a file once there are too many."""

    def __init__(self) -> None:
        self.content: bytes | bytearray = bytearray()
        self.file: IO[bytes] | None = None
        self._lock: Lock | None = None

    def add(self, content: bytes, limit: int) -> None:
        """Add bytes behind those that are there."""
        try:
            if self.file is None and len(self.content) + len(content) > limit:
                self.file = tempfile.TemporaryFile(buffering=1 << 20)  # noqa: SIM115
                self._lock = Lock()
                weakref.finalize(self, self.file.close)
                self.file.write(self.content)
                self.content = b""
            if self.file is None:
                self.content += content
            else:
                self.file.write(content)
        except OSError as error:
            raise self._full(error) from error

    def close(self) -> None:
        """Write what is on its way; nothing is added afterwards."""
        try:
            if self.file is None:
                self.content = bytes(self.content)
            else:
                self.file.flush()
        except OSError as error:
            raise self._full(error) from error

    def read(self, start: int, end: int) -> bytes:
        """Return the bytes of a stretch, fewer where there are no more."""
        if self.file is None or self._lock is None:
            return bytes(self.content[start:end])
        if _READ_AT is not None:
            return bytes(_READ_AT(self.file.fileno(), end - start, start))
        with self._lock:
            self.file.seek(start)
            return self.file.read(end - start)

    def _full(self, error: OSError) -> DataError:
        return DataError(
            f"Texts of more than {IN_MEMORY >> 20} MiB are kept in a temporary file in "
            f"{tempfile.gettempdir()}, which cannot take them: {error.strerror or error}. Make "
            "room there, or set TMPDIR to another folder."
        )


def _numbers(array: NDArray[np.int64]) -> Iterator[int]:
    """Yield an array's numbers as Python's, few of which are there at a time."""
    for start in range(0, len(array), 4096):
        yield from array[start : start + 4096].tolist()
