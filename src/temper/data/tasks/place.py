"""Find a task's files under a folder of data, whichever way they are laid out."""

from __future__ import annotations

from pathlib import Path

from temper.data.reading import Opened, open_folder
from temper.data.table import TableOptions
from temper.data.tasks.clue import clue_splits
from temper.data.tasks.glue import glue_splits
from temper.data.tasks.registry import plain, task_named
from temper.data.tasks.task import Task
from temper.errors import SettingError


def task_source(name: str, root: Path | str | None) -> str:
    """Say where a task is read from.

    Args:
        name: The task's name.
        root: Folder that holds the task's own: ``SST-2`` of GLUE, ``tnews_public`` of CLUE, or one
            called like the task, in any case; None for the Hub.

    Returns:
        The task's folder, or its id on the Hub.

    Raises:
        SettingError: If there is no such task, or none or several such folders.

    Example:
        >>> task_source("rte", None)
        'nyu-mll/glue:rte'
    """
    try:
        task = task_named(name)
    except ValueError as error:
        raise SettingError(str(error)) from error
    if root is None:
        return task.hub
    folder = Path(root).expanduser()
    if not folder.is_dir():
        raise SettingError(
            f"The data root of task {name!r} must be a folder, and {root} is none. Give the folder "
            "that holds the tasks' folders as --data-root."
        )
    wanted = {plain(name), plain(f"{name}_public")}
    folders = sorted(entry for entry in folder.iterdir() if entry.is_dir())
    found = [entry for entry in folders if plain(entry.name) in wanted]
    if len(found) > 1:
        names = " and ".join(entry.name for entry in found)
        raise SettingError(
            f"Task {name!r} could be {names} under {root}. Name one: --data {found[0]}."
        )
    if not found:
        held = ", ".join(entry.name for entry in folders[:8]) or "no folders"
        raise SettingError(
            f"No folder of task {name!r} is under {root}, which holds {held}. Expected one called "
            f"{name} (case and signs do not matter). Give another --data-root, or the task's own "
            "folder as --data."
        )
    return str(found[0])


def open_task(folder: Path, task: Task, options: TableOptions | None = None) -> Opened:
    """Open a task's folder.

    Args:
        folder: The folder, in GLUE's or CLUE's layout, or with one file a split as any other.
        task: The task.
        options: How tables are read.

    Returns:
        The source, not read yet.

    Raises:
        DataError: If the folder holds no data.
    """
    readers = glue_splits(folder, task.name, options) or clue_splits(folder, task, options)
    if readers is None:
        return open_folder(folder, options)
    return Opened(
        str(folder),
        readers,
        task.labels,
        {"name": folder.resolve().name},
        options=options or TableOptions(),
    )
