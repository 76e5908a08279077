"""What was run, and how it differs from what the paper ran, read from the studies' own records."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any, TypeVar

from reproduction.plan import settings_of
from reproduction.specification import Case, CaseAtScale, Scale, Specification, leaves
from temper.data.tasks.registry import TASKS
from temper.display.folders import Run, Source
from temper.display.records import RunRecord
from temper.settings import Tree
from temper.training.config import RunConfig, without_unread

UNSAID = ("unlabeled", "unlabeled_rows", "drop_overlap", "detectors")
"""Settings of our runs that the papers do not have."""

Cases = list[tuple[Case, Source]]
"""The finished cases with their studies."""
Fact = TypeVar("Fact")


def case_facts(case: Case, source: Source) -> dict[str, str]:
    """Describe what was run in a case.

    Args:
        case: The case.
        source: Its study.

    Returns:
        Texts by heading.
    """
    records = [run.record for run in source.runs if run.record is not None]
    settings, rows = records[0].settings, records[0].data
    data, train = settings.get("data", {}), settings.get("train", {})
    return {
        "case": case.name,
        "model": source.model,
        # The name of a dataset or a file's last two parts, the same on every machine.
        "data": "/".join(Path(str(data.get("source", ""))).parts[-2:]),
        "trained on": _rows(rows.get("train")),
        "evaluated on": _rows(rows.get("dev")) + (" of test" if _on_test(source) else ""),
        "rows in the full dataset (train and evaluation)": _published(case.source),
        "max length": str(data.get("max_length", "")),
        "training": _training(train),
        "seeds": str(len(source.seeds)),
        "minutes": f"{sum(float(r.times.get('train_seconds', 0)) for r in records) / 60:.0f}",
    }


def costs(sources: Iterable[Source], reference: str) -> dict[str, float]:
    """Return the forward passes that each method's training computed, the reference's being 1.

    Args:
        sources: The finished studies.
        reference: The method that the others are compared with.

    Returns:
        The mean over the studies that have runs of both, by method; those without are left out.
    """
    result: dict[str, list[float]] = {}
    for source in sources:
        passes = {
            column.name: fmean(spent)
            for column in source.columns
            if (spent := [each for run in column.runs.values() if (each := _passes(run))])
        }
        if reference not in passes:
            continue
        for name, own in passes.items():
            result.setdefault(name, []).append(own / passes[reference])
    return {name: fmean(ratios) for name, ratios in result.items()}


def _passes(run: Run) -> float:
    """Return the forward passes of a training, by batches; 0 if they are not recorded."""
    if run.record is None or run.record.passes is None:
        return 0.0
    return run.record.passes * float(run.record.times.get("steps", 0))


def changes(specification: Specification, scale: Scale | None, cases: Cases) -> list[str]:
    """Describe how the runs differ from the paper's, as far as that is known.

    Args:
        specification: The table.
        scale: Scale of the folder, None if it is not recorded.
        cases: The finished cases with their studies.

    Returns:
        A sentence each.
    """
    notes = [f"Grid: {specification.grid_from}"]
    if not specification.published:
        return notes + _left_out(specification, cases, scale)
    if not specification.printed:
        notes.append("The available text of the paper has no printed numbers.")
    if specification.unknown:
        named = ", ".join(specification.unknown)
        notes.append(
            f"Not in the available text of the paper: {named}. The scale full uses Temper's values."
        )
    over = specification.relative_to
    if over is not None and not any(case.model.name == over.model for case, _ in cases):
        notes.append(
            f"Relative improvements are over each model's {specification.reference}; the paper's "
            f"are over that of {over.model}, which was not run."
        )
    models = _gathered(
        (f"Model: {source.model} instead of {case.model.model}", case)
        for case, source in cases
        if source.model != case.model.model
    )
    notes += [f"{sentence} ({', '.join(names)})." for sentence, names in models.items()]
    split = _gathered(
        ("Evaluated on test rows instead of dev rows", case)
        for case, source in cases
        if case.source in TASKS
        and set(TASKS[case.source].evaluated) & set(TASKS[case.source].rows)
        and _on_test(source)
    )
    settings = _gathered(_changed_settings(specification, cases))
    for sentence, names in {**split, **settings}.items():
        everyone = sentence in settings and len(names) == len(cases)
        notes.append(f"{sentence}." if everyone else f"{sentence}: {', '.join(names)}.")
    # Methods that differ in the same settings share a note.
    methods: dict[tuple[str, ...], list[str]] = {}
    for (method, changed), names in _gathered(_changed_methods(specification, cases)).items():
        methods.setdefault((changed, *names), []).append(method)
    notes += [
        f"Settings of {', '.join(of)}: {changed} ({', '.join(names)})."
        for (changed, *names), of in methods.items()
    ]
    notes += _left_out(specification, cases, scale)
    seeds, papers = {len(source.seeds) for _, source in cases}, specification.scales["full"].seeds
    if seeds - {papers}:
        notes.append(f"Seeds: {', '.join(map(str, sorted(seeds)))} (paper: {papers}).")
    return notes


def _rows(entry: Any) -> str:
    return f"{entry['rows']:,} rows" if isinstance(entry, dict) and "rows" in entry else ""


def _published(task: str) -> str:
    """Return the numbers of training and evaluation rows of the published task."""
    known = TASKS.get(task)
    if known is None or "train" not in known.rows:
        return ""
    judged = [known.rows[name] for name in known.evaluated if name in known.rows]
    # A task without dev rows is evaluated on its test rows.
    return f"{known.rows['train']:,} and {sum(judged) or known.rows.get('test', 0):,}"


def _training(train: Mapping[str, Any]) -> str:
    if not train:
        return ""
    steps = train.get("max_steps")
    length = f"{steps} steps" if steps else f"{train.get('epochs', 0):g} epochs"
    return (
        f"{length}, batch {train.get('batch_size')}, learning rate {train.get('learning_rate'):g}"
    )


def _on_test(source: Source) -> bool:
    """Whether a study was evaluated on a split that is called test."""
    record = _record(source)
    entry = {} if record is None else record.data.get("dev", {})
    return isinstance(entry, dict) and entry.get("source", {}).get("split") == "test"


def _changed_settings(specification: Specification, cases: Cases) -> Iterator[tuple[str, Case]]:
    """Yield the settings of the data and of the training loop that differ from the paper's."""
    for case, source in cases:
        record = _record(source)
        ran, paper = {} if record is None else record.settings, _paper(specification, case)
        data = ran.get("data", {})
        if case.source not in (data.get("task"), Path(str(data.get("source", ""))).name):
            yield f"Data: {data.get('source')!r} instead of {case.source}", case
        for table, key in _spoken_of(specification, case):
            if f"{table}.{key}" in specification.unknown or key not in ran.get(table, {}):
                continue
            ours, theirs = _value(ran[table], key), _value(paper[table], key)
            if ours != theirs:
                yield f"{table}.{key}: {ours} (paper: {theirs})", case


