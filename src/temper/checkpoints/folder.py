"""The folder of a run: its record, metrics and checkpoints, and its atomic publication.

``run.json`` is the commit point: ``"status": "finished"`` is written after all other files are in
place. See docs/formats.md.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from temper.errors import CheckpointError, LockedError, SettingError, shown
from temper.files import (
    check_schema,
    checksums,
    hidden,
    make_folder,
    remove_empty,
    sha256,
    write_json,
    write_text,
    writing,
)
from temper.locks import LOCK, check_unlocked, has_lock, locked
from temper.progress import Progress

CHECKPOINT = re.compile(r"checkpoint-(\d+)")
PARTIAL = ".partial-"
STAGING = ".publishing"
TEACHER_PREDICTIONS = "teacher_predictions.parquet"
"""In distillation, the teacher's outputs for the training rows."""
TRACKED, EVENTS = "trackers.json", "tensorboard"
"""The run's ids in experiment trackers, and the folder of TensorBoard's events."""
RUN = "run.json"
"""The record of a run; a folder with it is the folder of a run."""
OF_A_RUN = (RUN, "metrics.jsonl", TEACHER_PREDICTIONS, TRACKED)
WRITTEN = (*OF_A_RUN, "study.json", "paired.json")
"""Files that are written under a temporary name and then renamed."""
OWN_FILES = {*OF_A_RUN, EVENTS, "checkpoints", STAGING}
URL = re.compile(r"[a-z][a-z0-9+.-]+:/")
LEFTOVERS = re.compile(rf"{LOCK.pattern}|\.({'|'.join(map(re.escape, WRITTEN))})\.\w+")
"""Matches files that a killed process may leave: lock files and temporary files."""


