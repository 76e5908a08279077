"""Training on several tasks at once: the option ``--multi-task``, and the run that it asks for."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from temper.errors import SettingError

if TYPE_CHECKING:
    from temper.training.assignments import Tree
    from temper.training.progress import Progress

MultiTask = Annotated[
    list[str] | None,
    typer.Option(
        "--multi-task",
        metavar="NAME[=PATH]",
        help="Train one encoder on several tasks, a head each (MT-DNN); once for every task. A "
        "name that --task takes is found as --task finds it, or lies in PATH; any other name is "
        "PATH's.",
    ),
]
# Options that say which data are meant, or what their columns and splits are called.
OF_ONE_DATASET = (
    "task",
    "data",
    "text_column",
    "text_pair_column",
    "label_column",
    "train_split",
    "eval_split",
)


def multi_task_settings(
    named: list[str], root: Path | None, *, given: Mapping[str, Any]
) -> dict[str, Any]:
    """Turn ``--multi-task`` and ``--data-root`` into settings.

    Args:
        named: Texts of ``--multi-task``.
        root: Folder that holds the folders of tasks; None takes what ``TEMPER_DATA`` says, and the
            Hub where it says nothing.
        given: Options of `OF_ONE_DATASET` by name; None where one was not given.

    Returns:
        ``tasks.NAME.source`` of every task, and ``tasks.NAME.task`` of those that ``--task`` takes.

    Raises:
        SettingError: If a name is twice there or has no data, or an option is for one task.

    Example:
        >>> multi_task_settings(["reviews=a.csv", "rte=data/RTE"], None, given={})
        {'tasks.reviews.source': 'a.csv', 'tasks.rte.task': 'rte', 'tasks.rte.source': 'data/RTE'}
    """
    from temper.app.settings import ROOT
    from temper.data.tasks import task_named
    from temper.data.tasks.place import task_source
    from temper.models.multi_task.configuration import TaskHead

    used = [f"--{name.replace('_', '-')}" for name in OF_ONE_DATASET if given.get(name) is not None]
    if used:
        raise SettingError(
            f"{', '.join(used)} is of one data set, and --multi-task names several. Leave it out, "
            "or set it for each: --set tasks.NAME.KEY=VALUE."
        )
    settings: dict[str, Any] = {}
    looked_for = False
    for text in named:
        name, equals, path = text.partition("=")
        TaskHead(name)
        if f"tasks.{name}.source" in settings:
            raise SettingError(f"--multi-task names {name!r} twice. Name it once.")
        if equals and not path:
            raise SettingError(f"--multi-task must be NAME or NAME=PATH, got {text!r}.")
        try:
            settings[f"tasks.{name}.task"] = task_named(name).name
        except ValueError as error:
            if not equals:
                raise SettingError(f"{error} Give its data: {name}=PATH.") from error
        looked_for |= not equals
        own = path if equals else task_source(name, root or os.environ.get(ROOT))
        settings[f"tasks.{name}.source"] = own
    if root is not None and not looked_for:
        raise SettingError(
            "--data-root says where the data of tasks lie, but each --multi-task names its own. "
            "Leave it out, or give --multi-task NAME without =PATH."
        )
    return settings


def run_tasks(tree: Tree, out: Path, *, resume: bool, progress: Progress) -> Path:
    """Train on several tasks.

    Args:
        tree: Nested settings with ``tasks``.
        out: The run's folder.
        resume: Whether a stopped run goes on.
        progress: Hears of steps and notices.

    Returns:
        The folder.
    """
    from temper.training.multi_task.config import MultiTaskConfig
    from temper.training.multi_task.run import train_tasks

    return train_tasks(MultiTaskConfig.of(tree), out, resume=resume, progress=progress)
