"""Tasks by name: the option ``--task``, and where its data are looked for."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from temper.cli import completion
from temper.errors import SettingError

Task = Annotated[
    str | None,
    typer.Option(
        "--task",
        metavar="NAME",
        help="A task of `temper list tasks`: its labels, splits and scores. Its data lie under "
        "--data-root, else in the folder TEMPER_DATA names, else on the Hub; or are --data.",
        autocompletion=completion.tasks,
    ),
]
DataRoot = Annotated[
    Path | None,
    typer.Option(
        "--data-root",
        metavar="DIR",
        help="Folder with the task's folder, as GLUE, CLUE or Temper lay it out; the environment "
        "variable TEMPER_DATA if left out.",
    ),
]


def task_settings(
    task: str | None, data: str | None, root: Path | None, *, suite: str | None = None
) -> dict[str, Any]:
    """Turn ``--task``, ``--data`` and ``--data-root`` into settings.

    Args:
        task: The task's name.
        data: A copy of its data, or other data where no task is named.
        root: Folder that holds the folders of tasks; None takes what ``TEMPER_DATA`` says, and the
            Hub where it says nothing.
        suite: What ``--suite`` says, whose sets lie under the root too.

    Returns:
        ``data.task`` and ``data.source``.

    Raises:
        SettingError: If the task is unknown, its data are not under the root, or nothing is looked
            for there.

    Example:
        >>> task_settings(None, "reviews.csv", None)
        {'data.task': None, 'data.source': 'reviews.csv'}
    """
    if root is not None and suite is None and (task is None or data is not None):
        why = "there is neither" if task is None else f"the task's are --data {data}"
        raise SettingError(
            f"--data-root says where the data of --task and --suite lie, but {why}. Leave it out, "
            "or give --task NAME without --data."
        )
    if task is None or data is not None:
        return {"data.task": task, "data.source": data}
    from temper.app.settings import ROOT
    from temper.data.tasks.place import task_source

    return {"data.task": task, "data.source": task_source(task, root or os.environ.get(ROOT))}
