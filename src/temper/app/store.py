"""A study's files in an object store, and the folder of this machine in which they are worked on.

The store is whatever fsspec knows by a URL. A run is put there file by file, its ``run.json`` last
and taken away first where an older one is replaced: a run without that file counts as not begun.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

from temper.errors import CheckpointError, SettingError, TemperError, WriteError, one_line

MARKS = ("run.json", "study.json", "tune.json")
"""Files that say what else lies in their folder; they are put last."""
FIRST = {"study.json", "tune.json", "journal.log", "rates"}
"""What is put first of a study or of a race."""
RUN = re.compile(r"(?:.*/)?runs/[^/]+/")
"""The folder of a run, as a name in the store begins."""
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

    Args:
        url: Where the study lies, without a slash at the end.
        folder: The copy; files have the same names in both.
        known: Size and time of the copy's files that the store has too, by their names.
    """

    url: str
    folder: Path
    known: dict[str, tuple[int, int]] = field(default_factory=dict, compare=False, repr=False)

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
                f"{self.url} holds {foreign[0]!r} but no study. Give another --out."
            )

    def fetch(self, folder: Path | None = None, *, weights: bool) -> None:
        """Make the copy what the store holds.

        Args:
            folder: The part of the copy; None for all of it.
            weights: Whether models' weights are wanted too.

        Raises:
            WriteError: The store or this machine's disk refuses.
        """
        place = folder or self.folder
        for name in self._here(place):
            self.known.pop(name, None)
        shutil.rmtree(place, ignore_errors=True)
        with self._reached() as (remote, root):
            there = self._there(remote, root, place)
            whole = {name.removesuffix("run.json") for name in there if name.endswith("/run.json")}
            names = [
                name
                for name in there
                if ((run := RUN.match(name)) is None or run[0] in whole)
                and (weights or not name.endswith(WEIGHTS))
            ]
            if names:
                remote.get(*self._pairs(root, names))
        self.known.update((name, self._state(name)) for name in names)

    def put(self, folder: Path) -> None:
        """Make the store hold a folder of the copy as it is, hidden files left out.

        Args:
            folder: The folder.

        Raises:
            WriteError: The store refuses.
        """
        names = self._here(folder)
        with self._reached() as (remote, root):
            for name in self._there(remote, root, folder):
                if name not in names or Path(name).name in MARKS:
                    remote.rm_file(f"{root}/{name}")
            self._send(remote, root, names)

    def push(self) -> None:
        """Put what has changed in the copy since it was fetched or pushed, and remove what is gone.

        Raises:
            WriteError: The store refuses.
        """
        states = {name: self._state(name) for name in self._here(self.folder)}
        with self._reached() as (remote, root):
            for name in self.known.keys() - states.keys():
                remote.rm_file(f"{root}/{name}")
                del self.known[name]
            self._send(remote, root, [n for n in states if self.known.get(n) != states[n]])
        self.known.update(states)

    def _send(self, remote: Any, root: str, names: Iterable[str]) -> None:
        """Put files, those last that say that the others are there."""
        marks = [name for name in names if Path(name).name in MARKS]
        if others := [name for name in names if name not in marks]:
            # The other way round than they are fetched.
            remote.put(*reversed(self._pairs(root, others)))
        for name in sorted(marks, key=lambda name: -name.count("/")):
            remote.put_file(str(self.folder / name), f"{root}/{name}")

    def _pairs(self, root: str, names: Iterable[str]) -> tuple[list[str], list[str]]:
        """Return where files lie in the store, and where in the copy."""
        return [f"{root}/{name}" for name in names], [str(self.folder / name) for name in names]

    def _there(self, remote: Any, root: str, folder: Path) -> list[str]:
        """Return the names of the store's files of a folder."""
        inside = folder.relative_to(self.folder).as_posix()
        found = remote.find(root if inside == "." else f"{root}/{inside}")
        names = [name.removeprefix(root).removeprefix("/") for name in found]
        # A name that ends with a slash, or is none, stands for a folder in stores that have none.
        return [name for name in names if name[-1:] not in ("", "/") and not _is_hidden(name)]

    def _here(self, folder: Path) -> list[str]:
        """Return the names of the copy's files of a folder."""
        files = [file for file in folder.rglob("*") if file.is_file()]
        names = [file.relative_to(self.folder).as_posix() for file in files]
        return [name for name in names if not _is_hidden(name)]

    def _state(self, name: str) -> tuple[int, int]:
        found = (self.folder / name).stat()
        return found.st_size, found.st_mtime_ns

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
                f"{self.url} needs a package that is not installed ({error}). Install it with pip, "
                "here and on all machines."
            ) from error
        # Each store's package has errors of its own.
        except Exception as error:
            said = one_line(str(error)) or "no reason was given"
            raise WriteError(
                f"{self.url} cannot be used: {type(error).__name__}: {said}. Give a place, and "
                "credentials that may list, read, write and remove files there, here and on all "
                "machines."
            ) from error


def _is_hidden(name: str) -> bool:
    """Say whether a file is a lock, a probe or half of another file."""
    return name.startswith(".") or "/." in name
