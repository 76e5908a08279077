"""Texts and row hashes that are held outside of Python's objects, and read as sequences of strings.

A Python string takes some 50 bytes beside its letters. Here a text takes its UTF-8 bytes and 16 for
where it stands, and once the texts are more than `IN_MEMORY` bytes, these lie in an unnamed
temporary file that is gone with the process, and each is read when it is asked for. A row is known
by the hash of its text, wherever it stands; eight bytes are held for each.
"""

from __future__ import annotations

import hashlib
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

_DIGITS = 16
# Hashes that are written out at a time: a string takes eight times what its hash does.
_STRETCH = 4096


def row_hash(text: str, text_pair: str | None = None) -> str:
    """Hash a row's text, the same on every machine and in every version.

    Args:
        text: The text.
        text_pair: The second text of a pair task.

    Returns:
        16 hexadecimal digits (blake2b, 64 bits).

    Example:
        >>> row_hash("a good phone")
        '36821fe421257811'
    """
    return _digest(text, text_pair).hex()


class RowHashes(Sequence[str]):
    """Hashes of rows as one array of numbers; each is written out when it is asked for.

    It equals every sequence of the same hashes, a list among them.

    Args:
        numbers: The hashes as big-endian numbers, [n] uint64.

    Example:
        >>> hashes = RowHashes.of(["a good phone", "a bad one"])
        >>> len(hashes), hashes[0], hashes == list(hashes)
        (2, '36821fe421257811', True)
    """

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, numbers: NDArray[np.uint64]) -> None:
        self._numbers = numbers

    @classmethod
    def of(cls, text: Iterable[str], text_pair: Iterable[str] | None = None) -> RowHashes:
        """Hash texts.

        Args:
            text: The texts.
            text_pair: The second texts of a pair task.
        """
        if text_pair is None:
            digests = (_digest(own, None) for own in text)
        else:
            digests = (_digest(*both) for both in zip(text, text_pair, strict=True))
        return cls(np.frombuffer(bytearray().join(digests), dtype=">u8").astype(np.uint64))

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self._numbers)

    @overload
    def __getitem__(self, place: int) -> str: ...
    @overload
    def __getitem__(self, place: slice) -> RowHashes: ...
    def __getitem__(self, place: int | slice) -> str | RowHashes:
        """Return a row's hash, or those of a slice."""
        if isinstance(place, slice):
            return RowHashes(self._numbers[place])
        return f"{int(self._numbers[place]):0{_DIGITS}x}"

    def __iter__(self) -> Iterator[str]:
        """Yield each row's hash."""
        for start in range(0, len(self), _STRETCH):
            written = self._numbers[start : start + _STRETCH].astype(">u8").tobytes().hex()
            for place in range(0, len(written), _DIGITS):
                yield written[place : place + _DIGITS]

    def __eq__(self, other: object) -> bool:
        """Say whether another sequence holds the same hashes in the same order."""
        if isinstance(other, RowHashes):
            return bool(np.array_equal(self._numbers, other._numbers))
        if isinstance(other, str) or not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(map(str.__eq__, self, other))

    def __repr__(self) -> str:
        """Name the first rows."""
        shown = ", ".join(map(repr, self[:3]))
        return f"RowHashes([{shown}{', ...' if len(self) > 3 else ''}], rows={len(self)})"

    def at(self, places: Sequence[int] | NDArray[Any]) -> RowHashes:
        """Return the hashes at some positions, in their order.

        Args:
            places: Positions, each in [0, len).
        """
        return RowHashes(self._numbers[np.asarray(places, dtype=np.int64)])


def hashes_at(hashes: Sequence[str], places: Sequence[int] | NDArray[Any]) -> Sequence[str]:
    """Return hashes at some positions, in the form that all are held in.

    Args:
        hashes: Hashes of rows, n of them.
        places: Positions, each in [0, n).
    """
    if isinstance(hashes, RowHashes):
        return hashes.at(places)
    return [hashes[place] for place in places]


def _digest(text: str, text_pair: str | None) -> bytes:
    # Lengths in front, so that ("ab", "c") and ("a", "bc") differ.
    whole = f"{len(text)}:{text}"
    if text_pair is not None:
        whole += f"{len(text_pair)}:{text_pair}"
    return hashlib.blake2b(whole.encode(), digest_size=8).digest()


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