def _spoken_of(specification: Specification, case: Case) -> list[tuple[str, str]]:
    """Return table and name of the settings that the file names for a case."""
    spoken: dict[tuple[str, str], None] = {}
    for table in ("data", "train"):
        for entry in specification.scales.values():
            at_scale = entry.case.get(case.name, CaseAtScale())
            for settings in (case.task, case.model, entry, at_scale):
                tree = getattr(settings, table)
                spoken.update({(table, key): None for key in tree if key not in UNSAID})
    return list(spoken)


def _changed_methods(
    specification: Specification, cases: Cases
) -> Iterator[tuple[tuple[str, str], Case]]:
    """Yield each method with its settings that differ from those at scale full."""
    for case, source in cases:
        paper = _paper(specification, case)
        for column in specification.columns(specification.scales["full"], case.model):
            record = _record(source, column.name)
            if record is None:
                continue
            ran = _flat(record.settings.get("method", {}))
            method = {"name": column.method or column.name, **column.settings}
            run = {"model": case.model.model, "data": paper["data"], "method": method}
            papers = _flat(RunConfig.of(without_unread(run)).settings()["method"])
            changed = [
                f"{key} {ran[key]} (scale full: {value})"
                for key, value in papers.items()
                if key in ran and ran[key] != value
            ]
            if changed:
                yield (column.name, ", ".join(changed)), case


def _paper(specification: Specification, case: Case) -> Tree:
    """Return the paper's settings of a case."""
    full = specification.scales["full"]
    return settings_of(case, full, model=case.model.model, source=case.source, task=case.source)


def _flat(tree: Tree) -> Tree:
    """Return the values of nested settings by their dotted names."""
    return {".".join(names): value for names, value in leaves(tree)}


def _gathered(facts: Iterable[tuple[Fact, Case]]) -> dict[Fact, list[str]]:
    """Return the names of the cases of each fact."""
    names: dict[Fact, list[str]] = {}
    for fact, case in facts:
        names.setdefault(fact, []).append(case.name)
    return names


def _record(source: Source, column: str | None = None) -> RunRecord | None:
    """Return a study's first record, or the first of a column; None if it has none."""
    runs = [run for run in source.runs if column in (None, run.column)]
    return next((run.record for run in runs if run.record is not None), None)


def _value(table: Mapping[str, Any], name: str) -> str:
    value = table.get(name)
    if value is None:
        # A run without a limit uses all rows; of other settings nothing is known.
        return {"max_steps": "by epochs"}.get(name, "all" if name.endswith("rows") else "not known")
    return f"{value:g}" if isinstance(value, float) else str(value)


def _left_out(specification: Specification, cases: Cases, scale: Scale | None) -> list[str]:
    notes = []
    finished = {case.name for case, _ in cases}
    missing: list[str] = []
    for model in specification.model:
        of_model = [case.name for case in specification.case if case.model.name == model.name]
        absent = [name for name in of_model if name not in finished]
        missing += [f"all of {model.name}"] if len(absent) == len(of_model) > 1 else absent
    if missing:
        notes.append(f"Cases without results: {', '.join(missing)}.")
    run = {column.name for _, source in cases for column in source.columns}
    columns = [column.name for column in specification.columns() if column.name not in run]
    if columns and cases:
        shown = ", ".join(columns) if len(columns) <= 12 else f"{len(columns)} of them"
        notes.append(f"Methods that were not run: {shown}.")
    if scale is not None and not specification.scales[scale].suites:
        notes.append("The evaluation suites of the cases were not used.")
    return notes
