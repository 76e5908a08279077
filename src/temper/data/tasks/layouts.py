"""Find a task's files under a folder of data, and read those that GLUE and CLUE give out.

GLUE's files are tab-separated, quotes are plain characters, and every task has another header; the
folders are those that GLUE's download script makes: CoLA, SST-2, MRPC, QQP, STS-B, MNLI, QNLI, RTE
and WNLI. CLUE's are JSON lines that are called ``.json``: TNEWS and IFLYTEK.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from temper.data.content import TextFile, first_line
from temper.data.delimited import plain_records
from temper.data.formats import read_table
from temper.data.reading import Opened, open_folder
from temper.data.table import Table, TableOptions
from temper.data.tasks.registry import Task, plain, task_named
from temper.errors import DataError, SettingError, unknown
from temper.files import asset

Readers = dict[str, Callable[[], Table]]

_SPLITS = ("", "_matched", "_mismatched")
_GLUE: dict[str, dict[str, str]] = tomllib.loads(asset("temper.data", "glue.toml"))
# CoLA's train and dev files have no header: source, label, the author's mark, sentence.
_COLA = ("source", "label", "mark", "sentence")
# QQP's files hold questions with a line break, which tears their rows. All readers of GLUE drop
# them, and the published sizes do not count them.
_TORN = {"qqp"}
_CLUE_NAMES = ("label_desc", "label_des")
"""What CLUE's two tasks call the column of the labels' names."""


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
            "that holds the tasks' folders: TEMPER_DATA=DIR, or --set data_root=DIR."
        )
    wanted = {plain(name), plain(f"{name}_public")}
    folders = sorted(entry for entry in folder.iterdir() if entry.is_dir())
    matching = [entry for entry in folders if plain(entry.name) in wanted]
    if len(matching) > 1:
        names = " and ".join(entry.name for entry in matching)
        raise SettingError(
            f"Task {name!r} could be {names} under {root}. Name one: --data {matching[0]}."
        )
    if not matching:
        held = ", ".join(entry.name for entry in folders[:8]) or "no folders"
        raise SettingError(
            f"No folder of task {name!r} is under {root}, which holds {held}. Expected one called "
            f"{name} (case and signs do not matter). Give another `data_root`, or the task's own "
            "folder as --data."
        )
    return str(matching[0])


def open_task(folder: Path, task: Task, options: TableOptions) -> Opened:
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
    readers = _glue_splits(folder, task.name, options) or _clue_splits(folder, task, options)
    if not readers:
        return open_folder(folder, options)
    return Opened(str(folder), folder.resolve().name, readers, task.labels, options=options)


def _glue_splits(folder: Path, task: str, options: TableOptions) -> Readers:
    """Find the splits of GLUE's layout; none where the files are not GLUE's."""
    if task not in _GLUE:
        return {}
    splits = ("train", *(f"{part}{of}" for part in ("dev", "test") for of in _SPLITS))
    files = {split: folder / f"{split}.tsv" for split in splits}
    files = {split: path for split, path in files.items() if path.is_file()}
    if "train" not in files and task == "mrpc":
        return _original_mrpc(folder, options)
    evaluated = [path for split, path in files.items() if not split.startswith("test")]
    if not evaluated or not all(_is_glue(path, task) for path in evaluated):
        return {}
    return {split: partial(_read_glue, path, task, options) for split, path in files.items()}


def _original_mrpc(folder: Path, options: TableOptions) -> Readers:
    """Find MRPC's original files; GLUE's dev rows are those that a list of ids names."""
    train, test = folder / "msr_paraphrase_train.txt", folder / "msr_paraphrase_test.txt"
    ids = folder / "dev_ids.tsv"
    if not train.is_file():
        return {}
    readers: Readers = {"train": partial(_read_glue, train, "mrpc", options)}
    if ids.is_file():
        dev_ids = {tuple(record) for _, record in plain_records(TextFile.of(ids).lines())}
        header, keys = first_line(train).split("\t"), ("#1 ID", "#2 ID")
        if lacking := [key for key in keys if key not in header]:
            raise DataError(f"{train}: expected the columns {', '.join(lacking)}, got {header}.")
        first, second = map(header.index, keys)

        def in_dev(record: Sequence[str]) -> bool:
            return (record[first], record[second]) in dev_ids

        def in_train(record: Sequence[str]) -> bool:
            return not in_dev(record)

        readers["train"] = partial(_read_glue, train, "mrpc", options, in_train)
        readers["dev"] = partial(_read_glue, train, "mrpc", options, in_dev)
    if test.is_file():
        readers["test"] = partial(_read_glue, test, "mrpc", options)
    return readers


def _is_glue(path: Path, task: str) -> bool:
    """Say whether a file with labels has the columns of GLUE's."""
    first = first_line(path).split("\t")
    return _without_header(first, task) or set(_GLUE[task].values()) <= set(first)


