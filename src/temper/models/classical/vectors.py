"""Pre-trained word vectors from a text file, read line by line."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from temper.errors import DataError
from temper.files import sha256


def read_vectors(path: Path, words: Mapping[str, int], *, size: int) -> dict[int, list[float]]:
    """Return word id -> vector of width ``size`` for the given words, from a text file.

    A line is a word and its numbers, separated by spaces (GloVe). A first line with the number of
    words and the width is skipped (word2vec, fastText). Words must match exactly. If a word occurs
    twice, the first vector counts.
    """
    result: dict[int, list[float]] = {}
    try:
        # Only line feeds end a line, because some words of GloVe are other line breaks.
        with path.open(encoding="utf-8", newline="\n") as stream:
            for number, line in enumerate(stream, start=1):
                parts = line.rstrip("\n").rstrip(" ").split(" ")
                if number == 1 and len(parts) == 2 and all(part.isdigit() for part in parts):
                    if int(parts[1]) != size:
                        raise _malformed(path, 1, f"it announces {parts[1]} numbers a word", size)
                    continue
                # Some words of GloVe contain spaces, so the numbers are counted from the end.
                word, values = " ".join(parts[:-size]), parts[-size:]
                more = len(parts) > size + 1 and _is_number(parts[-size - 1])
                if not word or more:
                    fault = "it has more numbers" if more else f"it has {len(parts) - 1} numbers"
                    raise _malformed(path, number, fault, size)
                index = words.get(word)
                if index is None or index in result:
                    continue
                if not all(_is_number(value) and math.isfinite(float(value)) for value in values):
                    fault = f"a value of {word!r} is not a finite number"
                    raise _malformed(path, number, fault, size)
                result[index] = [float(value) for value in values]
    except OSError as error:
        raise _unreadable(path, error) from error
    except UnicodeDecodeError as error:
        raise DataError(
            f"The word vectors {path} are not UTF-8 text ({error.reason}). Unpack a compressed "
            "file, and convert a binary file to text."
        ) from error
    return result


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def content_hash(path: Path) -> str:
    """Return the hash of a file of vectors; it is cached until the file changes."""
    try:
        state = path.stat()
        return _content_hash(path, state.st_size, state.st_mtime_ns)
    except OSError as error:
        raise _unreadable(path, error) from error


@cache
def _content_hash(path: Path, *_: int) -> str:
    return sha256(path)


def _malformed(path: Path, number: int, fault: str, size: int) -> DataError:
    return DataError(
        f"Line {number} of the word vectors {path} must be a word and {size} numbers with spaces "
        f"between, but {fault}. Choose another file, or set architecture.embedding to the width of "
        "its vectors."
    )


def _unreadable(path: Path, error: OSError) -> DataError:
    return DataError(
        f"The word vectors {path} cannot be read: {error.strerror}. Set architecture.vectors to a "
        "text file, or leave it out."
    )
