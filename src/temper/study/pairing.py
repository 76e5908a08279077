"""Keep a study's differences over examples in ``paired.json``, for columns with one common seed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from temper.app.measure import stored_key
from temper.evaluation.folder import read
from temper.evaluation.pairing import RESAMPLES, paired_differences
from temper.training.checkpoint_folder import read_json, write_json

SCHEMA = 1
FILE = "paired.json"


def pair_columns(
    folder: Path,
    evaluations: Mapping[tuple[str, int], Path],
    *,
    reference: str,
    metric: str,
    perspectives: tuple[str, ...],
    seed: int,
) -> None:
    """Compare each column with the reference over examples, and write it beside the plan.

    What was written before is kept for evaluations that have not changed.

    Args:
        folder: The study's folder.
        evaluations: Folder of every evaluation, by column and seed.
        reference: Name of the column that the others are compared with.
        metric: The task's leading score.
        perspectives: What was measured.
        seed: Seed of the bootstrap.
    """
    file = folder / FILE
    held: dict[str, Any] = read_json(file).get("columns", {}) if file.exists() else {}
    columns = {}
    for (column, run_seed), evaluation in evaluations.items():
        if column == reference:
            continue
        other = evaluations[reference, run_seed]
        keys = [stored_key(evaluation), stored_key(other)]
        if held.get(column, {}).get("keys") == keys:
            columns[column] = held[column]
            continue
        first, second = read(evaluation), read(other)
        columns[column] = {
            "seed": run_seed,
            "keys": keys,
            "scores": paired_differences(
                first.rows, second.rows, metric, chosen=perspectives, seed=seed
            ),
        }
    write_json(file, {"schema": SCHEMA, "resamples": RESAMPLES, "columns": columns})
