"""The content of a file: whole, or line by line as often as somebody asks and never held."""

from __future__ import annotations

import gzip
import hashlib
import io
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

from temper.errors import DataError


@dataclass(frozen=True)
class TextFile:
    """A text file, plain or gzipped, whose lines are read anew each time.

    Args:
        path: The file.
    """

    path: Path

    def source(self) -> dict[str, str]:
        """Return what identifies the content: path and sha256.

        Raises:
            DataError: If the file is missing or cannot be read.
        """
        try:
            with self.path.open("rb") as file:
                sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise _unreadable(self.path, error) from error
        return {"path": str(self.path), "sha256": sha256}

    def lines(self, *, newline: str = "") -> Iterator[str]:
        """Yield lines with what ends them.

        Args:
            newline: What ends a line; empty for a line feed, a carriage return or both.

        Raises:
            DataError: If the file is damaged or not UTF-8; says where.
        """
        try:
            raw = self._opened()
            with io.TextIOWrapper(raw, encoding="utf-8-sig", newline=newline) as file:
                yield from file
        except (OSError, EOFError, zlib.error, UnicodeDecodeError):
            # Read whole, the fault's place in the file can be told.
            decode(read_bytes(self.path)[0], path=self.path)
            raise

    def blank(self) -> bool:
        """Say whether no line holds anything."""
        return not any(line.strip() for line in self.lines())

    def _opened(self) -> IO[bytes]:
        if self.path.name.lower().endswith(".gz"):
            return cast("IO[bytes]", gzip.open(self.path, "rb"))
        return self.path.open("rb")


def read_text(path: Path) -> tuple[str, dict[str, str]]:
    """Read a text file, plain or gzipped.

    Args:
        path: The file.

    Returns:
        Its text, and what identifies its content: path and sha256.

    Raises:
        DataError: If it is missing, damaged, empty or not UTF-8.
    """
    raw, sha256 = read_bytes(path)
    text = decode(raw, path=path)
    if not text.strip():
        raise DataError(f"{path} is empty: expected rows.")
    return text, {"path": str(path), "sha256": sha256}


def first_line(path: Path) -> str:
    """Return a plain text file's first line that is not blank; empty where there is none.

    Args:
        path: The file; one that cannot be read has no such line.
    """
    try:
        with path.open(encoding="utf-8-sig", errors="replace") as file:
            return next((line.rstrip("\r\n") for line in file if line.strip()), "")
    except OSError:
        return ""


def read_bytes(path: Path) -> tuple[bytes, str]:
    """Read a file, unpacked where its name ends with ``.gz``.

    Args:
        path: The file.

    Returns:
        The content, and the file's sha256.

    Raises:
        DataError: If it is missing, or not what its name says.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise _unreadable(path, error) from error
    sha256 = hashlib.sha256(raw).hexdigest()
    if path.name.lower().endswith(".gz") and raw:
        try:
            raw = gzip.decompress(raw)
        except EOFError:
            raise DataError(
                f"{path} is cut short: the gzip stream ends too early. Copy the file again."
            ) from None
        except (gzip.BadGzipFile, zlib.error) as error:
            raise DataError(
                f"{path} is not a whole gzip file ({error}). Copy it again, or drop .gz from its "
                "name "
                "if it is not compressed."
            ) from error
    return raw, sha256


def decode(raw: bytes, *, path: Path) -> str:
    """Turn bytes into text.

    Args:
        raw: A file's content.
        path: The file, for messages.

    Raises:
        DataError: If it is not UTF-8; says where.
    """
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        wide = raw[:2] in (b"\xff\xfe", b"\xfe\xff")
        guess = " It looks like UTF-16." if wide else ""
        raise DataError(
            f"{path}, line {line}: byte 0x{raw[error.start]:02x} at offset {error.start} is not "
            "UTF-8."
            f"{guess} Save the file as UTF-8."
        ) from None


def _unreadable(path: Path, error: OSError) -> DataError:
    if isinstance(error, FileNotFoundError):
        return DataError(f"No such file: {path}. Check the path.")
    return DataError(f"{path} cannot be read: {error.strerror or error}.")
