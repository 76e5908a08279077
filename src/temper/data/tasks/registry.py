"""The known tasks, with their labels, metrics and published sizes; find the task of a source."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Literal

from pydantic.dataclasses import dataclass

from temper.data.examples import Kind
from temper.errors import SettingError, unknown
from temper.files import asset
from temper.functional.entities import are_entities
from temper.functional.scores import metrics_of


@dataclass(frozen=True)
class Task:
    """A known benchmark task.

    Args:
        name: Short name, in lower case letters, digits and ``_``.
        hub: Id on the Hugging Face Hub, ``ID:CONFIG`` if it has configurations.
        metrics: Names of its metrics, the primary one first.
        pair: Whether rows are text pairs.
        labels: Its classes by index; None for a regression, or if unknown.
        codes: Names of the classes in its published files, by index, if they differ.
        rows: Split (``train``, ``dev``, ``dev_matched`` ..., ``test``) -> published number of rows.
            If empty, the task is recognized but cannot be given as ``--task``.
        evaluated: Splits that form its dev set.
        stand_ins: Split -> the split that replaces it in partial copies.

    Example:
        >>> Task("toy", "me/toy", rows={"train": 9, "dev": 2}).metric
        'accuracy'
    """

    name: str
    hub: str
    metrics: tuple[str, ...] = ("accuracy",)
    kind: Literal["classification", "regression"] = "classification"
    pair: bool = False
    labels: tuple[str, ...] | None = None
    codes: tuple[str, ...] | None = None
    rows: Mapping[str, int] = field(default_factory=dict)
    evaluated: tuple[str, ...] = ("dev",)
    stand_ins: Mapping[str, str] = field(default_factory=dict)

    @property
    def metric(self) -> str:
        """The primary metric."""
        return self.metrics[0]


_CONTENT = tomllib.loads(asset("temper.data", "tasks.toml"))
TASKS = {name: Task(name, **facts) for name, facts in _CONTENT.items()}


def task_named(name: str) -> Task:
    """Return a task that can be given as ``--task`` (``temper list tasks``).

    Raises:
        ValueError: There is no such task; the message lists the known ones.

    Example:
        >>> task_named("mnli").evaluated
        ('dev_matched', 'dev_mismatched')
    """
    loadable = [known for known, task in TASKS.items() if task.rows]
    if name not in loadable:
        raise ValueError(unknown("task", name, loadable))
    return TASKS[name]


def plain(name: str) -> str:
    """Return a name in lower case without punctuation: ``sst2`` for ``SST-2``."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


def task_of(source: str) -> Task | None:
    """Recognize the task of a source by its name, Hub id or folder name; None if unknown.

    Example:
        >>> task_of("data/SST-2/").name, task_of("glue:cola").metric, task_of("my_reviews")
        ('sst2', 'mcc', None)
    """
    known = {plain(name): task for name, task in TASKS.items()}
    parts = [part for part in re.split(r"[/\\:]", source.partition("@")[0]) if part]
    # A file's name (train.csv) does not identify a task, but its folder may. Folders further up
    # are ignored, because a home directory may have any name.
    for part in reversed(parts[-2:]):
        task = known.get(plain(part))
        if task is not None:
            return task
    return None


def task_source(name: str, root: Path | str | None) -> str:
    """Return the source of a task: its folder under ``root``, or its Hub id if ``root`` is None.

    The folder is named like the task, perhaps with ``_public``; case and punctuation do not matter.

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
            f"The data root of task {name!r} must be a folder, and {root} is not one. Pass the "
            "folder with the tasks' folders: TEMPER_DATA=DIR, or --set data_root=DIR."
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
        existing = ", ".join(entry.name for entry in folders[:8]) or "no folders"
        raise SettingError(
            f"No folder of task {name!r} is under {root}, which contains {existing}. Expected one "
            f"called {name} (case and punctuation do not matter). Choose another `data_root`, or "
            "pass the task's own folder as --data."
        )
    return str(matching[0])


def default_metric(
    source: str,
    kind: Kind,
    *,
    task: str | None = None,
    names: Sequence[str] = (),
) -> str:
    """Choose the primary metric of a source.

    It is the task's metric if the task is given, or if it is recognized and has the same kind of
    labels. Otherwise it depends on the kind: accuracy for classes, Pearson's correlation for a
    regression, mAP for several labels, F1 of entities or accuracy over words for tags (by
    ``names``), F1 of words for answer spans, and loss per token for generated text.

    Example:
        >>> default_metric("glue:cola", "classification"), default_metric("my_scores", "regression")
        ('mcc', 'pearson')
        >>> default_metric("my_pairs.csv", "classification", task="mrpc")
        'f1'
    """
    known = task_of(source) if task is None else TASKS[task]
    if known is not None and known.kind == kind:
        return known.metric
    if kind == "tokens" and not are_entities(names):
        return "word_accuracy"
    return metrics_of("completions" if kind == "seq2seq" else kind)[0]
