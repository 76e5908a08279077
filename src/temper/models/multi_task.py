"""MT-DNN as a Transformers model: one encoder with one head per task.

Source: Liu et al. 2019, "Multi-Task Deep Neural Networks for Natural Language Understanding", arXiv
1901.11504, section 3. Each head is that of the encoder's architecture, so the logits of a task
equal those of its plain classifier bit for bit.

Differs: text pairs have the same linear head as single texts, instead of a stochastic answer
network (equations 5 to 7). QNLI is classified instead of ranked.
"""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Mapping, Sequence
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
from temper.models.names import MULTI_TASK
from temper.seeding import derive_seed, seeded

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


def check_task(name: str, labels: Sequence[str] = ()) -> None:
    """Raise if a task cannot have a head.

    Raises:
        ModelError: The name has invalid characters, there is only one label (a regression has
            none), or labels are not distinct.
    """
    # A head is an entry of a ModuleDict, and names of its attributes cannot be keys; some of them
    # (`training`) exist only on an instance.
    if not _NAME.fullmatch(name) or hasattr(nn.ModuleDict(), name):
        raise ModelError(
            f"The name of a task must consist of letters, digits, _ and -, and must not be an "
            f"attribute of torch's ModuleDict, got {name!r}. Choose another name."
        )
    if len(labels) == 1 or len(set(labels)) < len(labels):
        raise ModelError(
            f"Task {name!r} must have two or more different labels, or none for a regression, got "
            f"{list(labels)}."
        )


class MTDNNConfig(PreTrainedConfig):
    """Config of an `MTDNNForSequenceClassification`.

    Args:
        encoder: Config of the encoder's architecture as a dictionary, with its ``model_type``.
        tasks: ``name`` and ``labels`` of each task. A batch refers to a task by its index here.
        pad_token_id: Id of the encoder's padding token.
    """

    model_type = MULTI_TASK

    encoder: dict[str, Any] | None = None
    tasks: list[dict[str, Any]] | None = None
    pad_token_id: int | None = None

    @classmethod
    def of(cls, encoder: Any, tasks: Mapping[str, Sequence[str]]) -> MTDNNConfig:
        """Return the config of an encoder with a head per task; ``tasks`` maps name to labels."""
        for name, labels in tasks.items():
            check_task(name, labels)
        if encoder.is_encoder_decoder or encoder.model_type == MULTI_TASK:
            raise ModelError(
                f"An MT-DNN shares one encoder between its tasks, and a {encoder.model_type!r} is "
                "not an encoder. Pass an encoder, or a folder tasks/NAME of a multi-task run."
            )
        # A list, because Transformers sorts the keys of a config.
        listed = [{"name": name, "labels": list(labels)} for name, labels in tasks.items()]
        return cls(encoder=encoder.to_dict(), tasks=listed, pad_token_id=encoder.pad_token_id)

    @property
    def task_names(self) -> tuple[str, ...]:
        """Names of the tasks by index."""
        return tuple(task["name"] for task in self.tasks or ())

    def of_task(self, name: str) -> Any:
        """Return the config of the plain classifier of one task, with its labels."""
        labels = {task["name"]: task["labels"] for task in self.tasks or ()}[name]
        settings = copy.deepcopy(dict(self.encoder or {}))
        for key in ("architectures", "num_labels", "id2label", "label2id", "transformers_version"):
            settings.pop(key, None)
        settings.update(head_settings(labels or None))
        return AutoConfig.for_model(settings.pop("model_type"), **settings)


