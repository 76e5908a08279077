"""A study's files in an object store, and the folder of this machine in which they are worked on.

The store is whatever fsspec knows by a URL.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

from temper.errors import CheckpointError, SettingError, TemperError, WriteError, one_line, shown
from temper.files import CHECKSUMS

PART_MARKS = (CHECKSUMS, "settings.json")
"""Files that say what lies in the folder of a checkpoint or of an evaluation."""
MARKS = (*PART_MARKS, "run.json", "study.json", "tune.json")
FIRST = {"study.json", "tune.json", "journal.log", "rates"}
"""What is put first of a study or of a race."""
PART = re.compile(r"(?<![^/])(runs|checkpoints)/[^/]+/")
"""The folder of a run or a checkpoint in a name."""
WHOLE = {"runs": "run.json", "checkpoints": CHECKSUMS}
"""What lies in such a folder that is there whole."""
OF_MACHINES = re.compile(r"(?:.*?/)?runs/[^/]+-[0-9a-f]{12}/(?!calibration\.json$)")
"""How names begin that the machines of a cluster put: all of a run but a race's temperature."""
ATTEMPT = ".attempt"
"""File of a run that says whose copy puts it."""
FileState = tuple[int, int]
WEIGHTS = ".safetensors"


def is_url(out: object) -> bool:
    """Say whether an out folder is the URL of a store.

    Example:
        >>> is_url("s3://bucket/study"), is_url(Path("runs/study"))
        (True, False)
    """
    return "://" in str(out)


