"""A run's folder: its record, its metrics, and publishing a run with no half-written file.

``run.json`` is the commit point. It says ``"status": "finished"`` only after every other file lies
in its place, so a reader that finds that word may trust the rest. See docs/formats.md.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from temper.errors import CheckpointError

CHECKPOINT = re.compile(r"checkpoint-(\d+)")
STAGING = ".publishing"
RATE_FILE = "rate.json"
"""What the search for a learning rate found, where the settings say ``auto``."""
TEACHER_ANSWERS = "teacher_answers.parquet"
"""What the model of a folder answered to rows that a student was taught on."""
OWN_FILES = {
    "run.json",
    "metrics.jsonl",
    "attacked.parquet",
    TEACHER_ANSWERS,
    "checkpoints",
    STAGING,
}


@dataclass(frozen=True)
class RunFolder:
    """The folder of one training run.

    Args:
        path: Where it lies, or shall lie.
    """

    path: Path

    @property
    def checkpoints(self) -> Path:
        """Folder of the checkpoints to resume from; gone once the run is finished."""
        return self.path / "checkpoints"

    @property
    def metrics(self) -> Path:
        """File with one JSON object a log."""
        return self.path / "metrics.jsonl"

    @property
    def attacked(self) -> Path:
        """File with the texts that attacks found for the training rows."""
        return self.path / "attacked.parquet"

    @property
    def staging(self) -> Path:
        """Folder that the finished files are written to before they are moved into place."""
        return self.path / STAGING

    def record(self) -> dict[str, Any] | None:
        """Read ``run.json``.

        Returns:
            Its content, or None where there is none.

        Raises:
            CheckpointError: Where it is damaged, or the folder holds something else than a run.
        """
        file = self.path / "run.json"
        held = file.exists() or (self.path / RATE_FILE).exists()
        check_room(self.path, what="run.json", held=held)
        return read_json(file) if file.exists() else None

    def write_record(self, record: Mapping[str, Any]) -> None:
        """Write ``run.json`` in one go."""
        write_json(self.path / "run.json", record)

    def last_checkpoint(self) -> Path | None:
        """Return the newest complete checkpoint, None where there is none."""
        return newest_checkpoint_in(self.checkpoints)

    def cut_metrics(self, step: int) -> None:
        """Drop the logs behind a step, because a resumed run writes them again.

        Args:
            step: Optimiser steps that the checkpoint holds; 0 drops all.
        """
        if not self.metrics.exists():
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
        """Add one log to ``metrics.jsonl``; what is not finite has no JSON and becomes null."""
        plain = {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in entry.items()
        }
        with self.metrics.open("a", encoding="utf-8") as file:
            file.write(json.dumps(plain, allow_nan=False) + "\n")

    def logs(self) -> list[dict[str, Any]]:
        """Return the lines of ``metrics.jsonl``; none where there is no such file."""
        if not self.metrics.exists():
            return []
        return [json.loads(line) for line in self.metrics.read_text(encoding="utf-8").splitlines()]

    def clear(self) -> None:
        """Remove what a stopped run left, and nothing that is not a run's."""
        for name in OWN_FILES:
            entry = self.path / name
            if entry.is_dir():
                shutil.rmtree(entry)
            else:
                entry.unlink(missing_ok=True)

    def publish(self, record: Mapping[str, Any]) -> None:
        """Move the staged files into place, then call the run finished, then drop its checkpoints.

        Args:
            record: The finished run's record.
        """
        for staged in sorted(self.staging.iterdir()):
            os.replace(staged, self.path / staged.name)
        self.staging.rmdir()
        self.write_record(record)
        if self.checkpoints.exists():
            shutil.rmtree(self.checkpoints)


def check_room(out: Path, *, what: str, held: bool) -> None:
    """Refuse a folder to write to that holds something else.

    Args:
        out: The folder; it need not exist.
        what: What is to be written, for the message.
        held: Whether the folder holds such a thing already.

    Raises:
        CheckpointError: If it is a file, or holds something and not that.
    """
    if out.exists() and not out.is_dir():
        raise CheckpointError(f"{out} is a file, expected a folder. Give another --out.")
    foreign = sorted(entry.name for entry in out.iterdir()) if out.is_dir() else []
    if foreign and not held:
        raise CheckpointError(
            f"{out} exists and holds {foreign[0]!r} but no {what}. Give another --out, or empty "
            "that folder."
        )


