"""Find out which head a model or checkpoint has."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from typing import Any

from torch import nn
from transformers.models.auto import modeling_auto

from temper.errors import ModelError
from temper.heads import HEADS, Classification, Head, Regression
from temper.models.blocks import unwrap
from temper.models.probing import innermost
from temper.types import Batch

# Learned embeddings of absolute positions; relative and rotary positions have no such table.
_POSITIONS = re.compile(r"(^|\.)(position_embeddings?|embed_positions|wpe)$")


def position_limit(model: nn.Module) -> int | None:
    """Return how many tokens a model has position embeddings for; None without a limit."""
    limits = []
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding) and _POSITIONS.search(name):
            # RoBERTa counts positions from after its padding token, OPT and BART from an offset.
            padding = module.padding_idx
            first = getattr(module, "offset", 0) if padding is None else padding + 1
            limits.append(module.num_embeddings - int(first))
    return min(limits, default=None)


def head_of(model: Any, classes: Sequence[str] = ()) -> type[Head]:
    """Return the head of a model, or of a config with its model's ``classes``.

    ``classes`` are class names such as ``BertForSequenceClassification``. Heads with the same class
    differ by ``problem_type`` in the config; a regression has one output. Models of classes unknown
    to Transformers count as sequence classifiers.

    Raises:
        ModelError: The model is a masked language model, which no method trains.
    """
    config = model
    if isinstance(model, nn.Module):
        inner = innermost(unwrap(model))
        config, classes = getattr(inner, "config", None), (type(inner).__name__,)
    heads = [head for head in HEADS.values() if classes_of(head.auto_class).intersection(classes)]
    if not heads:
        if config is not model and classes_of("AutoModelForMaskedLM").intersection(classes):
            raise ModelError(
                f"{classes[0]} is a masked language model, which no method trains. Load the "
                "checkpoint with the class of the task, such as AutoModelForSequenceClassification."
            )
        heads = [head for head in HEADS.values() if head.auto_class == Head.auto_class]
    problem = getattr(config, "problem_type", None)
    head = next((head for head in heads if head.problem_type == problem), heads[0])
    if head is Classification and getattr(config, "num_labels", 2) == 1:
        return Regression
    return head


def classes_of(auto_class: str) -> frozenset[str]:
    """Return the names of the model classes behind an auto class of Transformers."""
    # The values of the outer mapping would import the classes.
    names = getattr(modeling_auto, auto_class)._model_mapping._model_mapping
    return frozenset(map(str, names.values()))


def saved_head(config: Any, adapter: Any | None) -> type[Head]:
    """Return the head that a checkpoint was saved with, by its config and PEFT config."""
    task = getattr(adapter, "task_type", None)
    if task is None:
        return head_of(config, config.architectures or ())
    return next((head for head in HEADS.values() if head.task_type == task), Classification)


def check_outputs(config: Any, *, model: str = "the model") -> None:
    """Raise a `ModelError` if a config is of a regression with several outputs."""
    outputs = getattr(config, "num_labels", 2)
    if getattr(config, "problem_type", None) == Regression.problem_type and outputs != 1:
        raise ModelError(
            f"A regression must have one output, {model} has {outputs}. "
            "Correct `problem_type` or `num_labels` in its config."
        )


def head_inputs(head: Head, batch: Batch, model: nn.Module) -> dict[str, Any]:
    """Return the arguments that a head adds to the forward and the model accepts."""
    inner = innermost(unwrap(model))
    accepted = inspect.signature(inner.forward).parameters
    return {name: value for name, value in head.inputs(batch, inner).items() if name in accepted}
