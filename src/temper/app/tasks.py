"""Where the data of tasks by name lie: one task, or several that are trained together."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from temper.app.settings import ROOT
from temper.errors import SettingError

OF_ONE_DATASET = {
    "task", "data", "text_column", "text_pair_column", "label_column", "train_split", "eval_split",
}  # fmt: skip
"""Names that say which data are meant, or what their columns and splits are called."""


def task_settings(
    task: str | None, data: str | None, root: Path | str | None, *, suite: str | None = None
) -> dict[str, Any]:
    """Find the data of a task.

    Args:
        task: The task's name.
        data: A copy of its data, or other data where no task is named.
        root: Folder that holds the folders of tasks; None takes what ``TEMPER_DATA`` says, and the
            Hub where it says nothing.
        suite: The suite whose sets lie under the root too.

    Returns:
        Settings of ``data``.

    Raises:
        SettingError: If the task is unknown, its data are not under the root, or nothing is looked
            for there.

    Example:
        >>> task_settings(None, "reviews.csv", None)
        {'source': 'reviews.csv'}
    """
    if root is not None and suite is None and (task is None or data is not None):
        why = "there is neither" if task is None else f"the task's are --data {data}"
        raise SettingError(
            f"--data-root says where the data of --task and --suite lie, but {why}. Leave it out, "
            "or give --task NAME without --data."
        )
    if task is not None and data is None:
        from temper.data.tasks.layouts import task_source

        data = task_source(task, root or os.environ.get(ROOT))
    settings = {"task": task, "source": data}
    return {name: value for name, value in settings.items() if value is not None}


def multi_task_settings(
    named: Iterable[str] | Mapping[str, str | None], root: Path | str | None
) -> dict[str, dict[str, str]]:
    """Find the data of several tasks.

    Args:
        named: Texts ``NAME`` or ``NAME=PATH``, or a mapping of names to paths.
        root: As `task_settings` takes it.

    Returns:
        Settings of each of ``tasks``: its ``source``, and ``task`` where the name is one that
        ``--task`` takes.

    Raises:
        SettingError: If a name is twice there or has no data.

    Example:
        >>> multi_task_settings(["reviews=a.csv", "rte=data/RTE"], None)
        {'reviews': {'source': 'a.csv'}, 'rte': {'task': 'rte', 'source': 'data/RTE'}}
    """
    from temper.data.tasks.layouts import task_source
    from temper.data.tasks.registry import task_named
    from temper.models.multi_task.classifier import TaskHead

    if isinstance(named, Mapping):
        named = [name if path is None else f"{name}={path}" for name, path in named.items()]
    settings: dict[str, dict[str, str]] = {}
    root_is_read = False
    for text in named:
        name, equals, path = text.partition("=")
        TaskHead(name)
        if name in settings:
            raise SettingError(f"--multi-task names {name!r} twice. Name it once.")
        if equals and not path:
            raise SettingError(f"--multi-task must be NAME or NAME=PATH, got {text!r}.")
        settings[name] = {}
        try:
            settings[name]["task"] = task_named(name).name
        except ValueError as error:
            if not equals:
                raise SettingError(f"{error} Give its data: {name}=PATH.") from error
        root_is_read |= not equals
        source = path if equals else task_source(name, root or os.environ.get(ROOT))
        settings[name]["source"] = source
    if root is not None and not root_is_read:
        raise SettingError(
            "--data-root says where the data of tasks lie, but each --multi-task names its own. "
            "Leave it out, or give --multi-task NAME without =PATH."
        )
    return settings
