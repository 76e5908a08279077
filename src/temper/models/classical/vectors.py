"""Pre-trained word vectors from a text file, read line by line."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from functools import cache, partial
from pathlib import Path

from temper.errors import DataError


def read_vectors(path: Path, words: Mapping[str, int], *, size: int) -> dict[int, list[float]]:
    """Read the vectors of some words.

    A line is a word and its numbers with spaces between (GloVe); a first line of two whole numbers,
    how many words and how wide, is passed over (word2vec, fastText). Only the vectors that are
    asked for are held. Of a word that comes again the first vector counts.

    Args:
        path: The file, in UTF-8.
        words: Word to id; the file's words are matched as they stand.
        size: Numbers of a vector.

    Returns:
        Vector by id, of the words that are in the file.

    Raises:
        DataError: The file cannot be read, or a line has another form; it names the line.
    """
    found: dict[int, list[float]] = {}
    for number, line in _lines(path):
        parts = line.rstrip("\n").rstrip(" ").split(" ")
        if number == 1 and len(parts) == 2 and all(part.isdigit() for part in parts):
            if int(parts[1]) != size:
                raise _malformed(path, number, f"it announces {parts[1]} numbers a word", size)
            continue
        # Some words of GloVe hold spaces, so the numbers are counted from the end.
        word, values = " ".join(parts[:-size]), parts[-size:]
        if not word:
            raise _malformed(path, number, f"it has {len(parts) - 1} numbers", size)
        if len(parts) > size + 1 and _is_number(parts[-size - 1]):
            raise _malformed(path, number, "it has more numbers", size)
        place = words.get(word)
        if place is None or place in found:
            continue
        try:
            found[place] = [float(value) for value in values]
        except ValueError:
            raise _malformed(path, number, f"{word!r} has something else", size) from None
        if not all(map(math.isfinite, found[place])):
            raise _malformed(path, number, f"a number of {word!r} is not finite", size)
    return found


def content_hash(path: Path) -> str:
    """Hash a file's content, once as long as it stays the same.

    Args:
        path: The file.

    Raises:
        DataError: It cannot be read.
    """
    try:
        state = path.stat()
    except OSError as error:
        raise _unreadable(path, error) from error
    return _content_hash(path, state.st_size, state.st_mtime_ns)


@cache
def _content_hash(path: Path, size: int, changed: int) -> str:
    try:
        with path.open("rb") as stream:
            digest = hashlib.file_digest(stream, partial(hashlib.blake2b, digest_size=16))
    except OSError as error:
        raise _unreadable(path, error) from error
    return digest.hexdigest()


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    try:
        # Only line feeds end a line: some words of GloVe are other kinds of line break.
        with path.open(encoding="utf-8", newline="\n") as stream:
            yield from enumerate(stream, start=1)
    except OSError as error:
        raise _unreadable(path, error) from error
    except UnicodeDecodeError as error:
        raise DataError(
            f"The word vectors {path} are not UTF-8 text ({error.reason}). A text file is needed, "
            "not a binary or a packed one: unpack or convert it."
        ) from error


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _malformed(path: Path, number: int, came: str, size: int) -> DataError:
    return DataError(
        f"Line {number} of the word vectors {path} must be a word and {size} numbers with spaces "
        f"between, but {came}. Give another file, or set architecture.embedding to the width of "
        "its vectors."
    )


def _unreadable(path: Path, error: OSError) -> DataError:
    return DataError(
        f"The word vectors {path} cannot be read: {error.strerror}. Set architecture.vectors to a "
        "text file, or leave it out."
    )
