"""Which rows a checkpoint has seen: those that it was trained on, and those that it is judged on.

Rows are known by their hashes, whatever set they come in. A run's record tells where its data lie
and what they were; they are read again. A soup has seen what its members have.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from temper.data.examples import Examples, Splits
from temper.data.settings import UNLABELLED, DataSettings
from temper.data.sources import load_splits
from temper.errors import CheckpointError, DataError
from temper.evaluation.folder import read
from temper.evaluation.rows import to_blocks
from temper.training.checkpoint_folder import read_json


@dataclass(frozen=True)
class Seen:
    """What of some rows a checkpoint has seen.

    Args:
        trained: Positions of the rows that it was trained on, ascending.
        judged: Positions of those that are dev rows of its runs and were not trained on.
        notices: What could not be found out.
    """

    trained: tuple[int, ...] = ()
    judged: tuple[int, ...] = ()
    notices: tuple[str, ...] = ()


def seen_among(model: str, rows: Examples) -> Seen:
    """Look which rows a checkpoint has seen.

    Args:
        model: Folder of a run, or of a soup, whose members are looked at; of another checkpoint
            nothing is known.
        rows: The rows to look at.

    Returns:
        Their positions. Where a run's data are gone or have changed, rows are known by the hash of
        the whole set and by the rows of an evaluation beside the run; what that leaves open is a
        notice.

    Raises:
        CheckpointError: A record is damaged.
    """
    runs = _read_runs(runs_of(model), model)
    trained, notices = trained_among(model)(rows)
    judged: set[str] = set()
    for run in runs:
        if isinstance(run, str):
            continue
        dev = None if run.splits is None else run.recorded("dev", run.splits.dev)
        dev = dev or _evaluated(run.folder) or run.recorded("dev", rows)
        if dev is None:
            notices.append(_unknown(run.folder, "is judged on rows among these", "dev rows"))
        judged.update(dev or ())
    return Seen(
        tuple(place for place, row in enumerate(rows.rows) if row in trained),
        tuple(place for place, row in enumerate(rows.rows) if row in judged - trained),
        tuple(dict.fromkeys(notices)),
    )


def trained_among(model: str) -> Callable[[Examples], tuple[set[str], list[str]]]:
    """Return a function that finds the rows that a checkpoint was trained on.

    Args:
        model: As `seen_among` takes it. A run that started from another run has seen its rows too.

    Returns:
        A function from a set to the hashes of rows that were trained on, and notices of what could
        not be checked.

    Raises:
        CheckpointError: A record is damaged.
    """
    folders = runs_of(model)
    for folder in folders:
        record = read_json(folder / "run.json") if (folder / "run.json").exists() else {}
        base = runs_of(str(record.get("model", "")))
        # The loop also visits the folders that are added here.
        folders += [run for run in base if run not in folders]
    return partial(_trained_on, _read_runs(folders, model))


def runs_of(model: str) -> list[Path]:
    """Return the folders of the runs that a checkpoint is made of.

    Args:
        model: Folder of a run, which is its own, or of a soup; anything else has none.

    Raises:
        CheckpointError: The soup's record is damaged.
    """
    folder = Path(model).expanduser()
    if (folder / "run.json").exists():
        return [folder]
    if not (folder / "soup.json").exists():
        return []
    return [Path(str(member)) for member in read_json(folder / "soup.json").get("members", [])]


def trained_rows(model: str) -> tuple[Examples | None, tuple[str, ...]]:
    """Load what a run, or all runs of a soup, were trained on, where it can still be read.

    Args:
        model: Folder of a run or a soup; anything else has no such rows.

    Returns:
        The rows, and what to say where a run has some that cannot be had. Both are empty for a
        model that is no run.
    """
    runs = _read_runs(runs_of(model), model)
    if not runs:
        return None, ()
    advice = "Detectors that learn from them are left out; --fit PATH gives them rows."
    first, *others = runs
    if isinstance(first, str) or any(
        isinstance(run, str) or run.hash_of("train") != first.hash_of("train") for run in others
    ):
        return None, (
            f"The members of {model} were trained on different rows, or do not say on which, so "
            f"held-out rows among them cannot be told. {advice}",
        )
    if first.splits is None:
        said = f"The rows that {model} was trained on cannot be read ({first.fault}). {advice}"
        return None, (said,)
    if first.recorded("train", first.splits.train) is None:
        source = first.record["settings"]["data"]["source"]
        return None, (
            f"The data that {model} was trained on has changed since: {source} gives other rows "
            f"now. {advice}",
        )
    return first.splits.train, ()


@dataclass(frozen=True)
class _Run:
    """A run whose record is known.

    Args:
        folder: Where it lies.
        record: Its ``run.json``.
        splits: Its data, read again; None where that cannot be done.
        fault: Why it cannot.
    """

    folder: Path
    record: Mapping[str, Any]
    splits: Splits | None
    fault: str = ""

    def hash_of(self, name: str) -> str | None:
        """Return the recorded hash of its train or dev rows."""
        recorded_hash: str | None = self.record.get("data", {}).get(name, {}).get("hash")
        return recorded_hash

    def recorded(self, name: str, rows: Examples) -> Sequence[str] | None:
        """Return the hashes of rows that are still its train or dev rows; None for other rows."""
        return rows.rows if rows.hash == self.hash_of(name) else None


def _read_runs(folders: Iterable[Path], model: str) -> list[_Run | str]:
    """Read the runs of a checkpoint again; of one without a record, say so."""
    runs: list[_Run | str] = []
    loaded: dict[str, tuple[Splits | None, str]] = {}
    for folder in folders:
        file = folder / "run.json"
        if not file.exists():
            runs.append(
                f"What {folder}, a member of {model}, was trained on is not known: it holds no "
                "run.json."
            )
            continue
        record = read_json(file)
        data = {**record.get("settings", {}).get("data", {}), **dict.fromkeys(UNLABELLED)}
        known = json.dumps(data, sort_keys=True)
        if known not in loaded:
            try:
                loaded[known] = load_splits(DataSettings.model_validate(data)), ""
            except (DataError, ValueError) as error:
                loaded[known] = None, str(error).splitlines()[0]
        runs.append(_Run(folder, record, *loaded[known]))
    return runs


def _trained_on(runs: Sequence[_Run | str], rows: Examples) -> tuple[set[str], list[str]]:
    """Return the hashes of train rows, as far as they are known, and notices of what is not."""
    trained: set[str] = set()
    notices: list[str] = []
    for run in runs:
        if isinstance(run, str):
            notices.append(run)
            continue
        train = None if run.splits is None else run.recorded("train", run.splits.train)
        train = train or run.recorded("train", rows)
        if train is None:
            notices.append(_unknown(run.folder, "was trained on rows among these", "training rows"))
        trained.update(train or ())
    return trained, notices


def _evaluated(folder: Path) -> Sequence[str] | None:
    """Return the hashes of the dev rows of a run's evaluation, None where it has none."""
    try:
        table = read(folder / "evaluation").rows
    except CheckpointError:
        return None
    return [
        row
        for block in to_blocks(table)
        if (block.condition.perspective, block.condition.set) == ("task", "dev")
        for row in block.row
    ] or None


def _unknown(folder: Path, what: str, which: str) -> str:
    return (
        f"Whether {folder} {what} could not be checked: its {which} cannot be read, or have "
        "changed."
    )
