"""Adapters of PEFT: put LoRA on a classifier, and save an adapter."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from safetensors.torch import load_file
from torch import nn

from temper.errors import ModelError
from temper.models.blocks import find_head, is_linear
from temper.seeding import derive_seed, seeded


@dataclass(frozen=True)
class Lora:
    """How a LoRA adapter is made.

    Args:
        rank: Rank of the update of each matrix.
        alpha: The update is scaled by alpha / rank.
        dropout: Dropout rate before the update.
        target_modules: Names of the linear layers that get one; None takes PEFT's choice for the
            architecture, ``"all-linear"`` every one below the head.
    """

    rank: int = 8
    alpha: float = 16.0
    dropout: float = 0.0
    target_modules: Sequence[str] | Literal["all-linear"] | None = None


def add_lora(model: Any, lora: Lora, *, drawn: Iterable[str], seed: int) -> Any:
    """Put an adapter on a classifier; its pre-trained weights are frozen.

    What stands above the encoder, the classification head, is trained and saved whole.

    Args:
        model: The classifier.
        lora: How the adapter is made.
        drawn: Names of weights that no checkpoint gave: their modules are trained and saved with
            the head, because nobody could draw them again.
        seed: Seed of the adapter.

    Returns:
        The PEFT model.

    Raises:
        ModelError: The model has no such layers.

    References:
        Hu et al., ICLR 2022 (arXiv 2106.09685).
    """
    from peft import LoraConfig, TaskType, get_peft_model

    body = model.base_model_prefix
    heads = {child for child, m in model.named_children() if child != body and _has_weights(m)}
    below = {name.rpartition(".")[0] for name in drawn if name.startswith(f"{body}.")}
    whole = sorted(heads | below)
    names = lora.target_modules
    config = LoraConfig(
        task_type=TaskType.SEQ_CLS,
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=names if names is None or isinstance(names, str) else list(names),
        modules_to_save=whole,
    )
    with seeded(derive_seed(seed, "lora")), warnings.catch_warnings():
        # PEFT asks Transformers for a name that is on its way out.
        warnings.simplefilter("ignore", FutureWarning)
        try:
            return get_peft_model(model, config)
        except ValueError as error:
            layers = sorted(
                {n.rpartition(".")[2] for n, m in model.named_modules() if is_linear(m)}
            )
            raise ModelError(
                f"No LoRA adapter can be put on {type(model).__name__} with "
                f"target_modules {'of PEFT' if names is None else names!r} "
                f"({str(error).splitlines()[0]}). Set train.lora.target_modules to names of its "
                f"layers: {', '.join(layers)}."
            ) from error


def with_trained_head(model: Any, source: str) -> Any:
    """Put an adapter without a head on a classifier, and make the classifier's head trainable.

    PEFT freezes the head of an adapter that was made without ``task_type``, and does not save it.

    Args:
        model: The classifier.
        source: Folder of the adapter.

    Returns:
        The PEFT model.
    """
    from peft import (
        PeftConfig,
        get_peft_model,
        get_peft_model_state_dict,
        set_peft_model_state_dict,
    )

    config = PeftConfig.from_pretrained(source)
    heads = {name.partition(".")[0] for name in find_head(model, [])}
    config.modules_to_save = sorted({*(config.modules_to_save or ()), *heads})
    config.inference_mode = False
    adapted = get_peft_model(model, config)
    kept = load_file(Path(source) / "adapter_model.safetensors")
    set_peft_model_state_dict(adapted, {**get_peft_model_state_dict(adapted), **kept})
    return adapted


def is_adapted(model: Any) -> bool:
    """Tell whether a model is one of PEFT."""
    return hasattr(model, "peft_config")


def save_adapter(model: Any, folder: Path, *, base: str | None) -> None:
    """Write an adapter, and beside it the config with the head's labels.

    Args:
        model: The PEFT model.
        folder: Where.
        base: Name of the base model, by which it is found again; None leaves the adapter's own.
    """
    for config in model.peft_config.values():
        config.base_model_name_or_path = base or config.base_model_name_or_path
    # Neither the words nor their embeddings change, so that nobody need ask the Hub for the base.
    model.save_pretrained(folder, save_embedding_layers=False)
    model.config.save_pretrained(folder)
    # PEFT writes a card of its own, which ours would take for somebody's work.
    (folder / "README.md").unlink(missing_ok=True)


def _has_weights(module: nn.Module) -> bool:
    return next(module.parameters(), None) is not None
