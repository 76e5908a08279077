"""Train one encoder on several tasks; the folder has the whole model and one model per task.

The settings are those of a run (`temper.training.config`) and a table for each task. ``data`` has
the settings that all tasks share::

    model = "minilm"
    [data]
    rows = 2000
    [tasks.rte]
    task = "rte"
    [tasks.reviews]
    source = "reviews.csv"
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import permutations
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from temper.checkpoints.folder import RunFolder, is_finished
from temper.checkpoints.identity import digest, model_identity
from temper.data.augmentation import augmented
from temper.data.encode import LazilyEncoded, cut_notices
from temper.data.examples import Examples, Splits
from temper.data.reading import splits_read_as
from temper.data.sources import load_splits
from temper.errors import SettingError, unknown
from temper.files import checksums
from temper.models.multi_task import check_task, share_encoder
from temper.progress import Progress
from temper.settings import Faults, Tree
from temper.training.checks import check_head, check_one_process
from temper.training.config import KEYS, RunConfig, run_key, teachers_of
from temper.training.loading import TASK, TaskRows
from temper.training.prepared import (
    Prepared,
    label_names,
    make_network,
    network_notices,
    scored_sets,
    unknown_tokens,
)
from temper.training.recorder import DEV
from temper.training.run import ActiveRun

FOLDER = "tasks"
"""Folder of a run with the plain classifier of each task."""

OF_ONE_TASK = ("source", "task", "config")
"""Settings of ``data`` that select the data, so that tasks cannot share them."""


@dataclass(frozen=True)
class MultiTaskConfig:
    """All settings of one training run on several tasks.

    ``tasks`` is task name -> settings of a run on this task alone, in the order of the model's
    tasks. They differ only in ``data``.
    """

    tasks: Mapping[str, RunConfig]

    @classmethod
    def of(cls, tree: Mapping[str, Any]) -> Self:
        """Check nested settings with a table ``tasks``, as `RunConfig.of`, and fill in defaults."""
        known = (*KEYS, "tasks")
        result = Faults(unknown("setting", name, known) for name in tree if name not in known)
        tables, shared = tree.get("tasks", {}), tree.get("data", {})
        if not isinstance(tables, Mapping) or len(tables) < 2:
            result.append(
                "`tasks` must be a table with a table of settings for each of two or more tasks. "
                "Pass --task NAME=PATH for each, or --task and --data for one."
            )
            tables = {}
        if not isinstance(shared, Mapping):
            raise SettingError(
                f"`data` must be a table of settings, got {shared!r}. Write `data.KEY=VALUE`."
            )
        result += [
            f"`data.{name}` selects the data of one task and cannot be shared by tasks. Write "
            f"`tasks.NAME.{name}`."
            for name in OF_ONE_TASK
            if name in shared
        ]
        whole = {name: tree[name] for name in KEYS if name in tree and name != "data"}
        tasks: dict[str, RunConfig] = {}
        wrong = {name: Faults() for name in tables}
        for name, table in tables.items():
            with wrong[name].caught():
                tasks[name] = _config_of(name, table, {**whole, "data": dict(shared)})
        # A fault of every task is in the shared settings; it is reported once.
        result += [
            fault
            if all(fault in others for others in wrong.values())
            else f"Task {name!r} (`tasks.{name}`): {fault}"
            for name, faults in wrong.items()
            for fault in faults
        ]
        result.refuse()
        return cls(tasks)

    @property
    def first(self) -> RunConfig:
        """The settings of the first task; all but its ``data`` apply to every task."""
        return next(iter(self.tasks.values()))

    @property
    def model(self) -> str:
        return self.first.model

    @property
    def seed(self) -> int:
        return self.first.seed

    def settings(self) -> Tree:
        shared = {name: table for name, table in self.first.settings().items() if name != "data"}
        tables = {name: run.data.model_dump(mode="json") for name, run in self.tasks.items()}
        return {**shared, "tasks": tables}


def _config_of(name: str, table: Any, tree: Tree) -> RunConfig:
    if not isinstance(table, Mapping):
        raise SettingError(
            f"`tasks.{name}` must be a table of settings, got {table!r}. Write "
            f"`tasks.{name}.source=PATH`."
        )
    check_task(name)
    config = RunConfig.of({**tree, "data": {**tree["data"], **table}})
    of_one_task = {
        "Text without labels (`data.unlabeled`)": config.data.unlabeled is not None,
        # Tasks have different best epochs, but there is only one encoder.
        "`train.keep` 'best'": config.train.keep == "best",
        "An adapter (`train.lora`, `train.peft`)": config.train.adapter is not None,
        "`train.class_weights`": config.train.class_weights is not None,
        "A teacher of the method": bool(teachers_of(config.method_config())),
    }
    Faults(
        f"{setting} is for a training on one task. Leave it out."
        for setting, is_given in of_one_task.items()
        if is_given
    ).refuse()
    return config


def train_tasks(
    config: MultiTaskConfig,
    out: Path | str,
    *,
    resume: bool = True,
    splits: Mapping[str, Splits] | None = None,
    progress: Progress | None = None,
) -> Path:
    """Fine-tune one model on several tasks; docs/formats.md describes the folder.

    Finished and stopped runs are treated as `temper.training.run.train` treats them. The folder has
    the whole model, and in ``tasks/NAME`` a plain checkpoint of each task with its record.

    Raises:
        TemperError: If data, labels, model or method do not fit, the folder has another run, or a
            loss is not finite.
        KeyboardInterrupt: On Ctrl-C, after ``run.json`` was given the status ``stopped``.
    """
    check_one_process()
    progress = progress or Progress()
    folder = RunFolder(Path(out))
    result = folder.record()
    loaded = splits or {name: load_splits(run.data) for name, run in config.tasks.items()}
    notices = notices_of(loaded)
    for name, item in loaded.items():
        progress.info_all(f"{name}: {sentence}" for sentence in splits_read_as(item))
    progress.notice_all(notices)
    key = tasks_key(config, loaded)
    if is_finished(folder, result, config, key, progress):
        folder.sweep_finished()
        return folder.path
    prepared = prepare_tasks(config, loaded)
    progress.notice_all(network_notices(config.first, prepared.model, prepared.tokenizer))
    rows: Any = prepared.rows
    for name, run in config.tasks.items():
        progress.notice_all(
            f"{name}: {notice}"
            for notice in cut_notices(
                rows.parts[name],
                prepared.tokenizer,
                max_length=run.data.max_length,
            )
        )
    progress.notice_all(prepared.notices)
    prepared = replace(prepared, notices=(*notices, *prepared.notices))
    _ActiveTasks(config, folder, key, loaded, progress, prepared).run(resume=resume)
    return folder.path


def prepare_tasks(config: MultiTaskConfig, splits: Mapping[str, Splits]) -> Prepared:
    """Load and build everything that a run needs, so that errors come before any writing."""
    method = config.first.method_config()
    kinds = {f"Task {name!r} (`tasks.{name}`)": splits[name].train.kind for name in config.tasks}
    check_head(method, kinds)
    if any(run.data.windows is not None for run in config.tasks.values()):
        raise SettingError(
            "`data.stride` reads texts in windows, which a run on several tasks does not "
            "support. Leave it out, or train this task by itself."
        )
    others = [task for task, kind in kinds.items() if kind not in ("classification", "regression")]
    if others:
        raise SettingError(
            f"{others[0]}: its texts have no single label, which one encoder under the heads of "
            "several tasks does not support. Train this task by itself."
        )
    if config.first.train.given_names:
        raise SettingError(
            "`train.label_names` and `train.label_map` name the classes of one head, and with "
            "several tasks each gets a new head. Leave them out."
        )
    trains = [split.train for split in splits.values()]
    labels = {
        name: [] if splits[name].train.kind == "regression" else label_names(splits[name].train)
        for name in config.tasks
    }
    texts = [text for rows in trains for text in (*rows.text, *(rows.text_pair or ()))]
    # The head of this model is not used, so its classes need not fit the tasks.
    classifier, tokenizer, notices = make_network(
        config.first,
        Examples("tasks", texts, labels=[0] * len(texts), kind="classification"),
        labels=next(filter(None, labels.values()), ("0", "1")),
        new_head=True,
    )
    model = share_encoder(classifier, labels, seed=config.seed)
    parts = {}
    for name, run in config.tasks.items():
        rows = splits[name].train
        encoded = LazilyEncoded(rows, tokenizer, max_length=run.data.max_length)
        notices += tuple(f"{name}: {notice}" for notice in unknown_tokens(run, encoded, tokenizer))
        parts[name] = augmented(encoded, rows, tokenizer, run.data, seed=config.seed)
    mixed: Any = TaskRows(parts)
    scored = tuple(
        item
        for name, run in config.tasks.items()
        for item in scored_sets(run, {DEV: splits[name].dev}, tokenizer, task=name)
    )
    return Prepared(model, tokenizer, method, mixed, None, notices=notices, scored=scored)


def tasks_key(config: MultiTaskConfig, splits: Mapping[str, Splits]) -> str:
    """Return the key of a run: a hash of the keys of its tasks, in their order."""
    identity = model_identity(config.model)
    runs = [
        [name, run_key(run, splits[name], identity=identity)] for name, run in config.tasks.items()
    ]
    return digest(runs)


def notices_of(splits: Mapping[str, Splits]) -> list[str]:
    """Return the notices about the data, each with its task's name."""
    messages = [f"{name}: {text}" for name, split in splits.items() for text in split.notices]
    for name, other in permutations(splits, 2):
        # The tasks share the encoder, so it has seen the training rows of each.
        if shared := splits[name].train.overlap(splits[other].dev):
            messages.append(f"{name}: {len(shared)} train rows are also in dev of {other}")
    return messages


