"""Write files and folders atomically, and report failures in one line."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import resources
from pathlib import Path
from typing import Any

from temper import memory
from temper.errors import CheckpointError, LockedError, MemoryLimitError, WriteError
from temper.locks import has_ended, locked, process_tag

SCHEMA = 1
"""Schema number of all records; another release needs it to read them."""
CHECKSUMS = "checksums.json"
"""Hashes of the files of a checkpoint to resume from."""
NAME_MAX = 255
"""Bytes of the longest file name that common file systems take."""
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG}
"""Error numbers that only writing raises."""
REFUSALS = {*FULL, errno.EIO, errno.EACCES, errno.EPERM, errno.ENAMETOOLONG}
"""Error numbers if it cannot or must not write, or cannot read other files."""
# Libraries in Rust have the number only in their text.
NUMBER = re.compile(r"(?:os error |code: )(\d+)")


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn exceptions of a file system or library on a failed write into a `WriteError`."""
    try:
        yield
    except Exception as error:
        number = getattr(error, "errno", None)
        if not isinstance(number, int):
            match = NUMBER.search(str(error))
            number = int(match[1]) if match else None
        filename = getattr(error, "filename", None)
        # An error of another file counts only if reading cannot raise it.
        near = Path(os.path.realpath(path)).parent
        elsewhere = filename is not None and near not in Path(os.path.realpath(filename)).parents
        if number not in (FULL if elsewhere else REFUSALS):
            raise
        raise WriteError(_refused(path, number)) from error


def _refused(path: Path, number: int) -> str:
    message = f"{path} cannot be written: {os.strerror(number)}"
    if number in (errno.ENOSPC, errno.EDQUOT):
        free = free_bytes(path)
        room = "" if free is None else f" ({size_in_words(free)} are free)"
        return f"{message}{room}. Free some room, and give the same command again."
    if number == errno.ENAMETOOLONG:
        return f"{message}. Names have at most {NAME_MAX} bytes: give a shorter one."
    return f"{message}. See to it that the folder can be written to, and give the command again."


def free_bytes(path: Path) -> int | None:
    """Return the free bytes of the file system of an existing or new path, None if unknown."""
    folder = Path(os.path.realpath(path))
    while not folder.is_dir() and folder != folder.parent:
        folder = folder.parent
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return None


def check_free(path: Path, wanted: int, *, what: str) -> None:
    """Raise `WriteError` before work if fewer than ``wanted`` bytes are free; ignores quotas."""
    free = free_bytes(path)
    if free is not None and free < wanted:
        raise WriteError(
            f"{path} has room for {size_in_words(free)}, and {what} takes at least "
            f"{size_in_words(wanted)}. Free some room, or give another --out."
        )


def check_memory(wanted: int, *, what: str) -> None:
    """Raise `MemoryLimitError` before work if fewer than ``wanted`` bytes are free."""
    free = memory.free_memory()
    if free is not None and free < wanted:
        raise MemoryLimitError(
            f"{what} take at least {size_in_words(wanted)} of memory, and {size_in_words(free)} "
            "are free. Evaluate fewer rows (--eval-rows)."
        )


def check_table(path: Path) -> None:
    """Raise before reading if a Parquet file needs more than the free memory.

    Raises:
        MemoryLimitError: Fewer bytes are free than its encoded columns have.
        OSError, pyarrow.ArrowException: The file cannot be read.
    """
    from pyarrow import parquet

    metadata = parquet.read_metadata(path)
    groups = (metadata.row_group(number) for number in range(metadata.num_row_groups))
    # The size as encoded is the least that the columns can take.
    check_memory(sum(group.total_byte_size for group in groups), what=f"The rows in {path}")