@dataclass(frozen=True)
class Store:
    """A study in an object store, and its copy on this machine.

    A mark lies in the store only while all files do that it speaks of: it is put after them, and
    that of a checkpoint or an evaluation is removed before they are replaced. ``run.json`` is only
    ever replaced: "running" stays true of the checkpoints beside it, and a finished run, whose key
    is part of its name, is never trained again.

    Args:
        url: Where the study lies, without a slash at the end.
        folder: The copy; files have the same names in both.
        known: Files of the store by name: size and time of the copy's; None for those of a half
            run or checkpoint, which the copy lacks.
        attempt: What tells this copy from others that put the same run.
    """

    url: str = field(repr=False)
    folder: Path
    known: dict[str, FileState | None] = field(default_factory=dict, compare=False, repr=False)
    attempt: str = field(default_factory=lambda: uuid4().hex, compare=False)

    @contextmanager
    def probe(self) -> Iterator[str]:
        """Hold a small file in the store inside this context, and yield its name.

        Raises:
            SettingError: The package is missing that knows such stores.
            WriteError: The store cannot be reached, or forbids to write, read, list or remove.
        """
        name = f".temper-{uuid4().hex}"
        with self._reached() as (remote, root):
            remote.pipe_file(f"{root}/{name}", name.encode())
        try:
            with self._reached() as (remote, root):
                remote.cat_file(f"{root}/{name}")
            yield name
        finally:
            with self._reached() as (remote, root):
                remote.rm_file(f"{root}/{name}")

    def holds(self, name: str) -> bool:
        """Say whether the store has a file.

        Args:
            name: Its name below the URL.
        """
        with self._reached() as (remote, root):
            return bool(remote.exists(f"{root}/{name}"))

    def check_room(self) -> None:
        """Refuse a place that holds something else than a study or a race.

        Raises:
            CheckpointError: It does.
            WriteError: It cannot be listed.
        """
        with self._reached() as (remote, root):
            held = {name.removeprefix(root).strip("/") for name in remote.ls(root, detail=False)}
        foreign = sorted(name for name in held if name and not _is_hidden(name))
        if foreign and held.isdisjoint(FIRST):
            raise CheckpointError(
                f"{shown(self.url)} holds {foreign[0]!r} but no study. Give another --out."
            )

    def fetch(self, folder: Path | None = None, *, weights: bool) -> None:
        """Make the copy what the store holds, half runs and checkpoints left out.

        Args:
            folder: The part of the copy; None for all of it. It stays as it is where this fails.
            weights: Whether models' weights are wanted too.

        Raises:
            WriteError: The store or this machine's disk refuses.
        """
        place = folder or self.folder
        prefix, staged = self._prefix(place), place.with_name(f".{place.name}.fetched")
        try:
            with self._reached() as (remote, root):
                held = self._remote_names(remote, root, prefix)
                whole = {name for name in held if _is_whole(name, held)}
                names = {name for name in whole if weights or not name.endswith(WEIGHTS)}
                if names:
                    copies = [str(staged / name.removeprefix(prefix)) for name in names]
                    remote.get([f"{root}/{name}" for name in names], copies)
                # First: a copy that an interrupt leaves without files must not empty the store.
                for name in [name for name in self.known if name.startswith(prefix)]:
                    del self.known[name]
                shutil.rmtree(place, ignore_errors=True)
                if names:
                    os.replace(staged, place)
        finally:
            shutil.rmtree(staged, ignore_errors=True)
        self.known.update(dict.fromkeys(held - whole))
        self.known.update(self._local_files(names.__contains__))

    def begin(self, folder: Path) -> None:
        """Note in the store that this copy puts a run from now on, and no older one.

        Args:
            folder: The run's folder in the copy.

        Raises:
            WriteError: The store refuses.
        """
        with self._reached() as (remote, root):
            remote.pipe_file(f"{root}/{self._prefix(folder)}{ATTEMPT}", self.attempt.encode())

    def put(self, folder: Path) -> None:
        """Make the store hold a run as the copy does, hidden files left out.

        Args:
            folder: The run's folder in the copy.

        Raises:
            TemperError: Another copy began the run after this one.
            WriteError: The store refuses.
        """
        prefix, attempt = self._prefix(folder), b""
        with self._reached() as (remote, root):
            with suppress(FileNotFoundError):
                attempt = remote.cat_file(f"{root}/{prefix}{ATTEMPT}")
            if attempt != self.attempt.encode():
                raise TemperError(
                    f"Another machine has taken {shown(self.url)}/{prefix} over. This one stops."
                )
            self._mirror(remote, root, lambda name: name.startswith(prefix))

    def push(self) -> None:
        """Make the store hold what the study's own process writes as the copy does.

        Raises:
            WriteError: The store refuses.
        """
        with self._reached() as (remote, root):
            self._mirror(remote, root, lambda name: not OF_MACHINES.match(name))

    def _mirror(self, remote: Any, root: str, is_meant: Callable[[str], bool]) -> None:
        """Put what has changed in the copy, and remove what is gone, in an order that keeps marks.

        A new checkpoint counts once its own mark is there, and the older ones go after it.
        """
        local = self._local_files(is_meant)
        changed = {name for name in local if self.known.get(name) != local[name]}
        # The weights of the best epoch ("best-N") come before the checkpoint that counts on them.
        marks = sorted(filter(_is_mark, changed), key=lambda name: (-name.count("/"), name))
        files = sorted(changed.difference(marks))
        outdated = [name for name in marks if Path(name).name in PART_MARKS and name in self.known]
        self._remove(remote, root, outdated)
        for names in filter(None, (files, *([mark] for mark in marks))):
            copies = [str(self.folder / name) for name in names]
            remote.put(copies, [f"{root}/{name}" for name in names])
            self.known.update((name, local[name]) for name in names)
        gone = [name for name in self.known if is_meant(name) and name not in local]
        self._remove(remote, root, sorted(gone, key=_is_mark, reverse=True))

    def _remove(self, remote: Any, root: str, names: Iterable[str]) -> None:
        for name in names:
            with suppress(FileNotFoundError):
                remote.rm_file(f"{root}/{name}")
            del self.known[name]

    def _prefix(self, folder: Path) -> str:
        """Return how the names of a folder's files begin."""
        inside = folder.relative_to(self.folder).as_posix()
        return "" if inside == "." else f"{inside}/"

    def _remote_names(self, remote: Any, root: str, prefix: str) -> set[str]:
        """Return the names of the store's files that begin so."""
        found = remote.find(f"{root}/{prefix}".rstrip("/"))
        names = {name.removeprefix(root).removeprefix("/") for name in found}
        # A name that ends with a slash, or is none, stands for a folder in stores that have none.
        return {name for name in names if name[-1:] not in ("", "/") and not _is_hidden(name)}

    def _local_files(self, is_meant: Callable[[str], bool]) -> dict[str, FileState]:
        """Return size and time of files of the copy by name."""
        states = {}
        for file in self.folder.rglob("*"):
            name = file.relative_to(self.folder).as_posix()
            if is_meant(name) and not _is_hidden(name) and file.is_file():
                found = file.stat()
                states[name] = found.st_size, found.st_mtime_ns
        return states

    @contextmanager
    def _reached(self) -> Iterator[tuple[Any, str]]:
        """Give the store and what its names begin with; what it raises becomes one error."""
        from fsspec.core import url_to_fs

        try:
            remote, root = url_to_fs(self.url)
            # Another machine may have written since; folders of a disk are made as they are needed.
            remote.invalidate_cache()
            remote.auto_mkdir = True
            yield remote, root.rstrip("/")
        except TemperError:
            raise
        except ImportError as error:
            raise SettingError(
                f"{shown(self.url)} needs a package that is not installed ({error}). Install it "
                "with pip, here and on all machines."
            ) from error
        # Each store's package has errors of its own.
        except Exception as error:
            reason = one_line(shown(str(error))) or "no reason was given"
            raise WriteError(
                f"{shown(self.url)} cannot be used: {type(error).__name__}: {reason}. Give a "
                "place, and credentials that may list, read, write and remove files there, here "
                "and on all machines."
            ) from error


def _is_hidden(name: str) -> bool:
    """Say whether a file is a lock, a probe or half of another file."""
    return name.startswith(".") or "/." in name


def _is_mark(name: str) -> bool:
    """Say whether a file says that others lie beside it."""
    return Path(name).name in MARKS


def _is_whole(name: str, held: set[str]) -> bool:
    """Say whether the marks of the run and the checkpoint that a file is of are held too."""
    return all(name[: part.end()] + WHOLE[part[1]] in held for part in PART.finditer(name))