class _ActiveTasks(ActiveRun):
    """A checked run on several tasks that is being trained."""

    def __init__(
        self,
        whole: MultiTaskConfig,
        folder: RunFolder,
        key: str,
        splits: Mapping[str, Splits],
        progress: Progress,
        prepared: Prepared,
    ) -> None:
        self.whole, self.of_tasks = whole, splits
        self._first = next(iter(whole.tasks))
        # The record of settings and data is written for each task.
        super().__init__(whole.first, folder, key, splits[self._first], progress, prepared)

    @property
    def plan(self) -> MultiTaskConfig:
        return self.whole

    def record(self, status: str) -> dict[str, Any]:
        of_tasks = {name: self._of_task(name, status) for name in self.whole.tasks}
        epochs = {name: one["epochs"] for name, one in of_tasks.items() if "epochs" in one}
        record = self.record_of(
            status, self.key, self.config, self.splits, self.prepared, epochs or None
        )
        del record["task"]
        sizes = [f"{name} ({len(task.train):,} rows)" for name, task in self.of_tasks.items()]
        listed = (
            f"Trained on {len(sizes)} tasks: {', '.join(sizes)}. The classifier of each is in "
            f"{FOLDER}/NAME, to be evaluated, fine-tuned and reported on like any other."
        )
        return {
            **record,
            "settings": self.whole.settings(),
            "tasks": {
                name: {**one["task"], "folder": f"{FOLDER}/{name}"}
                for name, one in of_tasks.items()
            },
            "data": {name: one["data"] for name, one in of_tasks.items()},
            "notices": [listed, *self.prepared.notices],
        }

    def write_model(
        self, model: Any, staging: Path, state: dict[str, Tensor] | None = None
    ) -> None:
        super().write_model(model, staging, state)
        # A process that was killed while it published may have left some.
        shutil.rmtree(self.folder.path / FOLDER, ignore_errors=True)
        for name in self.whole.tasks:
            folder = staging / FOLDER / name
            super().write_model(model.for_task(name), folder)
            record = {**self._of_task(name, "finished"), "files": checksums(folder)}
            RunFolder(folder).write_record(record)

    def few_rows(self, rows: Any) -> dict[str, Tensor]:
        batch = super().few_rows(rows.parts[self._first])
        return {**batch, TASK: torch.zeros(len(batch["labels"]), dtype=torch.int64)}

    def _of_task(self, name: str, status: str) -> dict[str, Any]:
        """Return the record of one task's classifier."""
        others = [other for other in self.whole.tasks if other != name]
        rows: Any = self.prepared.rows
        together = (
            f"Trained together with {', '.join(others)}: the encoder has seen their rows too."
        )
        prepared = replace(self.prepared, rows=rows.parts[name], notices=(together,))
        key, config, splits = digest([self.key, name]), self.whole.tasks[name], self.of_tasks[name]
        return self.record_of(status, key, config, splits, prepared, self.scores.record(name))
