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
"""Value of ``data.unlabeled`` that selects the task's training texts."""


@dataclass(frozen=True)
class Request:
    """Which part of a specification is run, and with which model and data.

    Args:
        specification: The table or figure.
        scale: The scale.
        seeds: Number of seeds; None uses the scale's.
        cases: Names of cases; None uses the scale's.
        model: Model that replaces every other.
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
        plan: Their study; None if it cannot be run.
        reason: Why it cannot be run.
        search: The study that chooses the settings; None if nothing is chosen.
    """

    cases: tuple[Case, ...]
    plan: StudyConfig | MultiTaskStudyConfig | None
    reason: str = ""
    search: StudyConfig | None = None

    @property
    def name(self) -> str:
        """The name of the case, or of the model of several cases."""
        return self.cases[0].name if len(self.cases) == 1 else self.cases[0].model.name


@dataclass(frozen=True)
class _Sources:
    """The nested settings of a case, and its additional evaluation sets."""

    case: Case
    tree: Tree
    sets: SetSources


def plan_cases(request: Request) -> list[CasePlan]:
    """Plan every requested case before anything is trained.

    Args:
        request: The requested cases.

    Returns:
        The cases in order, those of a multi-task model together and last. Cases whose data are
        not available have no plan.

    Raises:
        SettingError: Settings are wrong; the error lists all of them.
    """
    plans: list[CasePlan] = []
    together: dict[str, list[_Sources]] = {}
    for case in request.specification.cases(request.scale, request.cases):
        try:
            sources = _sources(case, request)
        except SettingError as error:
            # `Request` checked the data root: the task's folder or the suite's sets are missing.
            plans.append(CasePlan((case,), None, str(error).splitlines()[0]))
            continue
        if case.model.multi_task:
            together.setdefault(case.model.name, []).append(sources)
        else:
            plan = StudyConfig.of(sources.tree, **_grid(case, request), sets=sources.sets)
            plans.append(CasePlan((case,), plan, search=_search(sources, request)))
    return [*plans, *(_plan_together(sources, request) for sources in together.values())]


def settings_of(
    case: Case, entry: ScaleEntry, *, model: str, source: str, task: str | None
) -> Tree:
    """Return the nested settings of a case at a scale, without its columns.

    Args:
        case: The case. The scale's settings override the case's, and the scale's settings of this
            case override both.
        entry: The scale.
        model: The model that is trained.
        source: Source of the data.
        task: Task of the data; None if other data replace the task's.
    """
    at_scale = entry.case.get(case.name, CaseAtScale())
    tables: dict[str, Tree] = {
        "data": {"source": source, "task": task},
        "train": {},
        "evaluate": {},
    }
    for layer in (case.task, case.model, entry, at_scale):
        # A replacement is not trained with the settings of the model that it replaces.
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
        raise SettingError(f"{what} are read from a folder: pass --data-root DIR")
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
    """Return the source of a case's data. A folder needs a known task, a named file does not."""
    if case.task.file is None or _is_known(case.source):
        return task_source(case.source, root)
    folder = Path(root or "", case.source)
    if not folder.is_dir():
        raise SettingError(f"Training data of {case.name} not found: no folder {folder}.")
    return str(folder)


def _is_known(source: str) -> bool:
    """Whether a task can be loaded by name; of some tasks only the metric is known."""
    return source in TASKS and bool(TASKS[source].rows)


def _grid(case: Case, request: Request) -> dict[str, Any]:
    """Return columns and seeds of a case's study."""
    seeds = request.entry.case.get(case.name, CaseAtScale()).seeds or request.entry.seeds
    columns = [_column(each) for each in request.specification.columns(request.entry, case.model)]
    return {"columns": columns, "seeds": tuple(range(request.seeds or seeds))}


def _column(entry: ColumnEntry) -> Column:
    tables = {name: table for name, table in entry.tables.items() if table}
    return Column(entry.name, entry.method or entry.name, tables)


def _search(sources: _Sources, request: Request) -> StudyConfig | None:
    """Plan the search of a case's settings, by the task's metric on rows held out of train."""
    entry = request.entry
    columns = [
        _column(candidate)
        for column in request.specification.columns(entry, sources.case.model)
        for candidate in entry.candidates(column)
    ]
    if not columns:
        return None
    tree = override(
        {**sources.tree, "evaluate": {"perspectives": ["task"]}}, [(("data", "eval_split"), CARVE)]
    )
    return StudyConfig.of(tree, columns=columns, seeds=(0,))


def chosen_plan(each: CasePlan, scores: Comparison, request: Request) -> StudyConfig:
    """Return a case's study with the settings that did best in its search.

    Args:
        each: The case.
        scores: The scores of the search.
        request: The requested cases.

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
            # If several are equal, the first.
            best = max(means, key=lambda name: means[name][0] or 0.0)
            settings = _column(means[best][1]).settings
            columns[column.name] = replace(columns[column.name], settings=settings)
    return StudyConfig.of(
        {**plan.base, "evaluate": plan.evaluate.model_dump(mode="json")},
        columns=list(columns.values()),
        seeds=plan.seeds,
        sets=plan.sets,
    )


def _plan_together(sources: Sequence[_Sources], request: Request) -> CasePlan:
    """Plan one study of all tasks of a model, with the training loop of the first task."""
    cases = tuple(each.case for each in sources)
    if len(cases) < 2:
        return CasePlan(cases, None, "a network on several tasks needs two or more of them")
    first = sources[0].tree
    tree = {name: table for name, table in first.items() if name not in ("data", "evaluate")}
    tree["tasks"] = {
        each.case.name: {**each.tree["data"], "evaluate": each.tree.get("evaluate", {})}
        for each in sources
    }
    plan = MultiTaskStudyConfig.of(
        tree,
        **_grid(cases[0], request),
        sets={each.case.name: each.sets for each in sources},
    )
    return CasePlan(cases, plan)
