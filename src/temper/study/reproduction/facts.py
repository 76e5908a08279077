"""What was run, and how it differs from what the paper ran, read from the studies' own records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from temper.data.tasks import TASKS
from temper.methods.registry import configure
from temper.report.folders import Source
from temper.study.reproduction.specification import (
    Case,
    CaseAtScale,
    Scale,
    ScaleEntry,
    Specification,
)

UNSAID = ("unlabeled", "unlabeled_rows", "drop_overlap", "detectors")
"""Settings that say how we run a table and nothing about the paper."""


def case_facts(case: Case, source: Source) -> dict[str, str]:
    """Say what was run in a case.

    Args:
        case: The case.
        source: Its study.

    Returns:
        Texts by heading.
    """
    records = [run.record for run in source.runs if run.record is not None]
    first = records[0] if records else None
    settings = {} if first is None else first.settings
    rows = {} if first is None else first.data
    data, train = settings.get("data", {}), settings.get("train", {})
    return {
        "case": case.name,
        "model": source.model,
        "data": str(data.get("source", "")),
        "trained on": _rows(rows.get("train")),
        "judged on": _rows(rows.get("dev")),
        "published": _published(case.task),
        "length": str(data.get("max_length", "")),
        "training": _training(train),
        "seeds": str(len(source.seeds)),
        "minutes": f"{sum(float(r.times.get('train_seconds', 0)) for r in records) / 60:.0f}",
    }


def changes(
    specification: Specification, scale: Scale | None, sources: Mapping[str, Source]
) -> list[str]:
    """Say what differs from the paper's run, as far as that is known.

    Args:
        specification: The table.
        scale: Scale of the folder, None where it does not say it.
        sources: The finished cases' studies.

    Returns:
        A sentence each.
    """
    full = specification.scales["full"]
    said = [f"Grid: {specification.grid_from}"]
    if not specification.published:
        return said + _left_out(specification, sources, scale)
    if not specification.printed:
        said.append(
            "Printed numbers: none is at hand; --printed FILE.toml gives them to who has the paper."
        )
    if specification.unknown:
        named = ", ".join(specification.unknown)
        said.append(
            f"The paper's {named} could not be read; the scale full has Temper's own there."
        )
    said += _models(specification, sources)
    if scale is not None and scale != "full":
        said += _settings(specification, specification.scales[scale])
        said += _of_cases(specification.scales[scale], sources)
    if scale is None:
        said += _of_methods(specification, sources)
    said += _left_out(specification, sources, scale)
    seeds = sorted({len(source.seeds) for source in sources.values()})
    if seeds and seeds != [full.seeds]:
        said.append(f"Seeds: {', '.join(map(str, seeds))} (paper: {full.seeds}).")
    return said


def _rows(entry: Any) -> str:
    return f"{entry['rows']:,} rows" if isinstance(entry, dict) and "rows" in entry else ""


def _published(task: str) -> str:
    """Say how many rows the task has as it was published, to train and to judge on."""
    known = TASKS.get(task)
    if known is None or "train" not in known.rows:
        return ""
    judged = [known.rows[name] for name in known.evaluated if name in known.rows]
    # A task without dev rows is judged on its test rows.
    judged = judged or [known.rows[name] for name in ("test",) if name in known.rows]
    return f"{known.rows['train']:,} and {sum(judged):,}"


def _training(train: Mapping[str, Any]) -> str:
    if not train:
        return ""
    steps = train.get("max_steps")
    length = f"{steps} steps" if steps else f"{train.get('epochs', 0):g} epochs"
    return f"{length}, batch {train.get('batch_size')}, rate {train.get('learning_rate'):g}"


def _models(specification: Specification, sources: Mapping[str, Source]) -> list[str]:
    papers: dict[tuple[str, str], list[str]] = {}
    known: dict[str, Case] = {case.name: case for case in specification.case}
    for name, source in sources.items():
        if source.model != known[name].model:
            papers.setdefault((source.model, known[name].model), []).append(name)
    return [
        f"Model: {ours} in place of {theirs} ({', '.join(names)})."
        for (ours, theirs), names in papers.items()
    ]


def _settings(specification: Specification, ours: ScaleEntry) -> list[str]:
    full, found = specification.scales["full"], []
    for table in ("data", "train", "evaluate"):
        before, now = getattr(full, table), getattr(ours, table)
        for name in dict.fromkeys([*now, *before]):
            # Steps stand in place of epochs.
            instead = name == "epochs" and "max_steps" in now
            if name in UNSAID or instead or before.get(name) == now.get(name):
                continue
            known = f"{table}.{name}" not in specification.unknown
            paper = _value(before, name) if known else "not known"
            found.append(f"{table}.{name}: {_value(now, name)} (paper: {paper}).")
    methods = [name for name in full.method if full.method[name] != ours.method.get(name)]
    if methods:
        found.append(
            f"Settings of {', '.join(methods)}: Temper's own or the table's, which suit the model "
            "in use (the paper's stand in the scale full)."
        )
    if ours.source is not None:
        found.append(f"Data: {ours.source!r} in place of every task's.")
    return found


def _of_cases(ours: ScaleEntry, finished: Iterable[str]) -> list[str]:
    """Say what a scale sets for single cases, where that of all cases does not hold."""
    found = []
    for name in finished:
        own = ours.case.get(name, CaseAtScale())
        tables = {"data": own.data, "train": own.train, "evaluate": own.evaluate}
        changed = [
            f"{table}.{key}: {_value(settings, key)}"
            for table, settings in tables.items()
            for key in settings
        ]
        if changed:
            found.append(f"Of {name} alone, {', '.join(changed)}.")
    return found


def _of_methods(specification: Specification, sources: Mapping[str, Source]) -> list[str]:
    """Say which settings of the methods are not the table's, in studies that others have made."""
    found: dict[str, list[str]] = {}
    for column in specification.columns(specification.scales["full"]):
        papers = configure(column.method or column.name, column.settings).model_dump(mode="json")
        for case, source in sources.items():
            ran = _method_of(source, column.name)
            changed = [
                f"{name} {ran[name]} (table: {value})"
                for name, value in papers.items()
                if name in ran and ran[name] != value
            ]
            if changed:
                found.setdefault(f"Of {column.name}, {', '.join(changed)}", []).append(case)
    return [f"{sentence}: {', '.join(cases)}." for sentence, cases in found.items()]


def _method_of(source: Source, column: str) -> dict[str, Any]:
    """Return the recorded settings of a column's method; nothing where no run of it is there."""
    records = [run.record for run in source.runs if run.column == column]
    found = next((record for record in records if record is not None), None)
    return {} if found is None else dict(found.settings.get("method", {}))


def _value(table: Mapping[str, Any], name: str) -> str:
    if name in table:
        value = table[name]
        return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return {"max_steps": "epochs"}.get(name, "all" if name.endswith("rows") else "Temper's own")


def _left_out(
    specification: Specification, sources: Mapping[str, Source], scale: Scale | None
) -> list[str]:
    found = []
    cases = [case.name for case in specification.case if case.name not in sources]
    if cases:
        found.append(f"Cases without numbers here: {', '.join(cases)}.")
    run = {column.name for source in sources.values() for column in source.columns}
    columns = [column.name for column in specification.columns() if column.name not in run]
    if columns and sources:
        shown = ", ".join(columns) if len(columns) <= 12 else f"{len(columns)} of them"
        found.append(f"Methods that were not run: {shown}.")
    if scale is not None and not specification.scales[scale].suites:
        found.append("The cases' suites were not read.")
    return found