@dataclass(frozen=True)
class RunFolder:
    """The folder of one training run, which need not exist.

    ``writes`` is False in the ranks of distributed training that do not write; there, methods that
    would change the folder do nothing.
    """

    path: Path
    writes: bool = True

    @property
    def checkpoints(self) -> Path:
        """Folder of the checkpoints to resume from, until the run is finished."""
        return self.path / "checkpoints"

    @property
    def metrics(self) -> Path:
        """File with one JSON object per logged step or evaluation."""
        return self.path / "metrics.jsonl"

    @property
    def staging(self) -> Path:
        """Folder in which the final files are written before `publish` moves them."""
        return self.path / STAGING

    def record(self) -> dict[str, Any] | None:
        """Read ``run.json``; None if there is none.

        Raises:
            CheckpointError: The file is damaged, or the folder has different content from a run.
        """
        file = self.path / RUN
        check_output_folder(self.path, what=RUN, held=lambda: os.path.exists(file))
        return read_json(file) if os.path.exists(file) else None

    def held(self) -> AbstractContextManager[bool]:
        return held_folder(self.path) if self.writes else nullcontext(False)

    def write_record(self, record: Mapping[str, Any]) -> None:
        if self.writes:
            write_json(self.path / RUN, record)

    def last_checkpoint(self) -> Path | None:
        return newest_checkpoint_in(self.checkpoints)

    def cut_metrics(self, step: int) -> None:
        """Drop the logs after a step, because a resumed run logs those steps again; 0 drops all."""
        if not self.writes or not self.metrics.exists():
            return
        kept = []
        for line in self.metrics.read_text(encoding="utf-8").splitlines():
            try:
                entry = json.loads(line)
            except json.JSONDecodeError:
                # A killed process leaves at most one unfinished line, and it is the last.
                break
            if entry["step"] > step:
                break
            kept.append(line + "\n")
        write_text(self.metrics, "".join(kept))

    def append_metrics(self, entry: Mapping[str, Any]) -> None:
        """Append an entry to ``metrics.jsonl``; NaN and infinity become null."""
        if not self.writes:
            return
        plain = {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in entry.items()
        }
        with self.metrics.open("a", encoding="utf-8") as file:
            file.write(json.dumps(plain, allow_nan=False) + "\n")

    def logs(self) -> list[dict[str, Any]]:
        """Return the entries of ``metrics.jsonl``; empty if there is no such file.

        Raises:
            CheckpointError: The file cannot be read, or a line is not a JSON object.
        """
        if not self.metrics.exists():
            return []
        logs = []
        try:
            for line in self.metrics.read_text(encoding="utf-8").splitlines():
                logs.append(dict(json.loads(line)))
        except (OSError, ValueError, TypeError) as error:
            raise CheckpointError(
                f"Line {len(logs) + 1} of {self.metrics} is not a JSON object: {error}."
            ) from error
        return logs

    def clear(self) -> None:
        """Remove the run's own files; keep all others."""
        for name in OWN_FILES if self.writes else ():
            entry = self.path / name
            if entry.is_dir():
                shutil.rmtree(entry)
            else:
                entry.unlink(missing_ok=True)

    def publish(self, record: Mapping[str, Any]) -> None:
        """Move the staged files into place, write the final record, then remove the checkpoints.

        The record gets ``files``, the SHA-256 of these files and of ``metrics.jsonl``.
        """
        files = checksums(self.staging)
        if self.metrics.exists():
            files[self.metrics.name] = sha256(self.metrics)
        for staged in sorted(self.staging.iterdir()):
            os.replace(staged, self.path / staged.name)
        self.staging.rmdir()
        self.write_record({**record, "files": files})
        self.drop_checkpoints()

    def drop_unfinished(self) -> None:
        """Remove partly written checkpoints and staged files."""
        for entry in self.staging, *self.checkpoints.glob(f"{PARTIAL}*"):
            if self.writes:
                shutil.rmtree(entry, ignore_errors=True)

    def sweep_finished(self) -> None:
        """Remove checkpoints that a process left when it was killed after its run had finished."""
        if self.checkpoints.exists() or has_lock(self.path):
            # A process that is still writing removes them itself.
            with suppress(LockedError), self.held():
                self.drop_checkpoints()

    def drop_checkpoints(self) -> None:
        """Remove the checkpoints of a finished run; failures are ignored, and retried later."""
        if self.writes:
            shutil.rmtree(self.checkpoints, ignore_errors=True)


@contextmanager
def held_folder(path: Path) -> Iterator[bool]:
    """Lock the folder of a run or a study inside this context; yield whether it was created.

    The folder is created if needed, and removed if it stays empty. Temporary files of killed
    processes are removed.

    Raises:
        LockedError: Another process writes the folder.
        WriteError: The folder or a file cannot be written.
    """
    made = make_folder(path)
    try:
        with writing(path), locked(path):
            for name in WRITTEN:
                for left in path.glob(f".{name}.*"):
                    left.unlink(missing_ok=True)
            yield bool(made)
    finally:
        remove_empty(made)


def check_output_folder(
    out: Path, *, what: str, held: Callable[[], bool], option: str = "--out"
) -> None:
    """Raise unless an output folder is new, empty, or has content of the kind ``what``.

    ``held`` returns whether the folder has content of that kind, for example a run.

    Raises:
        CheckpointError: It is a file, or has different content.
        SettingError: It is a URL.
        LockedError: Another process writes it.
    """
    # `Path` keeps one slash of a URL's two. A single letter is a drive, not a scheme.
    if URL.match(str(out)) and not out.exists():
        raise SettingError(
            f"{option} {shown(out)} looks like the URL of a store. Pass a local folder; only "
            "`temper compare` and `temper tune` with --cluster write to an object store."
        )
    with writing(out):
        if out.exists() and not out.is_dir():
            raise CheckpointError(f"{out} is a file, expected a folder. Choose another {option}.")
        entries = [entry.name for entry in out.iterdir()] if out.is_dir() else []
    # The lock of a run or a study is inside its folder, that of an evaluation is next to it.
    for folder in (out, hidden(Path(os.path.realpath(out)), "writing")):
        check_unlocked(folder, what=out)
    foreign = sorted(name for name in entries if not LEFTOVERS.fullmatch(name))
    # Called after the listing, because another process may have moved its folder there.
    if foreign and not held():
        raise CheckpointError(
            f"{out} exists and has {foreign[0]!r} but no {what}. Choose another {option}, or "
            "empty that folder."
        )


