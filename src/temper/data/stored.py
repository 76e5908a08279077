"""Texts and row hashes that are held outside of Python's objects, and read as sequences of strings.

A Python string takes some 50 bytes beside its letters. Here a text takes its UTF-8 bytes and 16 for
where it stands, and once the texts are more than `IN_MEMORY` bytes, these lie in an unnamed
temporary file that is gone with the process, and each is read when it is asked for. A row is known
by the hash of its text, wherever it stands; eight bytes are held for each.
"""

from __future__ import annotations

import hashlib
import io
import os
import tempfile
import weakref
from abc import abstractmethod
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import IO, Any, Self, overload

import numpy as np
from numpy.typing import NDArray

from temper.errors import DataError

IN_MEMORY = 1 << 24
"""Bytes of text that stay in memory."""


class StoredStrings(Sequence[str]):
    """Strings that are made when they are asked for.

    They equal every sequence of the same strings, a list among them.
    """

    __hash__ = None  # type: ignore[assignment]

    @abstractmethod
    def at(self, places: Sequence[int] | NDArray[Any]) -> Self:
        """Return the strings at some positions, in their order, which are not read yet.

        Args:
            places: Positions, each in [0, len).
        """

    @abstractmethod
    def _read(self, place: int) -> str: ...

    @overload
    def __getitem__(self, place: int) -> str: ...
    @overload
    def __getitem__(self, place: slice) -> Self: ...
    def __getitem__(self, place: int | slice) -> str | Self:
        """Return a string, or those of a slice, which are not read yet."""
        if isinstance(place, slice):
            return self.at(range(len(self))[place])
        return self._read(range(len(self))[place])

    def __eq__(self, other: object) -> bool:
        """Say whether another sequence holds the same strings in the same order."""
        if isinstance(other, str) or not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(map(str.__eq__, self, other))

    def __repr__(self) -> str:
        """Show the first ones."""
        shown = ", ".join(repr(text) for text in self[:3])
        return f"{type(self).__name__}([{shown}{', ...' if len(self) > 3 else ''}])"


def values_at(strings: Sequence[Any], places: Sequence[int] | NDArray[Any]) -> Sequence[Any]:
    """Return values at some positions, in the form that all are held in.

    Args:
        strings: Texts, hashes of rows or other values, n of them.
        places: Positions, each in [0, n).
    """
    if isinstance(strings, StoredStrings):
        return strings.at(places)
    return [strings[place] for place in places]


class StoredTexts(StoredStrings):
    """Texts whose bytes stand one after the other. Make them with `of`.

    Example:
        >>> texts = StoredTexts.of(["good", "naïve"])
        >>> len(texts), texts[1], texts == ["good", "naïve"]
        (2, 'naïve', True)
    """

    def __init__(
        self, content: bytes | _File, starts: NDArray[np.int64], ends: NDArray[np.int64]
    ) -> None:
        self._content = content
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
        memory, lengths = io.BytesIO(), array("q")
        file: _File | None = None
        for text in texts:
            encoded = text.encode()
            lengths.append(len(encoded))
            with _room():
                if file is None and memory.tell() + len(encoded) > limit:
                    file = _File()
                    file.content.write(memory.getvalue())
                    memory = io.BytesIO()
                (memory if file is None else file.content).write(encoded)
        ends = np.cumsum(np.frombuffer(lengths, dtype=np.int64), dtype=np.int64)
        starts = np.append(np.int64(0), ends[:-1]) if len(ends) else ends
        if file is None:
            return cls(memory.getvalue(), starts, ends)
        with _room():
            file.content.flush()
        return cls(file, starts, ends)

    @property
    def on_disk(self) -> bool:
        """Whether the texts lie in a file."""
        return isinstance(self._content, _File)

    def __len__(self) -> int:
        """Return the number of texts."""
        return len(self._ends)

    def at(self, places: Sequence[int] | NDArray[Any]) -> StoredTexts:
        """Return the texts at some positions; as `StoredStrings.at`."""
        chosen = np.asarray(places, dtype=np.int64)
        return StoredTexts(self._content, self._starts[chosen], self._ends[chosen])

    def _read(self, place: int) -> str:
        start, end = int(self._starts[place]), int(self._ends[place])
        if isinstance(self._content, _File):
            return self._content.read(start, end).decode()
        return self._content[start:end].decode()


class _File:
    """An unnamed temporary file."""

    def __init__(self) -> None:
        self.content: IO[bytes] = tempfile.TemporaryFile(buffering=1 << 20)  # noqa: SIM115
        self._lock = Lock()
        weakref.finalize(self, self.content.close)

    def read(self, start: int, end: int) -> bytes:
        # It moves no position that processes forked from this one share; Windows has neither.
        if hasattr(os, "pread"):
            return os.pread(self.content.fileno(), end - start, start)
        with self._lock:
            self.content.seek(start)
            return self.content.read(end - start)


@contextmanager
def _room() -> Iterator[None]:
    """Name the temporary folder where it cannot take the texts."""
    try:
        yield
    except OSError as error:
        raise DataError(
            f"Texts of more than {IN_MEMORY >> 20} MiB are kept in a temporary file in "
            f"{tempfile.gettempdir()}, which cannot take them: {error.strerror or error}. Make "
            "room there, or set TMPDIR to another folder."
        ) from error


class RowHashes(StoredStrings):
    """Hashes of rows as one array of numbers.

    Args:
        numbers: The hashes as big-endian numbers, [n] uint64.

    Example:
        >>> hashes = RowHashes.of(["a good phone", "a bad one"])
        >>> len(hashes), hashes[0], hashes == list(hashes)
        (2, '36821fe421257811', True)
    """

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

    def at(self, places: Sequence[int] | NDArray[Any]) -> RowHashes:
        """Return the hashes at some positions; as `StoredStrings.at`."""
        return RowHashes(self._numbers[np.asarray(places, dtype=np.int64)])

    def _read(self, place: int) -> str:
        return f"{int(self._numbers[place]):016x}"


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


def _digest(text: str, text_pair: str | None) -> bytes:
    # Lengths in front, so that ("ab", "c") and ("a", "bc") differ.
    whole = f"{len(text)}:{text}"
    if text_pair is not None:
        whole += f"{len(text_pair)}:{text_pair}"
    return hashlib.blake2b(whole.encode(), digest_size=8).digest()
