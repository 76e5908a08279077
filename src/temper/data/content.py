"""Read a text file as a whole or line by line, and find its encoding.

Text is UTF-8, or has a byte order mark. No other encoding is guessed: every file can be decoded as
cp1252, so a guess would silently corrupt Polish or Russian texts. For other files the user must
give the encoding; the error shows the text as cp1252 decodes it.
"""

from __future__ import annotations

import codecs
import gzip
import hashlib
import io
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

from temper.errors import DataError, SettingError

UTF_8 = "utf-8-sig"
"""UTF-8; a byte order mark is removed."""

# The longer marks first: UTF-16's is the beginning of one of UTF-32's.
_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
# A zip archive (also Excel's), Parquet, gzip and PDF.
_BINARY = (b"PK\x03\x04", b"PAR1", b"\x1f\x8b", b"%PDF")
# Number of letters shown on both sides of a byte that cannot be read.
_AROUND = 12


def known_encoding(name: str) -> str:
    """Return Python's name of a text encoding; raise a `ValueError` if it is unknown.

    Example:
        >>> known_encoding("Windows-1252")
        'cp1252'
    """
    try:
        # "base64" and the like are codecs too, but not of text.
        "a".encode(name)
        return codecs.lookup(name).name
    except (LookupError, UnicodeError, ValueError) as error:
        raise ValueError(
            "must be an encoding that Python knows, such as utf-8, cp1252, latin-1, utf-16, "
            "shift_jis or gb18030"
        ) from error


def check_encoding(name: str | None) -> str | None:
    """Return Python's name of ``data.encoding``; raise a `SettingError` if it is unknown."""
    try:
        return None if name is None else known_encoding(name)
    except ValueError as error:
        raise SettingError(f"`data.encoding` {error}, got {name!r}.") from error


@dataclass(frozen=True)
class TextFile:
    """A text file, plain or gzipped. It is read from disk on each call, to save memory."""

    path: Path
    encoding: str = UTF_8

    @classmethod
    def of(cls, path: Path, encoding: str | None = None) -> TextFile:
        """Open a file and choose its encoding.

        ``encoding`` is used only for files without a byte order mark that are plain ASCII or not
        UTF-8.
        """
        plain = cls(path)
        try:
            with plain._opened() as file:
                start = file.read(1024)
        except (OSError, EOFError, zlib.error):
            # The error can only be located in the whole file.
            read_bytes(path)
            raise
        marked = next((name for mark, name in _MARKS if start.startswith(mark)), None)
        if marked is not None:
            return cls(path, marked)
        if start.startswith(_BINARY) or (encoding is None and b"\0\0" in start):
            raise DataError(
                f"{path} is not a text file. Export Excel tables as CSV. Rename Parquet files to "
                ".parquet and gzipped files to .gz. UTF-32 needs --set data.encoding=utf-32."
            )
        if encoding is None or start.startswith(codecs.BOM_UTF8) or plain._is_beyond_ascii():
            return plain
        return cls(path, encoding)

    @property
    def is_usual(self) -> bool:
        return self.encoding == UTF_8

    def source(self) -> dict[str, str]:
        """Return metadata: the file's path and its sha256."""
        try:
            with self.path.open("rb") as file:
                sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise _unreadable(self.path, error) from error
        return {"path": str(self.path), "sha256": sha256}

    def lines(self, *, newline: str = "") -> Iterator[str]:
        """Yield lines with their line ends: ``newline``, or by default any of the usual ones."""
        try:
            raw = self._opened()
            with io.TextIOWrapper(raw, encoding=self.encoding, newline=newline) as file:
                yield from file
        except (OSError, EOFError, zlib.error, UnicodeError):
            # The fault can only be located in the whole file.
            self.decode(read_bytes(self.path))
            raise

    def blank(self) -> bool:
        return not any(line.strip() for line in self.lines())

    def decode(self, raw: bytes) -> str:
        """Decode unpacked bytes; a `DataError` gives the position of an invalid byte."""
        try:
            return raw.decode(self.encoding)
        except UnicodeDecodeError as error:
            raise self._undecodable(raw, error) from None
        except UnicodeError as error:
            raise DataError(
                f"{self.path} is not {self.encoding} ({error}). Pass the file's encoding: "
                "--set data.encoding=NAME."
            ) from None

    def _undecodable(self, raw: bytes, error: UnicodeDecodeError) -> DataError:
        line = raw[: error.start].count(b"\n") + 1
        where = f"{self.path}, line {line}: byte 0x{raw[error.start]:02x} at offset {error.start}"
        if not self.is_usual:
            return DataError(
                f"{where} is not {self.encoding}. Pass the file's encoding: "
                "--set data.encoding=NAME."
            )
        begin = max(raw.rfind(b"\n", 0, error.start) + 1, error.start - _AROUND)
        shown = raw[begin : error.start + _AROUND].splitlines()[0].decode("cp1252", "replace")
        return DataError(
            f"{where} is not UTF-8. Save the file as UTF-8, or pass its encoding: "
            f"--set data.encoding=cp1252 would read {shown!r} there."
        )

    def _is_beyond_ascii(self) -> bool:
        """Return whether the file is valid UTF-8 and not only ASCII: then it is UTF-8 for sure."""
        beyond = False
        try:
            for line in self.lines():
                beyond |= not line.isascii()
        except DataError:
            return False
        return beyond

    def _opened(self) -> IO[bytes]:
        if self.path.name.lower().endswith(".gz"):
            return cast("IO[bytes]", gzip.open(self.path, "rb"))
        return self.path.open("rb")


def read_bytes(path: Path) -> bytes:
    """Return the content of a file, decompressed if its name ends with ``.gz``."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise _unreadable(path, error) from error
    if path.name.lower().endswith(".gz") and raw:
        try:
            return gzip.decompress(raw)
        except EOFError:
            raise DataError(
                f"{path} is cut short: the gzip stream ends too early. Copy the file again."
            ) from None
        except (gzip.BadGzipFile, zlib.error) as error:
            raise DataError(
                f"{path} is not a whole gzip file ({error}). Copy it again, or drop .gz from its "
                "name if it is not compressed."
            ) from error
    return raw


def _unreadable(path: Path, error: OSError) -> DataError:
    if isinstance(error, FileNotFoundError):
        return DataError(f"No such file: {path}. Check the path.")
    return DataError(f"{path} cannot be read: {error.strerror or error}.")
