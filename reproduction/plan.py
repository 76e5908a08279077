"""From a specification to studies: a plan for every case, or the reason why it cannot be run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from reproduction.multi_task import MultiTaskStudyConfig
from reproduction.specification import (
    Case,
    CaseAtScale,
    ColumnEntry,
    Scale,
    ScaleEntry,
    Specification,
)
from temper.data.reading import CARVE
from temper.data.tasks.registry import TASKS, task_source
from temper.display.cells import Comparison
from temper.errors import CheckpointError, SettingError
from temper.evaluation.settings import SetSources
from temper.settings import Tree, override
from temper.study.plan import Column, StudyConfig

SAME = "same"
"""Value of ``data.unlabeled`` that stands for the task's own training texts."""


@dataclass(frozen=True)
class Request:
    """What of a specification is to be run, and with what.

    Args:
        specification: The table or figure.
        scale: How much of it.
        seeds: Number of seeds; None takes the scale's.
        cases: Names of cases in place of the scale's.
        model: Model in place of every other.
        data_root: Folder with a folder for each task.
        device: Where to train.
    """

    specification: Specification
    scale: Scale = "small"
    seeds: int | None = None
    cases: tuple[str, ...] | None = None
    model: str | None = None
    data_root: Path | None = None
    device: str | None = None

    def __post_init__(self) -> None:
        if self.seeds is not None and self.seeds < 1:
            raise SettingError(f"--seeds is the number of seeds, at least 1, got {self.seeds}.")
        if self.data_root is not None and not self.data_root.is_dir():
            raise SettingError(
                f"--data-root must be a folder with a folder for each task, got {self.data_root}."
            )

    @property
    def entry(self) -> ScaleEntry:
        """The scale's settings."""
        return self.specification.scales[self.scale]


@dataclass(frozen=True)
class CasePlan:
    """One case, or the cases of a model that is trained on all of them at once.

    Args:
        cases: The cases.
        plan: Their study; None where it cannot be run.
        reason: Why not.
        search: The study that settings are chosen by; None where nothing is chosen.
    """

    cases: tuple[Case, ...]
    plan: StudyConfig | MultiTaskStudyConfig | None
    reason: str = ""
    search: StudyConfig | None = None

    @property
    def name(self) -> str:
        """What to call it: the case, or the model of several."""
        return self.cases[0].name if len(self.cases) == 1 else self.cases[0].model.name


@dataclass(frozen=True)
class _Sources:
    """What a case is run with: its nested settings, and its further sets."""

    case: Case
    tree: Tree
    sets: SetSources


def plan_cases(request: Request) -> list[CasePlan]:
    """Plan every case that is asked for, before anything is trained.

    Args:
        request: What is asked for.

    Returns:
        The cases in order, those of a multi-task model together and last; those whose data are not
        at hand without a plan.

    Raises:
        SettingError: Where settings are wrong; it lists every fault.
    """
    plans: list[CasePlan] = []
    together: dict[str, list[_Sources]] = {}
    for case in request.specification.cases(request.scale, request.cases):
        try:
            found = _sources(case, request)
        except SettingError as error:
            # The data root is there (`Request`), so the task's folder or the suite's sets are not.
            plans.append(CasePlan((case,), None, str(error).splitlines()[0]))
            continue
        if case.model.multi_task:
            together.setdefault(case.model.name, []).append(found)
        else:
            plan = StudyConfig.of(found.tree, **_grid(case, request), sets=found.sets)
            plans.append(CasePlan((case,), plan, search=_search(found, request)))
    return [*plans, *(_plan_together(found, request) for found in together.values())]


def settings_of(
    case: Case, entry: ScaleEntry, *, model: str, source: str, task: str | None
) -> Tree:
    """Return the nested settings of a case at a scale, without its columns.

    Args:
        case: The case; what the scale sets stands before what it sets itself, and
            what the scale sets for it alone before both.
        entry: The scale.
        model: The model it is run with.
        source: Where its data come from.
        task: The task that they are a copy of; None where other data stand in.
    """
    at_scale = entry.case.get(case.name, CaseAtScale())
    tables: dict[str, Tree] = {
        "data": {"source": source, "task": task},
        "train": {},
        "evaluate": {},
    }
    for layer in (case.task, case.model, entry, at_scale):
        # A stand-in is not trained as the model that it stands for.
        if layer is not case.model or model == case.model.model:
            for name, table in tables.items():
                table.update(getattr(layer, name))
    if tables["data"].get("unlabeled") == SAME:
        tables["data"]["unlabeled"] = source
    tree: Tree = {"model": model, **{name: table for name, table in tables.items() if table}}
    if case.model.architecture and model == case.model.model:
        tree["architecture"] = dict(case.model.architecture)
    return tree


