"""Read CLUE's own files of TNEWS and IFLYTEK: JSON lines that are called ``.json``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from temper.data.content import first_line
from temper.data.formats import read_json_lines
from temper.data.table import Table, TableOptions
from temper.data.tasks.task import Task
from temper.errors import DataError, unknown

_SPLITS = ("train", "dev", "test")
_NAMES = ("label_desc", "label_des")
"""What the two tasks call the column of the labels' names."""


def clue_splits(
    folder: Path, task: Task, options: TableOptions | None = None
) -> dict[str, Callable[[], Table]] | None:
    """Find the splits of a folder that holds a task as CLUE gives it out.

    Args:
        folder: The folder.
        task: The task.
        options: How tables are read.

    Returns:
        What reads each split's table, with the columns ``text`` and, but for the test split,
        ``label``; None where the folder's files are not CLUE's.
    """
    if not task.hub.startswith("clue/"):
        return None
    files = {split: folder / f"{split}.json" for split in _SPLITS}
    files = {split: path for split, path in files.items() if path.is_file()}
    if not files or not all(map(_is_clue, files.values())):
        return None
    return {split: _reader(path, task, options or TableOptions()) for split, path in files.items()}


def _is_clue(path: Path) -> bool:
    """Say whether a file's first line is an object with a sentence."""
    try:
        row = json.loads(first_line(path))
    except ValueError:
        return False
    return isinstance(row, dict) and "sentence" in row


def _reader(path: Path, task: Task, options: TableOptions) -> Callable[[], Table]:
    return lambda: _read(path, task, options)


def _read(path: Path, task: Task, options: TableOptions) -> Table:
    table = read_json_lines(path, options)
    columns: dict[str, list[object]] = {"text": list(table.column("sentence"))}
    if "label" in table.names:
        columns["label"] = _labels(table, task)
    return Table(
        table.title,
        tuple(columns),
        columns.__getitem__,
        table.size,
        table.lines,
        source=table.source,
        notices=table.notices,
    )


def _labels(table: Table, task: Task) -> list[object]:
    """Turn CLUE's numbers into the names of the labels, which must be those beside them."""
    assert task.labels is not None
    assert task.codes is not None
    names = dict(zip(task.codes, task.labels, strict=True))
    column = next((name for name in _NAMES if name in table.names), None)
    beside = [None] * table.size if column is None else list(table.column(column))
    found: list[object] = []
    for index, (code, said) in enumerate(zip(table.column("label"), beside, strict=True)):
        name = names.get(str(code))
        if name is None:
            raise DataError(f"{table.where(index)}: {unknown('label', str(code), names)}")
        if said is not None and said != name:
            raise DataError(
                f"{table.where(index)}: label {code} of {task.name} is {name!r}, but the row calls "
                f"it {said!r}. Use CLUE's own file."
            )
        found.append(name)
    return found
