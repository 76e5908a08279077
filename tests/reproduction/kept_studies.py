"""Finished studies as JSON files only, with given scores."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from reproduction.lines import Line
from reproduction.table import ReproductionTable
from temper.functional.units import PERCENT


def make_line(
    score: str,
    column: str,
    values: Sequence[float],
    *,
    case: str = "sst2",
    higher: bool | None = True,
) -> Line:
    """Return a line of a table with a value a seed, set against nothing."""
    return Line(
        case=case,
        score=score,
        label=score,
        column=column,
        seeds=dict(enumerate(values)),
        higher_is_better=higher,
        unit=PERCENT,
    )


def line_of(table: ReproductionTable, case: str, column: str, score: str = "accuracy") -> Line:
    """Return one line of a table."""
    key = (case, score, column)
    return next(line for line in table.lines if (line.case, line.score, line.column) == key)


def write_study(
    folder: Path,
    scores: Mapping[str, Sequence[float]],
    *,
    model: str = "text_cnn",
    name: str = "accuracy",
    perspective: str = "task",
    higher_is_better: bool | None = True,
    methods: Mapping[str, Mapping[str, Any]] | None = None,
    passes: Mapping[str, tuple[float, int]] | None = None,
) -> Path:
    """Write a study whose columns have one score a seed, and nothing else.

    ``methods`` are recorded settings of a column's method, and ``passes`` the forward passes of a
    step and the steps, by the column's name.
    """
    seeds = list(range(max(len(values) for values in scores.values())))
    runs: dict[str, dict[str, str]] = {}
    for column, values in scores.items():
        for seed, value in enumerate(values):
            run = folder / "runs" / f"{column}-s{seed}-key"
            evaluation = run / "evaluation"
            evaluation.mkdir(parents=True)
            record = _run(model, column, seed, (methods or {}).get(column, {}))
            if passes and column in passes:
                record["passes"], record["times"]["steps"] = passes[column]
            _write(run / "run.json", record)
            score = {
                "perspective": perspective,
                "set": "dev",
                "name": name,
                "value": value,
                "n": 100,
                "higher_is_better": higher_is_better,
            }
            task = {"kind": "classification", "metric": "accuracy", "labels": ["a", "b"]}
            content = {"schema": 1, "model": model, "task": task, "scores": [score]}
            _write(evaluation / "scores.json", content)
            # Rows and weights are what a kept study must not hold.
            (evaluation / "rows.parquet").write_bytes(b"rows")
            (run / "model.safetensors").write_bytes(b"weights")
            runs.setdefault(column, {})[str(seed)] = run.relative_to(folder).as_posix()
    first = next(iter(scores))
    columns = [{"name": column, "method": column} for column in scores]
    study = {"model": model, "seeds": seeds, "reference": first, "columns": columns, "runs": runs}
    _write(folder / "study.json", study)
    return folder


def _run(model: str, column: str, seed: int, method: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "status": "finished",
        "key": "key",
        "model": model,
        "method": column,
        "seed": seed,
        "settings": {
            "method": {"name": column, **method},
            "data": {"source": "data/imdb", "max_length": 64},
            "train": {"epochs": 2.0, "max_steps": None, "batch_size": 16, "learning_rate": 0.001},
        },
        "data": {"train": {"rows": 2000}, "dev": {"rows": 1000}},
        "times": {"train_seconds": 60.0},
    }


def _write(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content), encoding="utf-8")