def _sources(case: Case, request: Request) -> _Sources:
    entry, task = request.entry, case.task
    suite = task.suite if entry.suites else None
    files = entry.source is None and (task.file is not None or bool(task.shift))
    if (suite is not None or files) and request.data_root is None:
        what = f"the sets of suite {suite!r}" if suite else f"files of {case.source}"
        raise SettingError(f"{what} are read from a folder: give --data-root DIR")
    source = entry.source or _source(case, request.data_root)
    sets = SetSources.of(
        shift=[f"{name}={source}/{file}" for name, file in task.shift.items() if files],
        suite=suite,
        data_root=request.data_root if suite else None,
    )
    tree = settings_of(
        case,
        entry,
        model=request.model or entry.model or case.model.model,
        source=f"{source}/{task.file}" if files and task.file is not None else source,
        task=case.source if entry.source is None and _is_known(case.source) else None,
    )
    if request.device is not None:
        tree.setdefault("train", {})["device"] = request.device
    return _Sources(case, tree, sets)


def _source(case: Case, root: Path | None) -> str:
    """Say where a case's data are; a case that names its file needs no task, a folder does."""
    if case.task.file is None or _is_known(case.source):
        return task_source(case.source, root)
    folder = Path(root or "", case.source)
    if not folder.is_dir():
        raise SettingError(f"Training data of {case.name} not found: no folder {folder}.")
    return str(folder)


def _is_known(source: str) -> bool:
    """Whether a task can be asked for by name: of some only the metric is known."""
    return source in TASKS and bool(TASKS[source].rows)


def _grid(case: Case, request: Request) -> dict[str, Any]:
    """Return columns and seeds of a case's study."""
    seeds = request.entry.case.get(case.name, CaseAtScale()).seeds or request.entry.seeds
    columns = [_column(each) for each in request.specification.columns(request.entry, case.model)]
    return {"columns": columns, "seeds": tuple(range(request.seeds or seeds))}


def _column(entry: ColumnEntry) -> Column:
    tables = {name: table for name, table in entry.tables.items() if table}
    return Column(entry.name, entry.method or entry.name, tables)


def _search(found: _Sources, request: Request) -> StudyConfig | None:
    """Plan what a case's settings are chosen by: the task's own score on rows carved from train."""
    entry = request.entry
    columns = [
        _column(candidate)
        for column in request.specification.columns(entry, found.case.model)
        for candidate in entry.candidates(column)
    ]
    if not columns:
        return None
    tree = override(
        {**found.tree, "evaluate": {"perspectives": ["task"]}}, [(("data", "eval_split"), CARVE)]
    )
    return StudyConfig.of(tree, columns=columns, seeds=(0,))


def chosen_plan(each: CasePlan, scores: Comparison, request: Request) -> StudyConfig:
    """Return a case's study with the settings that did best in its search.

    Args:
        each: The case.
        scores: What the search found.
        request: What is asked for.

    Raises:
        CheckpointError: A candidate has no score.
    """
    plan, entry = each.plan, request.entry
    assert isinstance(plan, StudyConfig)
    (row,) = [
        row for row in scores.rows if (row.key.perspective, row.key.name) == ("task", scores.metric)
    ]
    columns = {column.name: column for column in plan.columns}
    for column in request.specification.columns(entry, each.cases[0].model):
        means = {
            candidate.name: (row.cells[candidate.name].mean, candidate)
            for candidate in entry.candidates(column)
        }
        lacking = [name for name, (mean, _) in means.items() if mean is None]
        if lacking:
            raise CheckpointError(f"{', '.join(lacking)} of the search has no {scores.metric}.")
        if means:
            # Of equal ones the first.
            best = max(means, key=lambda name: means[name][0] or 0.0)
            settings = _column(means[best][1]).settings
            columns[column.name] = replace(columns[column.name], settings=settings)
    return StudyConfig.of(
        {**plan.base, "evaluate": plan.evaluate.model_dump(mode="json")},
        columns=list(columns.values()),
        seeds=plan.seeds,
        sets=plan.sets,
    )


def _plan_together(found: Sequence[_Sources], request: Request) -> CasePlan:
    """Plan one study of all tasks of a model; its loop is that of the first of them."""
    cases = tuple(each.case for each in found)
    if len(cases) < 2:
        return CasePlan(cases, None, "a network on several tasks needs two or more of them")
    first = found[0].tree
    tree = {name: table for name, table in first.items() if name not in ("data", "evaluate")}
    tree["tasks"] = {
        each.case.name: {**each.tree["data"], "evaluate": each.tree.get("evaluate", {})}
        for each in found
    }
    plan = MultiTaskStudyConfig.of(
        tree,
        **_grid(cases[0], request),
        sets={each.case.name: each.sets for each in found},
    )
    return CasePlan(cases, plan)
