"""Verify a folder: hashes of its files, and scores recomputed from rows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from temper.checkpoints.folder import read_json
from temper.errors import CheckpointError, TemperError
from temper.files import CHECKSUMS, disagreements
from temper.models.names import near_folder

RECORDS = {
    "run.json": "run",
    "export.json": "export",
    "settings.json": "evaluation",
}
"""File with the hashes of a folder's files -> kind of the folder."""
TOLERANCE = 1e-9
"""Allowed relative difference of two scores: processors sum in different orders."""


@dataclass(frozen=True)
class Verified:
    """The result for one folder.

    Args:
        kind: ``run``, ``export``, ``evaluation`` or ``checkpoint``.
        files: Number of files whose hashes were compared; None if no hashes were written.
        scores: Number of scores that were recomputed; None if there are none.
        faults: One sentence for each difference.
    """

    folder: Path
    kind: str
    files: int | None
    scores: int | None
    faults: tuple[str, ...]


def verify(folder: Path | str) -> list[Verified]:
    """Check that the files and scores under a folder are as they were written.

    Hashes are recomputed from the files, and scores of evaluations from their rows. The result has
    an entry for each run, export, evaluation and checkpoint, sorted by folder.

    Raises:
        CheckpointError: If the folder has no files of Temper.
    """
    root = Path(folder)
    names = {*RECORDS, CHECKSUMS}
    result = [
        _verified(file)
        for file in sorted(file for file in root.rglob("*.json") if file.name in names)
        if file.name != "settings.json" or file.with_name("scores.json").exists()
    ]
    if not result:
        raise CheckpointError(
            f"{root} has no {', '.join(sorted(names))}.{near_folder(root)} Pass a folder that "
            "Temper wrote."
        )
    return result


def _verified(file: Path) -> Verified:
    kind, folder = RECORDS.get(file.name, "checkpoint"), file.parent
    try:
        record = read_json(file)
        sums = record.get("sha256" if kind == "checkpoint" else "files")
        faults = [] if sums is None else disagreements(folder, sums)
        scores = None
        if kind == "evaluation":
            scores, wrong = _rescored(folder, record)
            faults += wrong
    except TemperError as error:
        return Verified(folder, kind, None, None, (str(error),))
    except (OSError, ValueError, TypeError, AttributeError, KeyError) as error:
        # A record may contain anything; unreadable content is a difference.
        fault = f"The records in {folder} are not what docs/formats.md describes: {error!s:.300}"
        return Verified(folder, kind, None, None, (fault,))
    return Verified(folder, kind, None if sums is None else len(sums), scores, tuple(faults))


def _rescored(folder: Path, record: Mapping[str, Any]) -> tuple[int, list[str]]:
    """Recompute the scores of an evaluation from its rows; return their number and differences."""
    from temper.evaluation.run import read, score
    from temper.evaluation.settings import EvaluationSettings

    evaluation = read(folder)
    settings = EvaluationSettings.model_validate(record.get("evaluate", {}))
    # Intervals, which take resamples, are not compared.
    settings = settings.without(evaluation.skipped).model_copy(update={"bootstrap": 0})
    made = score(evaluation.rows, evaluation.task["metric"], settings=settings)
    # A missing score has no value.
    ours, theirs = (
        {_name(entry): entry.get("value") for entry in entries}
        for entries in (evaluation.scores, made)
    )
    return len(made), [
        f"{folder / 'scores.json'}: {name} is {ours.get(name)!r}, and the rows give "
        f"{theirs.get(name)!r}"
        for name in dict.fromkeys([*ours, *theirs])
        if not _alike(ours.get(name), theirs.get(name))
    ]


def _name(entry: Mapping[str, Any]) -> str:
    parameters = entry.get("parameters") or {}
    described = [f"{name}={value}" for name, value in sorted(parameters.items())]
    parts = [entry.get(name) for name in ("perspective", "set", "condition", "name")]
    return " ".join(str(part) for part in (*parts, *described))


def _alike(one: Any, two: Any) -> bool:
    if one is None or two is None:
        return one is two
    return math.isclose(one, two, rel_tol=TOLERANCE, abs_tol=1e-12)
