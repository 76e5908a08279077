"""Which rows a checkpoint has seen: those that it was trained on, and those that it is judged on.

Rows are known by their hashes, whatever set they come in. A run's record tells where its data lie
and what they were; they are read again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from temper.checkpoints.folder import read_json
from temper.data.examples import Examples, Splits
from temper.data.settings import UNLABELLED, DataSettings
from temper.data.sources import load_splits
from temper.errors import CheckpointError, DataError
from temper.evaluation.folder import read
from temper.evaluation.rows import to_blocks


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
        model: Folder of a run; of another checkpoint nothing is known.
        rows: The rows to look at.

    Returns:
        Their positions. Where a run's data are gone or have changed, rows are known by the hash of
        the whole set and by the rows of an evaluation beside the run; what that leaves open is a
        notice.

    Raises:
        CheckpointError: A record is damaged.
    """
    runs = _read_runs(_runs_of(model))
    trained, notices = trained_among(model)(rows)
    judged: set[str] = set()
    for run in runs:
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
    folders = _runs_of(model)
    for folder in folders:
        base = _runs_of(str(read_json(folder / "run.json").get("model", "")))
        # The loop also visits the folders that are added here.
        folders += [run for run in base if run not in folders]
    return partial(_trained_on, _read_runs(folders))


def _runs_of(model: str) -> list[Path]:
    """Return the folder of a run in a list; any other model gives an empty list."""
    folder = Path(model).expanduser()
    return [folder] if (folder / "run.json").exists() else []


def trained_rows(model: str) -> tuple[Examples | None, tuple[str, ...]]:
    """Load the rows that a run was trained on, where they can still be read.

    Args:
        model: Folder of a run; anything else has no such rows.

    Returns:
        The rows, and what to say where a run has some that cannot be had. Both are empty for a
        model that is no run.
    """
    runs = _read_runs(_runs_of(model))
    if not runs:
        return None, ()
    (run,) = runs
    advice = "Detectors that learn from them are left out; --fit PATH gives them rows."
    if run.splits is None:
        said = f"The rows that {model} was trained on cannot be read ({run.fault}). {advice}"
        return None, (said,)
    if run.recorded("train", run.splits.train) is None:
        source = run.record["settings"]["data"]["source"]
        return None, (
            f"The data that {model} was trained on has changed since: {source} gives other rows "
            f"now. {advice}",
        )
    return run.splits.train, ()


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

    def recorded(self, name: str, rows: Examples) -> Sequence[str] | None:
        """Return the hashes of rows that are still its train or dev rows; None for other rows."""
        recorded_hash = self.record.get("data", {}).get(name, {}).get("hash")
        return rows.rows if rows.hash == recorded_hash else None


def _read_runs(folders: Iterable[Path]) -> list[_Run]:
    """Read the records and the data of runs."""
    runs: list[_Run] = []
    loaded: dict[str, tuple[Splits | None, str]] = {}
    for folder in folders:
        record = read_json(folder / "run.json")
        data = {**record.get("settings", {}).get("data", {}), **dict.fromkeys(UNLABELLED)}
        known = json.dumps(data, sort_keys=True)
        if known not in loaded:
            try:
                loaded[known] = load_splits(DataSettings.model_validate(data)), ""
            except (DataError, ValueError) as error:
                loaded[known] = None, str(error).splitlines()[0]
        runs.append(_Run(folder, record, *loaded[known]))
    return runs


def _trained_on(runs: Sequence[_Run], rows: Examples) -> tuple[set[str], list[str]]:
    """Return the hashes of train rows, as far as they are known, and notices of what is not."""
    trained: set[str] = set()
    notices: list[str] = []
    for run in runs:
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