def check_study_room(out: Path) -> None:
    """Refuse a folder to write a study to that holds something else.

    Args:
        out: The folder; it need not exist.

    Raises:
        CheckpointError: If it is a file, or holds something and no study, or one of which only the
            scores were kept.
    """
    if (out / "scores.parquet").exists():
        raise CheckpointError(
            f"{out} holds the kept scores of a study, whose runs cannot go on. Give another --out."
        )
    # A damaged plan is removed by hand; its runs are known by their keys.
    held = any(any(out.glob(f)) for f in ("study.json", "runs/*/run.json", "rates/*.json"))
    check_room(out, what="study", held=held)


def newest_checkpoint_in(folder: Path) -> Path | None:
    """Return the newest ``checkpoint-N`` of a folder, None where there is none."""
    found = [
        (int(match[1]), entry)
        for entry in (folder.iterdir() if folder.is_dir() else ())
        if (match := CHECKPOINT.fullmatch(entry.name)) and entry.is_dir()
    ]
    return max(found)[1] if found else None


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        CheckpointError: Where the file cannot be read or holds something else.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise CheckpointError(
            f"{path} cannot be read: {error}. Remove it, or give another --out."
        ) from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} must hold a JSON object, got {type(content).__name__}.")
    return content


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON object under a temporary name, then rename it."""
    write_text(path, json.dumps(content, indent=2, allow_nan=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write a text file under a temporary name, then rename it, so that nobody sees half of it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def staged_folder(path: Path) -> Iterator[Path]:
    """Give a folder to write to, which takes a folder's place once this context ends well.

    Args:
        path: The folder; an older one in its place is replaced by the whole new one.

    Raises:
        CheckpointError: Where the file system refuses.
    """
    make_folder(path.parent)
    staged, older = (path.with_name(f".{path.name}.{state}") for state in ("writing", "older"))
    shutil.rmtree(staged, ignore_errors=True)
    staged.mkdir()
    try:
        yield staged
        shutil.rmtree(older, ignore_errors=True)
        if path.exists():
            os.replace(path, older)
        os.replace(staged, path)
        shutil.rmtree(older, ignore_errors=True)
    finally:
        shutil.rmtree(staged, ignore_errors=True)


def make_folder(path: Path, *, option: str = "--out") -> list[Path]:
    """Create a folder for output, with the folders above it.

    Args:
        path: The folder; it may exist.
        option: What gave it, for errors.

    Returns:
        The folders that did not exist before, innermost first, so that `remove_empty` can undo
        this.

    Raises:
        CheckpointError: Where the file system refuses.
    """
    made = [folder for folder in (path, *path.parents) if not folder.exists()]
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CheckpointError(
            f"The folder {path} cannot be made: {error.strerror}. Give another {option}."
        ) from error
    return made


def remove_empty(folders: list[Path]) -> None:
    """Remove folders that `make_folder` made, as far as they are empty.

    Args:
        folders: Innermost first.
    """
    for folder in folders:
        if any(folder.iterdir()):
            return
        folder.rmdir()


def differences(before: Any, now: Any, *, path: str = "") -> list[str]:
    """Name the settings that differ between two nested tables.

    Args:
        before: Settings of the folder.
        now: Settings of this call.
        path: Dotted name of the table, for the lines.

    Returns:
        One phrase per differing value.

    Example:
        >>> differences({"train": {"epochs": 3}}, {"train": {"epochs": 1}})
        ['train.epochs was 3 and is now 1']
    """
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        names = dict.fromkeys([*before, *now])
        return [
            line
            for name in names
            for line in differences(
                before.get(name), now.get(name), path=f"{path}.{name}" if path else name
            )
        ]
    return [] if before == now else [f"{path} was {before!r} and is now {now!r}"]


def difference_in_words(before: Any, now: Any) -> str:
    """Say in what a run differs from the one in its folder, whose key is another.

    Args:
        before: Settings of the folder.
        now: Settings of this call.
    """
    changed = differences(before, now)
    return "; ".join(changed) or "the rows of the data or the model's weights changed"
