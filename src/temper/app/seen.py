"""Which rows a checkpoint has seen: those that it was trained on, and those that it is judged on.

Rows are known by their hashes, whatever set they come in. A run's record tells where its data lie
and what they were; they are read again. A soup has seen what its members have.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
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
    trained: set[str] = set()
    judged: set[str] = set()
    notices: list[str] = []
    for run in _read_runs(model):
        if isinstance(run, str):
            notices.append(run)
            continue
        train = run.train_among(rows)
        dev = None if run.splits is None else _same(run.splits.dev, run.sets.get("dev"))
        if train is None:
            notices.append(_unknown(run.folder, *_TRAINED))
        trained.update(() if train is None else train)
        dev = _evaluated(run.folder) if dev is None else dev
        if dev is None:
            dev = _same(rows, run.sets.get("dev"))
        if dev is None:
            notices.append(_unknown(run.folder, "is judged on rows among these", "dev rows"))
        judged.update(() if dev is None else dev)
    return Seen(
        tuple(place for place, row in enumerate(rows.rows) if row in trained),
        tuple(place for place, row in enumerate(rows.rows) if row in judged - trained),
        tuple(notices),
    )


def overlap_notices(model: str, sets: Mapping[str, Examples]) -> tuple[str, ...]:
    """Say which of the rows that a checkpoint is scored on it was trained on.

    Args:
        model: As `seen_among` takes it.
        sets: The scored rows by the name of their set.

    Returns:
        A notice for each set that holds such rows, and for what could not be found out.

    Raises:
        CheckpointError: A record is damaged.
    """
    trained: dict[str, set[str]] = {name: set() for name in sets}
    notices: list[str] = []
    for run in _read_runs(model):
        if isinstance(run, str):
            notices.append(run)
            continue
        for name, rows in sets.items():
            train = run.train_among(rows)
            if train is None:
                notices.append(_unknown(run.folder, *_TRAINED))
            trained[name].update(() if train is None else train)
    for name, rows in sets.items():
        places = [place for place, row in enumerate(rows.rows) if row in trained[name]]
        if places:
            notices.append(
                f"{len(places):,} of {len(rows):,} rows of set {name!r}, the first row "
                f"{places[0] + 1}, were trained on, so its scores say too much of new rows. Give "
                "others, or leave these out; a run keeps its train rows apart from its own dev "
                "rows with --drop-overlap."
            )
    return tuple(dict.fromkeys(notices))


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


@dataclass(frozen=True)
class _Run:
    """A run whose record is known: what it was trained on, read again where that can be done."""

    folder: Path
    splits: Splits | None
    sets: Mapping[str, Any]

    def train_among(self, rows: Examples) -> Sequence[str] | None:
        """Return the hashes of the run's train rows, or of ``rows`` where those are they."""
        recorded = self.sets.get("train")
        train = None if self.splits is None else _same(self.splits.train, recorded)
        return _same(rows, recorded) if train is None else train


def _read_runs(model: str) -> Iterator[_Run | str]:
    """Read the runs of a checkpoint again; of one without a record, say so."""
    loaded: dict[str, Splits | None] = {}
    for folder in runs_of(model):
        file = folder / "run.json"
        if not file.exists():
            yield (
                f"What {folder}, a member of {model}, was trained on is not known: it holds no "
                "run.json."
            )
            continue
        record = read_json(file)
        known = json.dumps(_data(record), sort_keys=True)
        if known not in loaded:
            loaded[known] = _splits(record)
        yield _Run(folder, loaded[known], record.get("data", {}))


def _data(record: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a run's labelled data."""
    table: dict[str, Any] = record.get("settings", {}).get("data", {})
    return {**table, **dict.fromkeys(UNLABELLED)}


def _splits(record: dict[str, Any]) -> Splits | None:
    """Read a run's data again; None where that cannot be done."""
    try:
        return load_splits(DataSettings.model_validate(_data(record)))
    except (DataError, ValueError):
        return None


def _same(rows: Examples, recorded: dict[str, Any] | None) -> Sequence[str] | None:
    """Return the hashes of rows that are still those of the record; None where they are others."""
    return rows.rows if rows.hash == (recorded or {}).get("hash") else None


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


_TRAINED = ("was trained on rows among these", "training rows")


def _unknown(folder: Path, what: str, which: str) -> str:
    return (
        f"Whether {folder} {what} could not be checked: its {which} cannot be read, or have "
        "changed."
    )
