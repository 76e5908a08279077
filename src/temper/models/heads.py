"""Change the classification head of a checkpoint: order of its outputs, bias, new weights."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from temper.errors import ModelError, shortened
from temper.functional.label_names import are_indices, are_named, match_names
from temper.functional.resampling import FloatArray
from temper.models.blocks import find_head
from temper.models.modes import in_mode

TO_MATCH = (
    "Map the checkpoint's names to the data's with --set train.label_map=MODEL=DATA,..., name its "
    "outputs in their order with --set train.label_names=A,B, or draw a new head with "
    "--set train.new_head=true."
)
# PEFT keeps two copies of a fully trained head: the original one and the trained one.
_COPIES = re.compile(r"\.(modules_to_save\.\w+|original_module)(?=\.|$)")


def order_of_head(own: Sequence[str], labels: Sequence[str], source: str) -> list[int] | None:
    """Return the index of a head's output for each label; None if the order is the same.

    ``own`` are the head's classes and ``labels`` those of the data; ``source`` names the model in
    errors.

    Example:
        >>> order_of_head(["pos", "neg"], ["neg", "pos"], "a model")
        [1, 0]
    """
    outputs = match_names(labels, own)
    if not are_named(own) or not are_named(labels):
        # Placeholders match only by index, to placeholders or to labels that are their own index.
        fits = all(not are_named(item) or are_indices(item) for item in (own, labels))
        outputs = list(range(len(own))) if fits else [None]
    if None in outputs or len(set(outputs)) < len(labels):
        theirs, wanted = (shortened(", ".join(names), longest=300) for names in (own, labels))
        raise ModelError(
            f"The head of {source} has the classes {theirs}, and the data has the labels "
            f"{wanted}. {TO_MATCH}"
        )
    order = [index for index in outputs if index is not None]
    return None if order == list(range(len(own))) else order


def reorder_head(model: Any, tokenizer: Any, order: Sequence[int], source: str) -> None:
    """Reorder a trained head's outputs, given the result of `order_of_head`; PEFT's heads, too."""
    before = _logits(model, tokenizer)
    with torch.no_grad():
        for parameter in _output_layer(model, len(order)):
            parameter.copy_(parameter[torch.tensor(order, device=parameter.device)])
    after = _logits(model, tokenizer)
    if not torch.allclose(after, before[..., torch.tensor(order)], rtol=1e-3, atol=1e-4):
        raise ModelError(
            f"The outputs of {source} cannot be put in the order of the data's labels: its head, "
            f"{type(model).__name__}, has an unknown form. Name the data's labels in the model's "
            'order in dataset.json next to the data: {"label_names": [...]}.'
        )


def set_new_bias(model: Any, bias: FloatArray) -> None:
    """Set the bias [C] of a head if it is all 0, as in a newly initialized head."""
    biases = [item for item in _output_layer(model, len(bias)) if item.ndim == 1]
    if not any(bool(item.any()) for item in biases):
        with torch.no_grad():
            for item in biases:
                item.copy_(torch.as_tensor(bias))


def _output_layer(model: Any, outputs: int) -> list[Tensor]:
    """Return weight and bias of the output layer, including PEFT's copies of them."""
    head = find_head(model, [])
    rows: dict[str, list[Tensor]] = {}
    for name, parameter in model.named_parameters():
        if name in head and parameter.ndim and parameter.shape[0] == outputs:
            module = _COPIES.sub("", name.rpartition(".")[0])
            rows.setdefault(module, []).append(parameter)
    # The last module with a row per class is the output layer; a dense layer before it may happen
    # to have as many rows.
    return rows[list(rows)[-1]] if rows else []


def draw_head(model: Any) -> frozenset[str]:
    """Re-initialize a head as Transformers would; return the names of its weights."""
    head = find_head(model, [])
    for module_name, module in model.named_modules():
        names = [name for name, _ in module.named_parameters(module_name, recurse=False)]
        if names and head.issuperset(names):
            for weight in module.parameters(recurse=False):
                # Transformers does not initialize weights that it has loaded.
                weight._is_hf_initialized = False
            with torch.no_grad():
                model._init_weights(module)
    return head


def _logits(model: Any, tokenizer: Any) -> Tensor:
    batch = tokenizer(["a b c"], return_tensors="pt")
    device = next(model.parameters()).device
    taken = {name: batch[name].to(device) for name in ("input_ids", "attention_mask")}
    with torch.no_grad(), in_mode(model, training=False):
        logits: Tensor = model(**taken).logits
    return logits.float().cpu()
