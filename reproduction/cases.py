"""From a specification to studies: a plan for every case, or the reason why it cannot be run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from reproduction.specification import (
    Case,
    CaseAtScale,
    Scale,
    ScaleEntry,
    Specification,
)
from temper.app.settings import SetSources
from temper.data.tasks.place import task_source
from temper.errors import SettingError
from temper.study.plan import Column, StudyConfig
from temper.training.assignments import Tree

SAME = "same"
"""Value of ``data.unlabeled`` that stands for the task's own training texts."""


@dataclass(frozen=True)
class Asked:
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

    @property
    def run_seeds(self) -> tuple[int, ...]:
        """The seeds."""
        return tuple(range(self.entry.seeds if self.seeds is None else self.seeds))

    def model_of(self, case: Case) -> str:
        """Return the model that a case is run with."""
        return self.model or self.entry.model or case.model


@dataclass(frozen=True)
class Planned:
    """One case, planned.

    Args:
        case: The case.
        plan: Its study; None where it cannot be run.
        reason: Why not.
    """

    case: Case
    plan: StudyConfig | None
    reason: str = ""


def planned(asked: Asked) -> list[Planned]:
    """Plan every case that is asked for, before anything is trained.

    Args:
        asked: What is asked for.

    Returns:
        The cases in order; those whose data are not at hand without a plan.

    Raises:
        SettingError: Where settings are wrong; it lists every fault.
    """
    return [_planned(case, asked) for case in asked.specification.cases(asked.scale, asked.cases)]


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
    own = entry.case.get(case.name, CaseAtScale())
    data = {"source": source, "task": task, **case.data, **entry.data, **own.data}
    if data.get("unlabeled") == SAME:
        data["unlabeled"] = source
    tree: Tree = {"model": model, "data": data, "train": {**entry.train, **own.train}}
    evaluate = {**case.evaluate, **entry.evaluate, **own.evaluate}
    if evaluate:
        tree["evaluate"] = evaluate
    if case.architecture and model == case.model:
        tree["architecture"] = dict(case.architecture)
    return tree


def _planned(case: Case, asked: Asked) -> Planned:
    entry = asked.entry
    suite = case.suite if entry.suites else None
    files = entry.source is None and (case.file is not None or bool(case.shift))
    if (suite is not None or files) and asked.data_root is None:
        what = f"the sets of suite {suite!r}" if suite else f"files of {case.task}"
        return Planned(case, None, f"{what} are read from a folder: give --data-root DIR")
    task = case.task if entry.source is None else None
    try:
        source = entry.source or task_source(case.task, asked.data_root)
        shift = {name: f"{source}/{file}" for name, file in case.shift.items()} if files else {}
        sets = SetSources.of(
            shift=[f"{name}={path}" for name, path in shift.items()],
            suite=suite,
            data_root=asked.data_root if suite else None,
        )
        if files and case.file is not None:
            source = f"{source}/{case.file}"
    except SettingError as error:
        # The data root is there (`Asked`), so the task's folder or the suite's sets are not.
        return Planned(case, None, str(error).splitlines()[0])
    tree = settings_of(case, entry, model=asked.model_of(case), source=source, task=task)
    if asked.device is not None:
        tree["train"]["device"] = asked.device
    return Planned(
        case,
        StudyConfig.of(
            tree,
            columns=_columns(asked.specification, entry),
            seeds=asked.run_seeds,
            sets=sets,
        ),
    )


def _columns(specification: Specification, entry: ScaleEntry) -> list[Column]:
    found = []
    for each in specification.columns(entry):
        tables = {"method": each.settings, "train": each.train}
        settings = {name: table for name, table in tables.items() if table}
        found.append(Column(each.name, each.method or each.name, settings))
    return found
