"""Store texts and row hashes compactly, as sequences of strings.

A Python string takes about 50 bytes in addition to its characters. Here a text takes its UTF-8
bytes and about six for its position. More than `IN_MEMORY` bytes are kept in an unnamed temporary
file, which is deleted when the process ends. A row hash takes eight bytes.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import weakref
from abc import abstractmethod
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, repeat
from threading import Lock
from typing import IO, Any, Self, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from temper.errors import DataError

IN_MEMORY = 1 << 24
"""Maximum number of bytes to keep in memory before a temporary file is used."""
# Number of strings, and maximum number of bytes, that are read or written together.
_BLOCK, _BLOCK_BYTES = 256, 1 << 16
# Maximum number of different words that are shared.
_WORDS = 1000


Value_co = TypeVar("Value_co", covariant=True)


class Stored(Sequence[Value_co]):
    """A sequence whose values are created on access; `at` reads several at once, and faster."""

    @abstractmethod
    def at(self, indices: Sequence[int] | NDArray[Any]) -> Sequence[Value_co]:
        """Return the values at ``indices``, in that order."""


class StoredStrings(Stored[str]):
    """A lazy sequence of strings, which is equal to a list of the same strings."""

    __hash__ = None  # type: ignore[assignment]

    @abstractmethod
    def at(self, indices: Sequence[int] | NDArray[Any]) -> Self:
        """Return the strings at ``indices``, in that order, as a lazy sequence."""

    @abstractmethod
    def _read(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Self: ...
    def __getitem__(self, index: int | slice) -> str | Self:
        if isinstance(index, slice):
            return self.at(range(len(self))[index])
        return self._read(range(len(self))[index])

    def __eq__(self, other: object) -> bool:
        if isinstance(other, str) or not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(map(str.__eq__, self, other))

    def __repr__(self) -> str:
        shown = ", ".join(repr(text) for text in self[:3])
        return f"{type(self).__name__}([{shown}{', ...' if len(self) > 3 else ''}])"


def values_at(values: Sequence[Any], indices: Sequence[int] | NDArray[Any]) -> Sequence[Any]:
    """Return values by index: a `Stored` sequence, an array for row numbers, or a list."""
    if isinstance(values, Stored):
        return values.at(indices)
    chosen = np.asarray(indices, dtype=np.int64)
    if isinstance(values, range | array):
        # Numbers of rows: 8 bytes each instead of 36 in a list of Python's numbers.
        return array("q", np.asarray(values, dtype=np.int64)[chosen].tobytes())
    # Python's numbers take many times the memory of the values, so positions come in blocks.
    blocks = (chosen[first : first + _BLOCK].tolist() for first in range(0, len(chosen), _BLOCK))
    return [values[index] for block in blocks for index in block]


class StoredBytes:
    """A growing buffer of bytes, in a temporary file from `IN_MEMORY` bytes on.

    A forked process may read what was appended before the fork, but must not append.
    """

    def __init__(self) -> None:
        self._memory = bytearray()
        self._file: IO[bytes] | None = None
        self._lock = Lock()
        self.size = 0

    def append(self, content: bytes | bytearray) -> None:
        """Append bytes; raise a `DataError` if the temporary folder is full."""
        try:
            if self._file is None and self.size + len(content) > IN_MEMORY:
                # Unbuffered, so that forked processes see all written bytes.
                self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115
                weakref.finalize(self, self._file.close)
                before, self._memory = self._memory, bytearray()
                _write(self._file, before)
            self.size += len(content)
            if self._file is None:
                self._memory += content
            else:
                _write(self._file, content)
        except OSError as error:
            raise DataError(
                f"Texts of more than {IN_MEMORY >> 20} MiB are kept in a temporary file in "
                f"{tempfile.gettempdir()}, which cannot take them: {error.strerror or error}. Make "
                "room there, or set TMPDIR to another folder."
            ) from error

    def read(self, start: int, end: int) -> bytes:
        if self._file is None:
            return bytes(self._memory[start:end])
        # Forked processes share the file's position, so it must not move. Windows has no fork.
        if hasattr(os, "pread"):
            return os.pread(self._file.fileno(), end - start, start)
        with self._lock:
            before = self._file.tell()
            self._file.seek(start)
            try:
                return self._file.read(end - start)
            finally:
                self._file.seek(before)


def _write(file: IO[bytes], content: bytes | bytearray) -> None:
    rest = memoryview(content)
    while rest:
        # A full disk accepts a part and fails on the next.
        rest = rest[file.write(rest) :]


class StoredTexts(StoredStrings):
    """A lazy sequence of texts, kept as UTF-8 in a `StoredBytes`. Create it with `of`.

    Example:
        >>> texts = StoredTexts.of(["good", "naïve"])
        >>> len(texts), texts[1], texts == ["good", "naïve"]
        (2, 'naïve', True)
    """

    def __init__(self, content: StoredBytes, starts: NDArray[Any], sizes: NDArray[Any]) -> None:
        self._content = content
        self._starts = starts
        self._sizes = sizes

    @classmethod
    def of(cls, texts: Iterable[str]) -> StoredTexts:
        """Store texts one by one, so that an iterator need not fit in memory."""
        writer = TextWriter()
        for text in texts:
            writer.append(text)
        return writer.texts()

    def __len__(self) -> int:
        return len(self._sizes)

    def at(self, indices: Sequence[int] | NDArray[Any]) -> StoredTexts:
        chosen = np.asarray(indices, dtype=np.int64)
        return StoredTexts(self._content, self._starts[chosen], self._sizes[chosen])

    def __iter__(self) -> Iterator[str]:
        # Adjacent texts are read together.
        for first in range(0, len(self), _BLOCK):
            starts, sizes = (item[first : first + _BLOCK] for item in (self._starts, self._sizes))
            ends = starts + sizes
            low, high = int(starts.min()), int(ends.max())
            if high - low > min(2 * int(sizes.sum()), 2 * _BLOCK_BYTES):
                yield from map(self._read, range(first, first + len(starts)))
                continue
            block = self._content.read(low, high)
            for start, end in zip((starts - low).tolist(), (ends - low).tolist(), strict=True):
                yield block[start:end].decode()

    def _read(self, index: int) -> str:
        start = int(self._starts[index])
        return self._content.read(start, start + int(self._sizes[index])).decode()


class TextWriter:
    """Collects texts one at a time into `StoredTexts`."""

    def __init__(self) -> None:
        self._content, self._block = StoredBytes(), bytearray()
        self._lengths = array("q")

    def append(self, text: str) -> None:
        """Append a text.

        Raises:
            DataError: The temporary folder is full.
            UnicodeEncodeError: The text contains half of a surrogate pair.
        """
        encoded = text.encode()
        self._lengths.append(len(encoded))
        self._block += encoded
        if len(self._block) >= _BLOCK_BYTES:
            self._content.append(self._block)
            self._block.clear()

    def texts(self) -> StoredTexts:
        """Return the texts; afterwards nothing may be appended."""
        self._content.append(self._block)
        self._block.clear()
        sizes = np.frombuffer(self._lengths, dtype=np.int64)
        # The smallest integer type, because there may be millions; it must also fit the last end.
        starts = np.zeros(len(sizes), dtype=np.min_scalar_type(self._content.size))
        np.cumsum(sizes[:-1], out=starts[1:])
        small = sizes.astype(np.min_scalar_type(sizes.max(initial=0)))
        return StoredTexts(self._content, starts, small)


class SharedWords:
    """Saves memory: returns one object for equal strings, for the first `_WORDS` distinct ones."""

    def __init__(self) -> None:
        self._words: dict[object, object] = {}

    def of(self, value: object) -> object:
        if type(value) is not str:
            return value
        if len(self._words) >= _WORDS:
            return self._words.get(value, value)
        return self._words.setdefault(value, value)


def listed(values: Iterable[object]) -> list[object]:
    """Return values as a list in which equal strings share one object; a list stays as it is."""
    return values if isinstance(values, list) else list(map(SharedWords().of, values))


class RowHashes(StoredStrings):
    """The hashes of rows, 16 hexadecimal digits each, stored as numbers [n] uint64 (blake2b).

    A row's hash is the same on every machine and version.

    Example:
        >>> hashes = RowHashes.of(["a good phone", "a bad one"])
        >>> len(hashes), hashes[0], hashes == list(hashes)
        (2, '36821fe421257811', True)
    """

    def __init__(self, numbers: NDArray[np.uint64]) -> None:
        self._numbers = numbers

    @classmethod
    def of(cls, text: Iterable[str], text_pair: Iterable[str] | None = None) -> RowHashes:
        """Hash texts, or pairs of texts.

        Raises:
            DataError: A text contains half of a surrogate pair, which no tokenizer accepts.
        """
        seconds: Iterable[str | None] = repeat(None) if text_pair is None else text_pair
        digests = map(_digest, text, seconds)
        content = bytearray()
        # In blocks, because joining all at once would first make a list of all objects.
        try:
            while block := b"".join(islice(digests, _BLOCK)):
                content += block
        except UnicodeEncodeError as error:
            raise DataError(
                f"A text contains half of a surrogate pair, {error.object[error.start]!a}, which "
                "is not a character. Replace it: "
                "text.encode('utf-8', 'replace').decode()."
            ) from error
        return cls(np.frombuffer(content, dtype=">u8").astype(np.uint64))

    def __len__(self) -> int:
        return len(self._numbers)

    def at(self, indices: Sequence[int] | NDArray[Any]) -> RowHashes:
        return RowHashes(self._numbers[np.asarray(indices, dtype=np.int64)])

    def found_in(self, others: RowHashes) -> list[int]:
        """Return the indices of the hashes that are also in ``others``, ascending."""
        # np.isin would also sort this set's hashes, which may be many more.
        theirs = np.sort(others._numbers)
        first, behind = (theirs.searchsorted(self._numbers, side) for side in ("left", "right"))
        result: list[int] = np.flatnonzero(first < behind).tolist()
        return result

    def __iter__(self) -> Iterator[str]:
        for first in range(0, len(self), _BLOCK):
            digits = self._numbers[first : first + _BLOCK].astype(">u8").tobytes().hex()
            yield from (digits[index : index + 16] for index in range(0, len(digits), 16))

    def _read(self, index: int) -> str:
        return f"{int(self._numbers[index]):016x}"


def _digest(text: str, text_pair: str | None) -> bytes:
    # Lengths first, so that ("ab", "c") and ("a", "bc") differ.
    whole = f"{len(text)}:{text}"
    if text_pair is not None:
        whole += f"{len(text_pair)}:{text_pair}"
    return hashlib.blake2b(whole.encode(), digest_size=8).digest()
