"""A study whose runs are trained on several tasks at once: a study a task, on runs that they share.

``OUT/runs/COLUMN-sSEED-KEY`` is one model on all tasks (`temper.training.multi_task`), and
``OUT/TASK`` the study of a task, whose runs are the classifiers in ``tasks/TASK`` of these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from temper.checkpoints.folder import RunFolder, held_folder
from temper.data.sources import load_splits
from temper.errors import SettingError
from temper.evaluation.settings import SetSources
from temper.files import make_folder
from temper.progress import Progress
from temper.settings import override
from temper.study.plan import Column, StudyConfig
from temper.study.schedule import Study, checked_sets, finish_study, step_cost
from temper.study.work import GridCell, StudyFolder, Work
from temper.training.multi_task import FOLDER, MultiTaskConfig, tasks_key, train_tasks


@dataclass(frozen=True)
class MultiTaskStudyConfig:
    """A checked plan.

    Args:
        tasks: The plan of each task by name; they differ in the data and in what runs are judged
            on.
        runs: The settings of every run on all tasks, by column name and seed.
    """

    tasks: Mapping[str, StudyConfig]
    runs: Mapping[GridCell, MultiTaskConfig]

    @classmethod
    def of(
        cls,
        tree: Mapping[str, Any],
        *,
        columns: Sequence[Column],
        seeds: Sequence[int],
        sets: Mapping[str, SetSources] | None = None,
    ) -> Self:
        """Check a study's settings before anything is trained.

        Args:
            tree: As `MultiTaskConfig.of` takes it, without a method, and with ``evaluate``, which a
                task's table may have too.
            columns: One or more columns with distinct names.
            seeds: One or more distinct seeds.
            sets: Sources of the evaluation sets of each task in addition to dev.

        Raises:
            SettingError: Settings are wrong; the error lists all of them.
        """
        tables = {
            name: {key: value for key, value in table.items() if key != "evaluate"}
            for name, table in tree.get("tasks", {}).items()
        }
        shared = {key: value for key, value in tree.items() if key not in ("tasks", "evaluate")}
        runs, faults = {}, []
        for column in columns:
            for seed in seeds:
                of_column = override(
                    {**shared, "tasks": tables, "seed": seed, "method": {"name": column.method}},
                    [
                        ((table, key), value)
                        for table, settings in column.settings.items()
                        for key, value in settings.items()
                    ],
                )
                try:
                    runs[column.name, seed] = MultiTaskConfig.of(of_column)
                except SettingError as error:
                    faults += str(error).splitlines()
        if faults:
            raise SettingError("\n".join(dict.fromkeys(faults)))
        plans = {
            name: StudyConfig.of(
                {
                    **shared,
                    "data": {**shared.get("data", {}), **table},
                    "evaluate": tree["tasks"][name].get("evaluate", tree.get("evaluate", {})),
                },
                columns=columns,
                seeds=seeds,
                sets=(sets or {}).get(name),
            )
            for name, table in tables.items()
        }
        return cls(plans, runs)


@dataclass(frozen=True)
class TaskStudyFolder(StudyFolder):
    """The folder of one task's study; its runs are in a sibling folder.

    Args:
        task: Its name.
    """

    task: str

    def whole(self, cell: GridCell) -> Path:
        """Return the folder of a run on all tasks."""
        column, seed = cell
        return self.path.parent / "runs" / f"{column}-s{seed}-{self.keys[cell]}"

    def run(self, cell: GridCell) -> RunFolder:
        """Return the folder of the task's classifier of a run."""
        return RunFolder(self.whole(cell) / FOLDER / self.task)


def run_multi_task_study(
    config: MultiTaskStudyConfig, out: Path | str, *, progress: Progress | None = None
) -> dict[str, Study]:
    """Train every run on all tasks, evaluate it on each, and write a report a task.

    Finished runs are kept, and a stopped run resumes from its last checkpoint.

    Args:
        config: The checked plan.
        out: The folder of the tasks' studies.
        progress: Receives runs, steps and evaluations.

    Returns:
        The study of each task by name.

    Raises:
        TemperError: Where data, model or a method does not fit, a folder holds something else, or a
            loss is not finite.
    """
    progress = progress or Progress()
    splits = {name: load_splits(plan.data) for name, plan in config.tasks.items()}
    keys = {cell: tasks_key(run, splits) for cell, run in config.runs.items()}
    works, wholes = [], {}
    for name, rows in splits.items():
        sets = checked_sets(config.tasks[name], rows, progress)
        folder = TaskStudyFolder(Path(out) / name, config.tasks[name], keys, name)
        folder.check()
        works.append(Work(folder, rows, sets))
        wholes = {cell: folder.whole(cell) for cell in folder.config.order()}
    seconds: dict[str, dict[int, float | None]] = {column: {} for column, _ in wholes}
    with held_folder(Path(out)):
        for number, ((column, seed), whole) in enumerate(wholes.items(), start=1):
            progress.runs(number, len(wholes), f"{column}, seed {seed}")
            train_tasks(config.runs[column, seed], whole, splits=splits, progress=progress)
            for work in works:
                seconds[column][seed] = work.evaluate((column, seed), progress=progress)
                make_folder(work.folder.path)
                cost = step_cost(seconds, reference=work.folder.config.reference)
                work.folder.write(cost=cost)
        return {work.folder.path.name: finish_study(work) for work in works}
