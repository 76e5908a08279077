"""MT-DNN as a model of Transformers: the encoder once, and for each task its own head.

Source: Liu et al. 2019, "Multi-Task Deep Neural Networks for Natural Language Understanding",
arXiv 1901.11504, section 3. Each head is what the encoder's own architecture puts there, so that
what a task gives is bit for bit what its plain classifier gives.

Differs: pairs have the same linear head on the pooled row as single texts, where the paper has a
stochastic answer network (its equations 5 to 7); QNLI is classified, not ranked.
"""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    PreTrainedConfig,
    PreTrainedModel,
)

from temper.errors import ModelError, unknown
from temper.models.blocks import head_settings
from temper.models.multi_task import TYPE
from temper.seeding import derive_seed, seeded

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
        >>> TaskHead("sts_b").labels
        ()
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
        stale = ("architectures", "num_labels", "id2label", "label2id", "transformers_version")
        for key in stale:
            own.pop(key, None)
        own.update(head_settings(head.labels or None))
        return AutoConfig.for_model(own.pop("model_type"), **own)


class MTDNNForSequenceClassification(PreTrainedModel):
    """One encoder under the heads of several tasks; a batch holds rows of one task.

    Args:
        config: With the encoder's config and the tasks.

    Raises:
        ModelError: If the architecture keeps no pre-trained part apart from its head.

    Example:
        >>> import torch
        >>> from transformers import BertConfig
        >>> from temper.models.multi_task.classifier import MTDNNConfig, TaskHead
        >>> encoder = BertConfig(
        ...     vocab_size=9,
        ...     hidden_size=4,
        ...     num_hidden_layers=1,
        ...     num_attention_heads=1,
        ...     intermediate_size=4,
        ... )
        >>> tasks = [TaskHead("rte", ("yes", "no")), TaskHead("sts_b", pair=True)]
        >>> model = MTDNNForSequenceClassification(MTDNNConfig.of(encoder, tasks))
        >>> model(input_ids=torch.tensor([[1, 2]]), task="sts_b").logits.shape
        torch.Size([1, 1])
        >>> type(model.for_task("rte")).__name__
        'BertForSequenceClassification'

    References:
        Liu et al. 2019, arXiv 1901.11504, section 3.
    """

    config_class = MTDNNConfig
    base_model_prefix = "encoder"
    main_input_name = "input_ids"
    supports_gradient_checkpointing = True
    # What the encoder supports is asked of it, being a model of its own.
    _supports_sdpa = True
    _supports_flash_attn = True

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        heads: dict[str, Any] = {}
        for name in config.task_names:
            head = AutoModelForSequenceClassification.from_config(config.of_task(name))
            body: Any = head._modules.pop(head.base_model_prefix, None)
            if body is None:
                raise ModelError(
                    f"{type(head).__name__} keeps no encoder apart from its head, so tasks cannot "
                    "share it. Give another model."
                )
            if not heads:
                self.encoder = body
                self.supports_gradient_checkpointing = body.supports_gradient_checkpointing
            # Past torch's registration: its weights belong to this model once, and to no head.
            head.__dict__[head.base_model_prefix] = self.encoder
            if heads:
                _share_dropout(next(iter(heads.values())), head)
            heads[name] = head
        self.heads = nn.ModuleDict(heads)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        """Return the encoder's table of words."""
        found: nn.Module = self.encoder.get_input_embeddings()
        return found

    def for_task(self, name: str) -> Any:
        """Return the plain classifier of one task.

        Args:
            name: The task's.

        Returns:
            A classifier of the encoder's own architecture that shares all weights with this model;
            saved, it is a checkpoint like any other.

        Raises:
            ModelError: If there is no such task.
        """
        head: Any = self.heads[self.task_of(name)]
        prefix = head.base_model_prefix
        plain = copy.copy(head)
        # The body first, as where it was made.
        plain._modules = {prefix: self.encoder, **head._modules}
        del plain.__dict__[prefix]
        plain.train(self.training)
        return plain

    def task_of(self, task: Tensor | str | None) -> str:
        """Return the name of the task that a batch belongs to.

        Args:
            task: Its name, its number for every row [B], or None where there is but one.

        Raises:
            ModelError: If it is not known, or rows of several tasks share the batch.
        """
        names: tuple[str, ...] = self.config.task_names
        if isinstance(task, Tensor):
            numbers = set(task.tolist())
            if len(numbers) != 1:
                raise ModelError(
                    f"A batch must hold rows of one task, got the numbers {sorted(numbers)}. "
                    "Batch each task by itself (temper.training.loading)."
                )
            place = int(numbers.pop())
            if not 0 <= place < len(names):
                raise ModelError(f"Task number {place} is none of {len(names)}: {names}.")
            return names[place]
        if task is None and len(names) == 1:
            return names[0]
        if task is None:
            raise ModelError(
                f"This model has several tasks ({', '.join(names)}): say which one with task=, or "
                "take the classifier of one, model.for_task(NAME)."
            )
        number: int = self.config.number(task)
        return names[number]

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        task: Tensor | str | None = None,
        labels: Tensor | None = None,
        **more: Any,
    ) -> Any:
        """Classify a batch of one task.

        Args:
            input_ids: Token ids [B, T].
            attention_mask: Real tokens [B, T].
            token_type_ids: Which text a token belongs to [B, T]; left out where the encoder tells
                none apart.
            task: The task's name, or its number for every row [B].
            labels: Classes [B], or targets [B] of a regression; the loss is left out without.
            more: What else the architecture takes, for example ``output_hidden_states``.

        Returns:
            What the architecture's own classifier gives, with logits [B, C] of the task.

        Raises:
            ModelError: If the task is unknown, or rows of several share the batch.
        """
        head = self.heads[self.task_of(task)]
        takes = inspect.signature(head.forward).parameters
        inputs: dict[str, Any] = {
            "input_ids": input_ids,
            "attention_mask": attention_mask,
            "labels": labels,
            **more,
        }
        if "token_type_ids" in takes:
            inputs["token_type_ids"] = token_type_ids
        if "use_cache" in takes:
            inputs.setdefault("use_cache", False)
        return head(**inputs)


