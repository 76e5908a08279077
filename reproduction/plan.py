"""From a specification to studies: a plan for every case, or the reason why it cannot be run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from reproduction.specification import (
    Case,
    Scale,
    ScaleEntry,
    Settings,
    Specification,
)
from temper.app.settings import SetSources
from temper.data.tasks.layouts import task_source
from temper.errors import SettingError
from temper.study.plan import Column, StudyConfig
from temper.training.assignments import Tree

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
                f"--data-root must be a folder that holds a folder for each task, got "
                f"{self.data_root}, which is none."
            )

    @property
    def entry(self) -> ScaleEntry:
        """The scale's settings."""
        return self.specification.scales[self.scale]


@dataclass(frozen=True)
class CasePlan:
    """One case, planned.

    Args:
        case: The case.
        plan: Its study; None where it cannot be run.
        reason: Why not.
    """

    case: Case
    plan: StudyConfig | None
    reason: str = ""


def plan_cases(request: Request) -> list[CasePlan]:
    """Plan every case that is asked for, before anything is trained.

    Args:
        request: What is asked for.

    Returns:
        The cases in order; those whose data are not at hand without a plan.

    Raises:
        SettingError: Where settings are wrong; it lists every fault.
    """
    cases = request.specification.cases(request.scale, request.cases)
    return [_plan(case, request) for case in cases]


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
    at_scale = entry.case.get(case.name, Settings())
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


def _plan(case: Case, request: Request) -> CasePlan:
    entry, specification, task = request.entry, request.specification, case.task
    if case.model.multi_task:
        return CasePlan(case, None, "a network on all tasks at once is trained by --multi-task")
    suite = task.suite if entry.suites else None
    files = entry.source is None and (task.file is not None or bool(task.shift))
    if (suite is not None or files) and request.data_root is None:
        what = f"the sets of suite {suite!r}" if suite else f"files of {case.source}"
        return CasePlan(case, None, f"{what} are read from a folder: give --data-root DIR")
    try:
        source = entry.source or task_source(case.source, request.data_root)
        sets = SetSources.of(
            shift=[f"{name}={source}/{file}" for name, file in task.shift.items() if files],
            suite=suite,
            data_root=request.data_root if suite else None,
        )
    except SettingError as error:
        # The data root is there (`Request`), so the task's folder or the suite's sets are not.
        return CasePlan(case, None, str(error).splitlines()[0])
    tree = settings_of(
        case,
        entry,
        model=request.model or entry.model or case.model.model,
        source=f"{source}/{task.file}" if files and task.file is not None else source,
        task=case.source if entry.source is None else None,
    )
    if request.device is not None:
        tree["train"]["device"] = request.device
    columns = [
        Column(
            each.name,
            each.method or each.name,
            {name: table for name, table in each.tables.items() if table},
        )
        for each in specification.columns(entry, case.model)
    ]
    seeds = tuple(range(request.seeds or entry.seeds))
    return CasePlan(case, StudyConfig.of(tree, columns=columns, seeds=seeds, sets=sets))
