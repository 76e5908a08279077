"""Write files and folders atomically, and turn failed writes into errors with a remedy."""

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
"""Version of the format of all JSON records; a release reads only its own."""
CHECKSUMS = "checksums.json"
"""File in a checkpoint with the SHA-256 of its other files."""
NAME_MAX = 255
"""Maximum length of a file name on common file systems, in bytes."""
WRITE_ONLY = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG}
"""Values of `errno` that only a write can raise."""
WRITE_FAILURES = {*WRITE_ONLY, errno.EIO, errno.EACCES, errno.EPERM, errno.ENAMETOOLONG}
"""Values of `errno` for a failed write; a read can raise some of them, too."""
# Errors of Rust libraries have the number only in their text.
NUMBER = re.compile(r"(?:os error |code: )(\d+)")


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Raise a `WriteError` instead of an `OSError` or a library's error if writing a path fails."""
    try:
        yield
    except Exception as error:
        number = getattr(error, "errno", None)
        if not isinstance(number, int):
            match = NUMBER.search(str(error))
            number = int(match[1]) if match else None
        filename = getattr(error, "filename", None)
        # An error about another file counts only if it cannot come from reading that file.
        near = Path(os.path.realpath(path)).parent
        elsewhere = filename is not None and near not in Path(os.path.realpath(filename)).parents
        if number not in (WRITE_ONLY if elsewhere else WRITE_FAILURES):
            raise
        raise WriteError(_refused(path, number)) from error


def _refused(path: Path, number: int) -> str:
    message = f"{path} cannot be written: {os.strerror(number)}"
    if number in (errno.ENOSPC, errno.EDQUOT):
        free = free_bytes(path)
        room = "" if free is None else f" ({size_in_words(free)} are free)"
        return f"{message}{room}. Free disk space, and run the command again."
    if number == errno.ENAMETOOLONG:
        return f"{message}. Names have at most {NAME_MAX} bytes: choose a shorter one."
    return f"{message}. Make the folder writable, and run the command again."


def free_bytes(path: Path) -> int | None:
    """Return the free bytes on the disk of a path, which need not exist; None if unknown."""
    folder = Path(os.path.realpath(path))
    while not folder.is_dir() and folder != folder.parent:
        folder = folder.parent
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return None


def check_free(path: Path, wanted: int, *, what: str) -> None:
    """Raise `WriteError` if a disk has fewer than ``wanted`` bytes free; quotas are ignored."""
    free = free_bytes(path)
    if free is not None and free < wanted:
        raise WriteError(
            f"{path} has room for {size_in_words(free)}, and {what} takes at least "
            f"{size_in_words(wanted)}. Free disk space, or choose another --out."
        )


def check_memory(wanted: int, *, what: str) -> None:
    """Raise `MemoryLimitError` if fewer than ``wanted`` bytes of memory are free."""
    free = memory.free_memory()
    if free is not None and free < wanted:
        raise MemoryLimitError(
            f"{what} take at least {size_in_words(wanted)} of memory, and "
            f"{size_in_words(free)} are free. Evaluate fewer rows (--eval-rows)."
        )


def check_table(path: Path) -> None:
    """Raise if the rows of a Parquet file are larger than the free memory; reads metadata only.

    Raises:
        MemoryLimitError: Less memory is free than the encoded columns take.
        OSError, pyarrow.ArrowException: The file cannot be read.
    """
    from pyarrow import parquet

    metadata = parquet.read_metadata(path)
    groups = (metadata.row_group(number) for number in range(metadata.num_row_groups))
    # The size as encoded is the least that the columns can take.
    check_memory(sum(group.total_byte_size for group in groups), what=f"The rows in {path}")


def size_in_words(size: int) -> str:
    """Format a number of bytes with a decimal unit.

    Example:
        >>> size_in_words(90_868_376)
        '90.9 MB'
    """
    for factor, unit in ((10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if size >= factor:
            return f"{size / factor:.3g} {unit}"
    return f"{size} bytes"


def write_json(path: Path, content: Mapping[str, Any]) -> dict[str, Any]:
    """Write a JSON object atomically, with `SCHEMA` added, and return it."""
    record = {"schema": SCHEMA, **content}
    write_text(path, json.dumps(record, indent=2, allow_nan=False) + "\n")
    return record


def check_schema(path: Path, content: Any) -> None:
    """Raise `CheckpointError` if a JSON record has a different version from `SCHEMA`."""
    result = content.get("schema", SCHEMA) if isinstance(content, Mapping) else SCHEMA
    if result != SCHEMA:
        raise CheckpointError(
            f"{path} has schema {result!r}; this release reads schema {SCHEMA}: another release "
            "of Temper wrote the file. Use that release, or run the command for the file again."
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
    """Yield a temporary path to write to; on success it is renamed to ``path``."""
    with writing(path):
        # A symbolic link stays: the file that it points to is replaced.
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


@contextmanager
def staged_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder to write to; on success it replaces ``path``.

    The temporary folder is in ``.NAME.writing`` next to ``path``. This is locked: another process
    that writes the same folder gets a `LockedError`. Leftovers of an earlier, killed call are
    cleaned up first.
    """
    # A symbolic link stays: the folder that it points to is replaced.
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
    """Undo a killed `staged_folder`: restore the old folder and remove the temporary one."""
    target = Path(os.path.realpath(path))
    if hidden(target, "writing").exists():
        with writing(path), suppress(LockedError), _tidied(target, path):
            pass


@contextmanager
def _tidied(target: Path, path: Path) -> Iterator[Path]:
    """Lock ``.NAME.writing`` next to a folder, undo what a killed call left in it, and yield it."""
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
    """Create a folder and its parents; return the created ones, innermost first."""
    path = Path(os.path.realpath(path))
    try:
        made = [folder for folder in (path, *path.parents) if not folder.exists()]
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CheckpointError(
            f"The folder {path} cannot be created: {error.strerror}. Choose another {option}."
        ) from error
    return made


def remove_empty(folders: list[Path]) -> None:
    """Remove the folders that `make_folder` created, up to the first that is not empty."""
    for folder in folders:
        try:
            folder.rmdir()
        except OSError:
            # It is not empty, or another process has removed it.
            return


def checksums(folder: Path) -> dict[str, str]:
    """Return relative path -> SHA-256 of all files under a folder, except `CHECKSUMS`."""
    files = sorted(file for file in folder.rglob("*") if file.is_file() and file.name != CHECKSUMS)
    return {file.relative_to(folder).as_posix(): sha256(file) for file in files}


def sha256(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def disagreements(folder: Path, recorded: Mapping[str, str]) -> list[str]:
    """Return a message per file that is missing or does not have its recorded SHA-256."""
    faults = []
    for name, expected in recorded.items():
        file = folder / name
        # Unlike `Path.is_file`, it does not raise on overlong names of a damaged list.
        if not os.path.isfile(file):
            faults.append(f"{file} is missing.")
        elif sha256(file) != expected:
            faults.append(f"{file} is damaged or was changed: its SHA-256 is not the recorded one.")
    return faults
