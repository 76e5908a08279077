"""Copy the files of a study to and from an object store: any URL that fsspec opens."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

from temper.errors import CheckpointError, SettingError, TemperError, WriteError, one_line, shown

RUN = re.compile(r"(?:.*/)?runs/[^/]+")
"""Pattern of the folder of a run, at the beginning of a file's path."""
MARKS = ("settings.json", "run.json")
"""Files that are written last: the first completes an evaluation, the second a run."""
OF_A_STUDY = {"study.json", "tune.json", "journal.log", "runs", "trials"}


def is_url(out: object) -> bool:
    """Return whether an output folder is the URL of an object store.

    Example:
        >>> is_url("s3://bucket/study"), is_url(Path("runs/study"))
        (True, False)
    """
    return "://" in str(out)


@dataclass(frozen=True)
class Store:
    """A study in an object store, and a copy of it on this machine.

    Args:
        url: The URL, without a slash at the end.
        folder: The copy; files have the same names in both.
        known: Path -> (size, time) of files that are the same in the copy and the store.
    """

    url: str = field(repr=False)
    folder: Path
    known: dict[str, tuple[int, int]] = field(default_factory=dict, compare=False, repr=False)

    def check(self) -> None:
        """Raise if the store cannot be written to or has different content from a study."""
        # Every operation that a study needs is tried on a small file.
        name = f".temper-{uuid4().hex}"
        with self._opened() as (remote, root):
            remote.pipe_file(f"{root}/{name}", name.encode())
            try:
                remote.cat_file(f"{root}/{name}")
                entries = {Path(entry.rstrip("/")).name for entry in remote.ls(root, detail=False)}
            finally:
                remote.rm_file(f"{root}/{name}")
        foreign = sorted(entry for entry in entries if not entry.startswith("."))
        if foreign and entries.isdisjoint(OF_A_STUDY):
            raise CheckpointError(
                f"{shown(self.url)} has {foreign[0]!r} but no study. Choose another --out."
            )

    def fetch(self, part: Path | None = None, *, weights: bool = False) -> None:
        """Download the store, or the folder ``part``, to the copy; skip incomplete runs."""
        target = part or self.folder
        # Fetched next to the copy, which is not changed if the store fails.
        prefix, staged = self._prefix(target), target.with_name(f".{target.name}.fetched")
        shutil.rmtree(staged, ignore_errors=True)
        with self._opened() as (remote, root):
            # Some stores list folders as files with a slash at the end, or with no name.
            names = {name.removeprefix(f"{root}/") for name in remote.find(f"{root}/{prefix}")}
            names = {
                name
                for name in names
                if name.startswith(prefix)
                and not name.endswith("/")
                and "/." not in f"/{name}"
                and (not (run := RUN.match(name)) or f"{run[0]}/run.json" in names)
                and (weights or not (name.endswith(".safetensors") or "/checkpoints/" in name))
            }
            if names:
                copies = [str(staged / name.removeprefix(prefix)) for name in names]
                remote.get([f"{root}/{name}" for name in names], copies)
        shutil.rmtree(target, ignore_errors=True)
        if names:
            os.replace(staged, target)
        self.known.update(self._states(target))

    def put(self, folder: Path, mark: str) -> None:
        """Replace a folder in the store by that of the copy; the file ``mark`` is written last."""
        files = self._states(folder)
        if (last := self._prefix(folder) + mark) not in files:
            return
        with self._opened() as (remote, root):
            # The mark makes the folder complete: it is removed first and written last.
            for name in (last, self._prefix(folder).rstrip("/")):
                if remote.exists(f"{root}/{name}"):
                    remote.rm(f"{root}/{name}", recursive=True)
            self._upload(remote, root, files)

    def push(self) -> None:
        states = self._states(self.folder)
        with self._opened() as (remote, root):
            changed = [name for name in states if states[name] != self.known.get(name)]
            self._upload(remote, root, changed)
        self.known.update(states)

    def _upload(self, remote: Any, root: str, names: Collection[str]) -> None:
        marks = {name for name in names if Path(name).name in MARKS}
        for part in ([name for name in names if name not in marks], sorted(marks)):
            if part:
                copies = [str(self.folder / name) for name in part]
                remote.put(copies, [f"{root}/{name}" for name in part])

    def _prefix(self, folder: Path) -> str:
        inside = folder.relative_to(self.folder).as_posix()
        return "" if inside == "." else f"{inside}/"

    def _states(self, folder: Path) -> dict[str, tuple[int, int]]:
        names = {file: file.relative_to(self.folder).as_posix() for file in folder.rglob("*")}
        return {
            name: (file.stat().st_size, file.stat().st_mtime_ns)
            for file, name in names.items()
            if file.is_file() and "/." not in f"/{name}"
        }

    @contextmanager
    def _opened(self) -> Iterator[tuple[Any, str]]:
        """Yield the file system and path of the URL; turn its errors into a `TemperError`."""
        from fsspec.core import url_to_fs

        try:
            remote, root = url_to_fs(self.url)
            # Another machine may have written since.
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
        # The packages of the stores raise errors of different classes.
        except Exception as error:
            reason = one_line(shown(str(error))) or "no reason was given"
            raise WriteError(
                f"{shown(self.url)} cannot be used: {type(error).__name__}: {reason}. Check the "
                "URL, and that credentials here and on all machines may list, read, write and "
                "remove files there."
            ) from error