class MTDNNForSequenceClassification(PreTrainedModel):
    """One encoder with a head for each task; a batch has rows of one task.

    Raises:
        ModelError: The encoder's architecture does not separate it from its head.

    Example:
        >>> import torch
        >>> from transformers import BertConfig
        >>> from temper.models.multi_task import MTDNNConfig
        >>> encoder = BertConfig(
        ...     vocab_size=9,
        ...     hidden_size=4,
        ...     num_hidden_layers=1,
        ...     num_attention_heads=1,
        ...     intermediate_size=4,
        ... )
        >>> tasks = {"rte": ("yes", "no"), "sts_b": ()}
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
    # The encoder is a separate model and knows what it supports.
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
                    f"{type(head).__name__} does not separate its encoder from its head, so tasks "
                    "cannot share the encoder. Choose another model."
                )
            if not heads:
                self.encoder = body
                self.supports_gradient_checkpointing = body.supports_gradient_checkpointing
            # Not registered with torch, so that the weights belong only to this model, not a head.
            head.__dict__[head.base_model_prefix] = self.encoder
            if heads:
                _share_dropout(next(iter(heads.values())), head)
            heads[name] = head
        self.heads = nn.ModuleDict(heads)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        result: nn.Module = self.encoder.get_input_embeddings()
        return result

    def for_task(self, name: str) -> Any:
        """Return the plain classifier of one task; it shares its weights with this model."""
        head: Any = self.heads[self.task_of(name)]
        prefix = head.base_model_prefix
        plain = copy.copy(head)
        # The body first, as in the original classifier.
        plain._modules = {prefix: self.encoder, **head._modules}
        del plain.__dict__[prefix]
        plain.train(self.training)
        return plain

    def task_of(self, task: Tensor | str | None) -> str:
        """Return the name of a batch's task; None is allowed if the model has only one."""
        names: tuple[str, ...] = self.config.task_names
        if isinstance(task, Tensor):
            numbers = set(task.tolist())
            if len(numbers) != 1:
                raise ModelError(
                    f"A batch must hold rows of one task, got the numbers {sorted(numbers)}. "
                    "Batch each task by itself (temper.training.loading)."
                )
            number = int(numbers.pop())
            if not 0 <= number < len(names):
                raise ModelError(
                    f"Task number {number} does not exist: there are {len(names)}, {names}."
                )
            return names[number]
        if task is None and len(names) > 1:
            raise ModelError(
                f"This model has several tasks ({', '.join(names)}): pass one with task=, or use "
                "the classifier of one, model.for_task(NAME)."
            )
        name = names[0] if task is None else task
        if name not in names:
            raise ModelError(unknown("task of this model", name, names))
        return name

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
            attention_mask: 1 at tokens that are not padding [B, T].
            token_type_ids: The text (0 or 1) that a token belongs to [B, T]; None for encoders
                without types.
            task: The task's name, or its index for every row [B].
            labels: Classes [B], or targets [B] of a regression; without them there is no loss.
            more: Further arguments of the architecture, for example ``output_hidden_states``.

        Raises:
            ModelError: The task is unknown, or the batch has rows of several tasks.
        """
        head = self.heads[self.task_of(task)]
        takes = inspect.signature(head.forward).parameters
        if "token_type_ids" in takes:
            more["token_type_ids"] = token_type_ids
        if "use_cache" in takes:
            more.setdefault("use_cache", False)
        return head(input_ids=input_ids, attention_mask=attention_mask, labels=labels, **more)


def _share_dropout(first: nn.Module, head: nn.Module) -> None:
    """Replace a head's dropout layers by those of another head, so that all tasks share them."""
    for path, module in list(head.named_modules()):
        if isinstance(module, nn.Dropout):
            parent, _, name = path.rpartition(".")
            setattr(head.get_submodule(parent), name, first.get_submodule(path))


def share_encoder(
    classifier: Any, tasks: Mapping[str, Sequence[str]], *, seed: int = 0
) -> MTDNNForSequenceClassification:
    """Copy the encoder of a classifier, and initialize a head for each task.

    ``tasks`` maps the name of each task to its class names (empty for a regression). The model is
    in evaluation mode.
    """
    if hasattr(classifier, "peft_config"):
        raise ModelError(
            "An adapter belongs to one classifier, and its encoder cannot be shared by several "
            "tasks. Merge it into its base (merge_and_unload), save that, and pass its folder."
        )
    config = MTDNNConfig.of(classifier.config, tasks)
    with seeded(derive_seed(seed, "head")):
        model = MTDNNForSequenceClassification(config)
    body = getattr(classifier, classifier.base_model_prefix)
    model.to(classifier.dtype)
    model.encoder.load_state_dict(body.state_dict())
    model.eval()
    return model


AutoConfig.register(MULTI_TASK, MTDNNConfig, exist_ok=True)
AutoModelForSequenceClassification.register(
    MTDNNConfig, MTDNNForSequenceClassification, exist_ok=True
)
