"""Which rows a model has seen: those that it was trained on, and those that it is judged on.

Rows are known by their hashes, in whichever set they are. A run's record names its data, which is
read again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from temper.checkpoints.checkpoint import Checkpoint
from temper.data.examples import Examples
from temper.errors import CheckpointError
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


def seen_among(model: Checkpoint, rows: Examples) -> Seen:
    """Find the rows that a model has seen.

    Args:
        model: Only of a run anything is known.
        rows: The rows.

    Returns:
        Their positions. If a run's data is gone or has changed, rows are known by the hash of the
        whole set and by the rows of an evaluation in the run's folder; what that leaves open is a
        notice.

    Raises:
        CheckpointError: A record is damaged.
    """
    trained, notices = trained_among(model, rows)
    judged: set[str] = set()
    if model.run is not None:
        dev = model.hashes("dev") or _evaluated(model.folder) or model.hashes("dev", rows)
        if dev is None:
            notices.append(_unknown(model, "is judged on rows among these", "dev rows"))
        judged.update(dev or ())
    return Seen(
        tuple(place for place, row in enumerate(rows.rows) if row in trained),
        tuple(place for place, row in enumerate(rows.rows) if row in judged - trained),
        tuple(dict.fromkeys(notices)),
    )


def trained_among(model: Checkpoint, rows: Examples) -> tuple[set[str], list[str]]:
    """Find the rows that a model was trained on.

    Args:
        model: A run that started from another run has seen the training rows of both.
        rows: The rows.

    Returns:
        The hashes of training rows, and notices of runs that could not be checked.

    Raises:
        CheckpointError: A record is damaged.
    """
    trained: set[str] = set()
    notices: list[str] = []
    for run in model.runs:
        hashes = run.hashes("train", rows)
        if hashes is None:
            notices.append(_unknown(run, "was trained on rows among these", "training rows"))
        trained.update(hashes or ())
    return trained, notices


def trained_rows(model: Checkpoint) -> tuple[Examples | None, tuple[str, ...]]:
    """Return a run's training rows for detectors, or None and a notice of the reason.

    Both are empty for a model that is no run.
    """
    if model.run is None:
        return None, ()
    try:
        return model.training_rows(), ()
    except CheckpointError as error:
        advice = "Detectors that learn from them are left out; --set sets.fit=PATH gives them rows."
        return None, (f"{error} {advice}",)


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


def _unknown(model: Checkpoint, what: str, which: str) -> str:
    return (
        f"Whether {model} {what} could not be checked: its {which} cannot be read, or have changed."
    )
