"""Settings of a run on several tasks.

They are those of a run (`temper.training.config`), with a table for each task and one for how their
batches are mixed; ``data`` holds what the tables of the tasks leave out::

    model = "minilm"
    [data]
    rows = 2000
    [tasks.rte]
    task = "rte"
    [tasks.reviews]
    source = "reviews.csv"
    [mixing]
    temperature = 1.0
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field

from temper.errors import ModelError, SettingError, unknown
from temper.models.multi_task.classifier import TaskHead
from temper.training.assignments import Tree, section
from temper.training.config import PLACES, RunConfig

OF_ONE_TASK = ("source", "task", "config")
"""Settings of ``data`` that say which data are meant, so that tasks cannot share them."""


class MixingSettings(BaseModel):
    """How the batches of the tasks are mixed.

    Args:
        temperature: T >= 1: tasks come in proportion to ``batches ** (1 / T)``. At 1 (Liu et al.
            2019) an epoch has every row of every task once.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    temperature: float = Field(1.0, ge=1)


@dataclass(frozen=True)
class MultiTaskConfig:
    """All settings of one training run on several tasks.

    Args:
        tasks: The settings of a run on each task by itself, by name, in the order of the model's
            tasks. They differ in ``data`` alone.
        mixing: How their batches are mixed.
    """

    tasks: Mapping[str, RunConfig]
    mixing: MixingSettings

    @classmethod
    def of(cls, tree: Mapping[str, Any]) -> Self:
        """Check nested settings and fill in defaults.

        Args:
            tree: As `RunConfig.of` takes it, with ``tasks`` and ``mixing``.

        Returns:
            The checked run.

        Raises:
            SettingError: Where anything is wrong; it lists every fault, not only the first.
        """
        places = (*PLACES, "tasks", "mixing")
        found = [unknown("setting", name, places) for name in tree if name not in places]
        tables, shared = tree.get("tasks", {}), tree.get("data", {})
        if not isinstance(tables, Mapping) or len(tables) < 2:
            found.append(
                "`tasks` must be a table with a table of settings for each of two or more tasks. "
                "Give --multi-task NAME=PATH for each, or --task and --data for one."
            )
            tables = {}
        if not isinstance(shared, Mapping):
            raise SettingError(f"`data` must be a table of settings, got {shared!r}.")
        found += [
            f"`data.{name}` says which data are meant and cannot be shared by tasks. Write "
            f"`tasks.NAME.{name}`."
            for name in OF_ONE_TASK
            if name in shared
        ]
        mixing = MixingSettings()
        try:
            mixing = section(MixingSettings, "mixing", tree.get("mixing", {}))
        except SettingError as error:
            found.append(str(error))
        whole = {name: tree[name] for name in PLACES if name in tree and name != "data"}
        tasks: dict[str, RunConfig] = {}
        wrong: dict[str, list[str]] = {}
        for name, table in tables.items():
            try:
                tasks[name] = _of_task(name, table, {**whole, "data": dict(shared)})
            except SettingError as error:
                wrong[name] = str(error).splitlines()
        found += _told(wrong, of=len(tables))
        if found:
            raise SettingError("\n".join(found))
        return cls(tasks, mixing)

    @property
    def first(self) -> RunConfig:
        """The run on the first task by itself, which has the settings that all tasks share."""
        return next(iter(self.tasks.values()))

    @property
    def model(self) -> str:
        """Name of the model whose encoder is shared."""
        return self.first.model

    @property
    def seed(self) -> int:
        """Seed of every random draw."""
        return self.first.seed

    def settings(self) -> Tree:
        """Return the resolved settings as ``run.json`` holds them."""
        shared = {name: table for name, table in self.first.settings().items() if name != "data"}
        tables = {name: run.data.model_dump(mode="json") for name, run in self.tasks.items()}
        return {**shared, "tasks": tables, "mixing": self.mixing.model_dump(mode="json")}


def _of_task(name: str, table: Any, tree: Tree) -> RunConfig:
    """Check the settings of one task."""
    if not isinstance(table, Mapping):
        raise SettingError(
            f"`tasks.{name}` must be a table of settings, got {table!r}. Write "
            f"`tasks.{name}.source=PATH`."
        )
    try:
        TaskHead(name)
        config = RunConfig.of({**tree, "data": {**tree["data"], **table}})
    except ModelError as error:
        raise SettingError(str(error)) from error
    found = []
    if config.data.unlabeled is not None:
        found.append("Text without labels (`data.unlabeled`) is for a training on one task.")
    if config.data.attacks:
        found.append("Attacked rows (`data.augment`) are for a training on one task.")
    if config.train.keep == "best":
        found.append(
            "`train.keep` is 'best', but tasks are at their best after different epochs, and the "
            "encoder is one."
        )
    if config.train.lora is not None:
        found.append("An adapter (`train.lora`) is for a training on one task.")
    if config.train.class_weights is not None:
        found.append("`train.class_weights` are of one task's labels, and there are several tasks.")
    if found:
        raise SettingError("\n".join(f"{fault} Leave it out." for fault in found))
    return config


def _told(wrong: Mapping[str, list[str]], *, of: int) -> list[str]:
    """List the faults of tasks: those of all once, the others with the task's name."""
    faults = list(dict.fromkeys(fault for each in wrong.values() for fault in each))
    common = [
        fault
        for fault in faults
        if len(wrong) == of and all(fault in each for each in wrong.values())
    ]
    own = [
        f"Task {name!r} (`tasks.{name}`): {fault}"
        for name, each in wrong.items()
        for fault in each
        if fault not in common
    ]
    return [*common, *own]