def size_in_words(size: int) -> str:
    """Write a number of bytes for people.

    Example:
        >>> size_in_words(90_868_376)
        '90.9 MB'
    """
    for factor, unit in ((10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if size >= factor:
            return f"{size / factor:.3g} {unit}"
    return f"{size} bytes"


def write_json(path: Path, content: Mapping[str, Any]) -> dict[str, Any]:
    """Write a record, a JSON object with the number of its schema, atomically, and return it."""
    record = {"schema": SCHEMA, **content}
    write_text(path, json.dumps(record, indent=2, allow_nan=False) + "\n")
    return record


def check_schema(path: Path, content: Any) -> None:
    """Raise `CheckpointError` if this release does not know the schema of a record."""
    result = content.get("schema", SCHEMA) if isinstance(content, Mapping) else SCHEMA
    if result != SCHEMA:
        raise CheckpointError(
            f"{path} has schema {result!r}; this release reads schema {SCHEMA}: another release "
            "of Temper wrote it. Use that one, or give the command again that wrote the file."
        )


def asset(package: str, name: str) -> str:
    """Return the text of a file in the folder ``assets`` of a package."""
    return (resources.files(package) / "assets" / name).read_text(encoding="utf-8")


def write_text(path: Path, text: str) -> None:
    """Write a text file under a temporary name, then rename it, so no reader sees half of it."""
    with replaced(path) as temporary, temporary.open("w", encoding="utf-8", newline="\n") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """Yield a temporary name to write to; it replaces the file if the context succeeds."""
    with writing(path):
        # A link stays, and the file that it points to is replaced.
        target = Path(os.path.realpath(path))
        temporary = hidden(target, process_tag())
        beginning = hidden(target, "").name
        for name in os.listdir(target.parent):
            # Leftovers of killed processes for the same file.
            if name.startswith(beginning) and has_ended(name.removeprefix(beginning)):
                target.with_name(name).unlink(missing_ok=True)
        try:
            yield temporary
            os.replace(temporary, target)
        finally:
            temporary.unlink(missing_ok=True)


def hidden(path: Path, ending: str) -> Path:
    """Return a hidden temporary name next to a path, ``.NAME.ENDING``.

    Example:
        >>> hidden(Path("runs/a"), "writing").as_posix()
        'runs/.a.writing'
    """
    name = f".{path.name}.{ending}"
    if len(os.fsencode(name)) > NAME_MAX:
        name = f".{hashlib.sha256(os.fsencode(path.name)).hexdigest()}.{ending}"
    return path.with_name(name)


def sweep(folder: Path, names: Iterator[str] | tuple[str, ...]) -> None:
    """Remove leftovers of killed `write_text` calls in a folder that only this process writes."""
    for name in names:
        for left in folder.glob(f".{name}.*"):
            left.unlink(missing_ok=True)


@contextmanager
def staged_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder to write to; it replaces the folder if the context succeeds.

    All of it happens in ``.NAME.writing`` next to the folder, which is locked: another process that
    writes the same folder gets a `CheckpointError`. Files that a killed process left are removed,
    and a folder that it had moved away is put back.
    """
    # A link stays, and the folder that it points to is replaced.
    target = Path(os.path.realpath(path))
    made = make_folder(target.parent)
    try:
        with writing(path), _tidied(target, path) as work:
            new, older = work / "new", work / "older"
            new.mkdir()
            try:
                yield new
                if target.exists():
                    os.replace(target, older)
                os.replace(new, target)
            finally:
                for left in (new, older):
                    shutil.rmtree(left, ignore_errors=True)
    finally:
        remove_empty(made)


def put_back(path: Path) -> None:
    """Undo what a killed `staged_folder` left next to a folder, unless a process is writing it."""
    target = Path(os.path.realpath(path))
    if hidden(target, "writing").exists():
        with writing(path), suppress(LockedError), _tidied(target, path):
            pass


@contextmanager
def _tidied(target: Path, path: Path) -> Iterator[Path]:
    """Yield the locked and empty folder next to a folder, in which its next content is written."""
    work = hidden(target, "writing")
    try:
        with locked(work, what=path):
            if (older := work / "older").exists() and not target.exists():
                os.replace(older, target)
            for name in ("new", "older"):
                shutil.rmtree(work / name, ignore_errors=True)
            yield work
    finally:
        remove_empty([work])


def make_folder(path: Path, *, option: str = "--out") -> list[Path]:
    """Create a folder for output; return the created ones, innermost first, for `remove_empty`."""
    path = Path(os.path.realpath(path))
    try:
        made = [folder for folder in (path, *path.parents) if not folder.exists()]
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CheckpointError(
            f"The folder {path} cannot be made: {error.strerror}. Give another {option}."
        ) from error
    return made


def remove_empty(folders: list[Path]) -> None:
    """Remove folders that `make_folder` made, except those that are not empty."""
    for folder in folders:
        try:
            folder.rmdir()
        except OSError:
            # It is not empty, or another process has removed it.
            return


def checksums(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each file under a folder by its path in it, without `CHECKSUMS`."""
    files = sorted(file for file in folder.rglob("*") if file.is_file() and file.name != CHECKSUMS)
    return {file.relative_to(folder).as_posix(): sha256(file) for file in files}


def sha256(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def disagreements(folder: Path, recorded: Mapping[str, str]) -> list[str]:
    """Return a message for each file that is missing or differs from the recorded `checksums`."""
    faults = []
    for name, expected in recorded.items():
        file = folder / name
        # Of a damaged list: `Path.is_file` raises where a name is too long.
        if not os.path.isfile(file):
            faults.append(f"{file} is missing.")
        elif sha256(file) != expected:
            faults.append(f"{file} is damaged or was changed: its SHA-256 is not the recorded one.")
    return faults