def _without_header(first: Sequence[str], task: str) -> bool:
    return task == "cola" and len(first) == len(_COLA) and first[1] in ("0", "1")


def _read_glue(
    path: Path,
    task: str,
    options: TableOptions,
    keep: Callable[[Sequence[str]], bool] | None = None,
) -> Table:
    """Read a file of GLUE as the columns ``text``, ``text_pair`` and ``label``."""
    content = TextFile.of(path, options.encoding)
    if content.blank():
        raise DataError(f"{path} is empty: expected rows.")
    records = plain_records(content.lines())
    line, first = next(records)
    rows = [(line, first)] if _without_header(first, task) else []
    names = _COLA if rows else [name.strip() for name in first]
    wanted = _GLUE[task]
    lacking = [name for use, name in wanted.items() if name not in names and use != "label"]
    if lacking:
        raise DataError(
            f"{path}: expected {', '.join(map(repr, lacking))} in GLUE's header for {task}, got "
            f"{', '.join(map(repr, names))}. Copy the file again."
        )
    places = {use: names.index(name) for use, name in wanted.items() if name in names}
    last = max(places.values())
    rows += [(line, record) for line, record in records if record]
    if keep is not None:
        rows = [(line, record) for line, record in rows if keep(record)]
    lines = [line for line, _ in rows]
    short = {
        index: f"{len(record)} fields"
        for index, (_, record) in enumerate(rows)
        if len(record) <= last
    }
    if len(short) == len(rows):
        raise DataError(f"{path} has no rows.")
    if short and not options.skip_bad_rows and task not in _TORN:
        index, size = next(iter(short.items()))
        raise DataError(
            f"{path}, line {lines[index]}: expected at least {last + 1} fields with tabs between "
            f"them, got {size}. Copy the file again, or leave such rows out with "
            "--set data.skip_bad_rows=true."
        )
    columns: dict[str, list[object]] = {
        use: [record[place] if len(record) > last else None for _, record in rows]
        for use, place in places.items()
    }
    table = Table(
        str(path), tuple(columns), columns.__getitem__, len(rows), lines, source=content.source()
    ).without(short)
    if short and task in _TORN:
        notice = (
            f"{len(short)} lines of {path} (the first is line {lines[next(iter(short))]}) have too "
            "few fields: a line break inside a question tears its row. They are left out, as in "
            "the published sizes."
        )
        return replace(table, notices=(notice,))
    return table


def _clue_splits(folder: Path, task: Task, options: TableOptions) -> Readers:
    """Find the splits of CLUE's layout; none where the files are not CLUE's."""
    if not task.hub.startswith("clue/"):
        return {}
    files = {split: folder / f"{split}.json" for split in ("train", "dev", "test")}
    files = {split: path for split, path in files.items() if path.is_file()}
    if not all(map(_is_clue, files.values())):
        return {}
    return {split: partial(_read_clue, path, task, options) for split, path in files.items()}


def _is_clue(path: Path) -> bool:
    """Say whether a file's first line is an object with a sentence."""
    try:
        row = json.loads(first_line(path))
    except ValueError:
        return False
    return isinstance(row, dict) and "sentence" in row


def _read_clue(path: Path, task: Task, options: TableOptions) -> Table:
    """Read a file of CLUE as the columns ``text`` and, but for the test split, ``label``."""
    table = read_table(path, options, suffix=".jsonl")
    columns: dict[str, list[object]] = {"text": list(table.column("sentence"))}
    if "label" in table.names:
        columns["label"] = _clue_labels(table, task)
    return replace(table, names=tuple(columns), column=columns.__getitem__)


def _clue_labels(table: Table, task: Task) -> list[object]:
    """Turn CLUE's numbers into the names of the labels, which must be those beside them."""
    assert task.labels is not None
    assert task.codes is not None
    names = dict(zip(task.codes, task.labels, strict=True))
    column = next((name for name in _CLUE_NAMES if name in table.names), None)
    beside = [None] * table.size if column is None else list(table.column(column))
    labels: list[object] = []
    for index, (code, written) in enumerate(zip(table.column("label"), beside, strict=True)):
        name = names.get(str(code))
        if name is None:
            raise DataError(f"{table.where(index)}: {unknown('label', str(code), names)}")
        if written is not None and written != name:
            raise DataError(
                f"{table.where(index)}: label {code} of {task.name} is {name!r}, but the row calls "
                f"it {written!r}. Use CLUE's own file."
            )
        labels.append(name)
    return labels