def check_study_folder(out: Path) -> None:
    """Raise as `check_output_folder` does unless a study can be written to a folder."""
    # A study of which only the scores were kept.
    if os.path.exists(out / "scores.parquet"):
        raise CheckpointError(
            f"{out} has only the scores of a study, without its runs, so it cannot be resumed. "
            "Choose another --out."
        )
    # A user may have deleted a damaged study.json; then its runs identify the study.
    known = ("study.json", "runs/*/run.json")
    check_output_folder(out, what="study", held=lambda: any(any(out.glob(name)) for name in known))


def newest_checkpoint_in(folder: Path) -> Path | None:
    """Return the ``checkpoint-N`` with the highest N in a folder; None if there is none."""
    result = [
        (int(match[1]), entry)
        for entry in folder.glob("checkpoint-*")
        if (match := CHECKPOINT.fullmatch(entry.name)) and entry.is_dir()
    ]
    return max(result)[1] if result else None


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON record; raise a `CheckpointError` if it is damaged or of another `SCHEMA`."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(
            f"{path} cannot be read: {error}. Remove it, or choose another --out."
        ) from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} must hold a JSON object, got {type(content).__name__}.")
    check_schema(path, content)
    return content


def differences(before: Any, now: Any, *, path: str = "") -> list[str]:
    """Return ``NAME: OLD -> NEW`` for each setting that differs.

    Example:
        >>> differences({"train": {"epochs": 3}}, {"train": {"epochs": 1}})
        ['train.epochs: 3 -> 1']
    """
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        inner = f"{path}." if path else ""
        return [
            line
            for name in dict.fromkeys([*before, *now])
            for line in differences(before.get(name), now.get(name), path=f"{inner}{name}")
        ]
    return [] if before == now else [f"{path}: {before!r} -> {now!r}"]


def difference_in_words(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Describe how a new run differs from the run in its folder, for an error.

    Example:
        >>> uegr, soup = {"name": "uegr", "epsilon": 0.1}, {"name": "soup", "runs": 3}
        >>> difference_in_words({"method": uegr}, {"method": soup})
        'method: uegr -> soup'
    """
    tables = [side["method"] for side in (before, now) if isinstance(side.get("method"), Mapping)]
    names = [table.get("name") for table in tables]
    changed = []
    # Settings of two methods are not comparable.
    if len(set(names)) == 2:
        changed.append(f"method: {names[0]} -> {names[1]}")
        before, now = {**before, "method": None}, {**now, "method": None}
    changed += differences(before, now)
    return "; ".join(changed) or "the rows of the data or the model's weights changed"


def is_finished(
    folder: RunFolder, found: dict[str, Any] | None, config: Any, key: str, progress: Progress
) -> bool:
    """Return whether ``found``, the folder's record, is of this run and finished.

    ``key`` is the fingerprint of this run.

    Raises:
        CheckpointError: The record is of another run.
    """
    if found is None:
        return False
    if found.get("key") == key:
        finished = found.get("status") == "finished"
        if finished:
            progress.notice(f"Up to date: {folder.path}")
        return finished
    what = difference_in_words(
        {"model": found.get("model"), "seed": found.get("seed"), **found.get("settings", {})},
        {"model": config.model, "seed": config.seed, **config.settings()},
    )
    raise CheckpointError(
        f"{folder.path} has a run with other settings or data: {what}. Choose another --out, "
        "or remove that folder."
    )
