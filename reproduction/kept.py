"""Keep results: those of a study (docs/formats.md), or a JSON object for each finished run."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from temper.display.folders import FILE, Run, Source
from temper.display.records import Parameters, ScoreRecord, StudyRecord, parse


@cache
def schema() -> pa.Schema:
    """Return the columns of kept scores."""
    return pa.schema(
        [
            *(
                (name, pa.string())
                for name in ("column", "perspective", "set", "condition", "name")
            ),
            ("parameters", pa.string()),
            *((name, pa.int64()) for name in ("seed", "n", "fewest")),
            *((name, pa.float64()) for name in ("value", "low", "high", "standard_error")),
            ("higher_is_better", pa.bool_()),
            ("reason", pa.string()),
        ]
    )


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


def _text(value: Any) -> str:
    """Return a text that differs if values differ, also between 1, 1.0 and true."""
    return json.dumps(value, sort_keys=True)


def _row(run: Run, score: ScoreRecord) -> dict[str, Any]:
    values = {name: getattr(score, name) for name in schema().names if hasattr(score, name)}
    key = {"column": run.column, "seed": run.seed}
    return {**values, **key, "parameters": Parameters(score.parameters).to_text()}


def keep_study(source: Source, folder: Path) -> None:
    """Write a study's plan, records and scores, without weights and rows (docs/formats.md).

    Args:
        source: The study.
        folder: A new folder; `read` makes the same table of it.
    """
    study = parse(source.folder / "study.json", StudyRecord)
    plan = study.model_dump(mode="json", exclude_unset=True, exclude={"record", "records"})
    records = {}
    rows: list[dict[str, Any]] = []
    for run in source.runs:
        if run.record is None or run.scores is None:
            continue
        # The files themselves are not kept.
        record = run.record.model_dump(mode="json", exclude_unset=True, exclude={"files"})
        scores = run.scores.model_dump(mode="json", exclude_unset=True, exclude={"scores"})
        name = run.folder.relative_to(source.folder).as_posix()
        records[name] = {**record, "evaluation": scores}
        rows += [_row(run, score) for score in run.scores.scores]
    common = shared(list(records.values()))
    own = {name: own_part(each, common) for name, each in records.items()}
    content = {**plan, "record": common, "records": own}
    text = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False)
    folder.mkdir(parents=True)
    (folder / "study.json").write_text(text + "\n", encoding="utf-8", newline="\n")
    pq.write_table(pa.Table.from_pylist(rows, schema=schema()), folder / FILE, compression="zstd")
    paired = source.folder / "paired.json"
    if paired.exists():
        shutil.copyfile(paired, folder / paired.name)


def read_runs(file: Path) -> list[dict[str, Any]]:
    """Return the finished runs of a file; a line that a kill cut off is left out."""
    runs = []
    for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else ():
        try:
            runs.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return runs


def add_run(file: Path, run: Mapping[str, Any]) -> None:
    """Append a finished run to a file, which is made if there is none."""
    file.parent.mkdir(parents=True, exist_ok=True)
    # The line break comes first: a line that a kill cut off must not spoil the next one.
    with file.open("a", encoding="utf-8") as lines:
        lines.write("\n" + json.dumps(run, allow_nan=False))
