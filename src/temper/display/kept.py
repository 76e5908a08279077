"""A study as it is kept: two small files, without weights and without evaluated rows.

``study.json`` holds the plan, in ``record`` what all runs recorded alike, and in ``records`` what
was each run's own; ``scores.parquet`` holds a row a score. Both are described in docs/formats.md.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import ValidationError

from temper.display.parameters import Parameters
from temper.display.records import RunRecord, ScoreRecord, ScoresRecord, StudyRecord
from temper.errors import CheckpointError

FILE = "scores.parquet"
SCHEMA = pa.schema(
    [
        *((name, pa.string()) for name in ("column", "perspective", "set", "condition", "name")),
        ("parameters", pa.string()),
        *((name, pa.int64()) for name in ("seed", "n", "fewest")),
        *((name, pa.float64()) for name in ("value", "low", "high", "standard_error")),
        ("higher_is_better", pa.bool_()),
        ("reason", pa.string()),
    ]
)


class KeptRun(NamedTuple):
    """What is kept of one run.

    Args:
        column: Column of the comparison.
        seed: The run's seed.
        record: What ``run.json`` holds.
        scores: What the evaluation's ``scores.json`` holds.
    """

    column: str
    seed: int
    record: RunRecord
    scores: ScoresRecord


def write_kept(folder: Path, plan: Mapping[str, Any], runs: Mapping[str, KeptRun]) -> None:
    """Write the two files of a kept study.

    Args:
        folder: Where to; it exists.
        plan: What the study's ``study.json`` holds.
        runs: Its runs, by their folder as the plan names it.
    """
    records = {}
    rows: list[dict[str, Any]] = []
    for place, run in runs.items():
        record = run.record.model_dump(mode="json", exclude_unset=True)
        scores = run.scores.model_dump(mode="json", exclude_unset=True, exclude={"scores"})
        records[place] = {**record, "evaluation": scores}
        rows += [_row(run, score) for score in run.scores.scores]
    record = shared(list(records.values()))
    own = {place: own_part(each, record) for place, each in records.items()}
    content = {**plan, "record": record, "records": own}
    text = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False)
    (folder / "study.json").write_text(text + "\n", encoding="utf-8", newline="\n")
    table = pa.Table.from_pylist(rows, schema=SCHEMA)
    pq.write_table(table, folder / FILE, compression="zstd")


def read_kept(folder: Path, study: StudyRecord) -> dict[str, KeptRun]:
    """Read the runs of a kept study.

    Args:
        folder: The study's folder, with ``scores.parquet``.
        study: Its ``study.json``.

    Returns:
        The runs by their folder as the plan names it; those that were not finished are not there.

    Raises:
        CheckpointError: A file is damaged or lacks something.
    """
    scores: dict[tuple[str, int], list[ScoreRecord]] = {}
    try:
        for row in pq.read_table(folder / FILE).to_pylist():
            scores.setdefault((row["column"], row["seed"]), []).append(_score(row))
        runs: dict[str, KeptRun] = {}
        for column, seeds in study.runs.items():
            for seed, place in seeds.items():
                if place not in study.records:
                    continue
                record = joined(study.record, study.records[place])
                evaluation = record.pop("evaluation")
                own = scores.get((column, int(seed)), [])
                runs[place] = KeptRun(
                    column,
                    int(seed),
                    RunRecord.model_validate(record),
                    ScoresRecord.model_validate({**evaluation, "scores": own}),
                )
    except (OSError, pa.ArrowException, ValidationError, KeyError, ValueError) as error:
        raise CheckpointError(
            f"{folder} is no kept study as docs/formats.md describes it: {error}. Restore its "
            f"study.json and {FILE}."
        ) from error
    return runs


def shared(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what nested records have in common.

    Example:
        >>> shared([{"a": 1, "b": {"c": 2, "d": 3}}, {"a": 1, "b": {"c": 2, "d": 4}}])
        {'a': 1, 'b': {'c': 2}}
    """
    if not records:
        return {}
    first, *others = records
    common = {}
    for name, value in first.items():
        values = [value, *(other[name] for other in others if name in other)]
        if len(values) < len(records):
            continue
        if all(_text(each) == _text(value) for each in values):
            common[name] = value
        elif all(isinstance(each, dict) for each in values):
            common[name] = shared(values)
    return common


def own_part(record: Mapping[str, Any], common: Mapping[str, Any]) -> dict[str, Any]:
    """Return what of a nested record is not in what it shares with others; see `shared`."""
    return {
        name: own_part(value, common[name])
        if isinstance(value, dict) and isinstance(common.get(name), dict)
        else value
        for name, value in record.items()
        if name not in common or _text(common[name]) != _text(value)
    }


def joined(common: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Put a nested record together again; the inverse of `own_part`."""
    whole = dict(common)
    for name, value in own.items():
        both = isinstance(value, dict) and isinstance(whole.get(name), dict)
        whole[name] = joined(whole[name], value) if both else value
    return whole


def _text(value: Any) -> str:
    """Return a text that differs where values do, and where 1 stands for 1.0 or true."""
    return json.dumps(value, sort_keys=True)


def _row(run: KeptRun, score: ScoreRecord) -> dict[str, Any]:
    values = {name: getattr(score, name) for name in SCHEMA.names if hasattr(score, name)}
    place = {"column": run.column, "seed": run.seed}
    return {**values, **place, "parameters": Parameters(score.parameters).to_text()}


def _score(row: Mapping[str, Any]) -> ScoreRecord:
    own = {name: value for name, value in row.items() if name in ScoreRecord.model_fields}
    return ScoreRecord.model_validate({**own, "parameters": Parameters.of_text(row["parameters"])})
