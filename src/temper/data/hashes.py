"""Hashes of rows: a row is known by its text, wherever it stands; eight bytes are held for each."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

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