def _share_dropout(first: nn.Module, head: nn.Module) -> None:
    """Give a head the dropout layers of the first one, so that all tasks have the same sites."""
    for path, module in list(head.named_modules()):
        if isinstance(module, nn.Dropout):
            parent, _, name = path.rpartition(".")
            setattr(head.get_submodule(parent), name, first.get_submodule(path))


def share_encoder(
    classifier: Any, tasks: Sequence[TaskHead], *, seed: int = 0
) -> MTDNNForSequenceClassification:
    """Take a classifier's encoder, and draw a head for each task.

    Args:
        classifier: Of Transformers, or a network of `temper.models.classical`; its own head is not
            taken, and it stays as it is.
        tasks: The tasks, in the order of their numbers.
        seed: Seed of the heads: equal seeds give equal heads.

    Returns:
        The model, in evaluation mode.

    Raises:
        ModelError: If the model is no encoder or a PEFT adapter, or the tasks' names do not fit.
    """
    if hasattr(classifier, "peft_config"):
        raise ModelError(
            "An adapter stands on one classifier, and its encoder cannot be shared by several "
            "tasks. Merge it into its base (merge_and_unload), save that, and give its folder."
        )
    config = MTDNNConfig.of(classifier.config, tasks)
    with seeded(derive_seed(seed, "head")):
        model = MTDNNForSequenceClassification(config)
    body = getattr(classifier, classifier.base_model_prefix)
    model.to(classifier.dtype)
    model.encoder.load_state_dict(body.state_dict())
    model.eval()
    return model


# At the end of the module, whoever imports it: importing Transformers above imports it again.
AutoConfig.register(TYPE, MTDNNConfig, exist_ok=True)
AutoModelForSequenceClassification.register(
    MTDNNConfig, MTDNNForSequenceClassification, exist_ok=True
)
