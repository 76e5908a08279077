"""Config of an MT-DNN: its encoder's, and the tasks in the order of their numbers."""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from torch import nn
from transformers import AutoConfig, PreTrainedConfig

from temper.errors import ModelError, unknown
from temper.models.multi_task import TYPE

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


@dataclass(frozen=True)
class TaskHead:
    """What a head is for.

    Args:
        name: Name of the task: letters, digits, ``_`` and ``-``.
        labels: Names of the classes; empty for a regression.
        pair: Whether its rows are two texts.

    Raises:
        ModelError: If the name has another form, or there is one label alone.

    Example:
        >>> TaskHead("sts_b").problem_type
        'regression'
    """

    name: str
    labels: tuple[str, ...] = ()
    pair: bool = False

    def __post_init__(self) -> None:
        # A head is kept under its task's name in a module, which has names of its own; some of
        # them (`training`) only once it is made.
        if not NAME.fullmatch(self.name) or hasattr(nn.ModuleDict(), self.name):
            raise ModelError(
                f"The name of a task must be letters, digits, _ and -, and no attribute of torch's "
                f"ModuleDict, got {self.name!r}. Give another."
            )
        if len(self.labels) == 1 or len(set(self.labels)) < len(self.labels):
            raise ModelError(
                f"Task {self.name!r} must have two or more different labels, or none for a "
                f"regression, got {list(self.labels)}."
            )

    @property
    def problem_type(self) -> str:
        """What Transformers calls its kind."""
        return "single_label_classification" if self.labels else "regression"


class MTDNNConfig(PreTrainedConfig):
    """Config of an `MTDNNForSequenceClassification`.

    Args:
        encoder: Config of the encoder's architecture as a dictionary, with its ``model_type``.
        tasks: The tasks as dictionaries of `TaskHead`; a task's place is its number in a batch.
        pad_token_id: Id of the padding token, as the encoder's.
    """

    model_type = TYPE

    encoder: dict[str, Any] | None = None
    tasks: list[dict[str, Any]] | None = None
    pad_token_id: int | None = None

    @classmethod
    def of(cls, encoder: Any, tasks: Sequence[TaskHead]) -> MTDNNConfig:
        """Return the config of an encoder with heads for tasks.

        Args:
            encoder: Config of any classifier of Transformers.
            tasks: The tasks, at least one; the order gives their numbers.

        Raises:
            ModelError: If a name stands twice, or the model is made of encoder and decoder.
        """
        names = [task.name for task in tasks]
        if not names or len(set(names)) < len(names):
            raise ModelError(f"Tasks must be one or more of different names, got {names}.")
        if encoder.is_encoder_decoder or encoder.model_type == TYPE:
            raise ModelError(
                f"An MT-DNN shares one encoder between its tasks, and a {encoder.model_type!r} is "
                "none. Give an encoder, or a folder tasks/NAME of a multi-task run."
            )
        described = [{**asdict(task), "labels": list(task.labels)} for task in tasks]
        return cls(encoder=encoder.to_dict(), tasks=described, pad_token_id=encoder.pad_token_id)

    @property
    def heads(self) -> tuple[TaskHead, ...]:
        """The tasks in the order of their numbers."""
        return tuple(
            TaskHead(each["name"], tuple(each["labels"]), each["pair"]) for each in self.tasks or ()
        )

    @property
    def task_names(self) -> tuple[str, ...]:
        """The tasks' names in the order of their numbers."""
        return tuple(head.name for head in self.heads)

    def number(self, name: str) -> int:
        """Return the number by which a batch names a task.

        Args:
            name: The task's.

        Raises:
            ModelError: If there is no such task.
        """
        if name not in self.task_names:
            raise ModelError(unknown("task of this model", name, self.task_names))
        return self.task_names.index(name)

    def of_task(self, name: str) -> Any:
        """Return the config of the plain classifier of one task.

        Args:
            name: The task's.

        Returns:
            A config of the encoder's architecture, with the task's labels.

        Raises:
            ModelError: If there is no such task.
        """
        head, own = self.heads[self.number(name)], copy.deepcopy(dict(self.encoder or {}))
        labels = head.labels or ("LABEL_0",)
        own["id2label"] = dict(enumerate(labels))
        own["label2id"] = {label: place for place, label in enumerate(labels)}
        own["problem_type"] = head.problem_type
        for stale in ("architectures", "num_labels", "transformers_version"):
            own.pop(stale, None)
        return AutoConfig.for_model(own.pop("model_type"), **own)
