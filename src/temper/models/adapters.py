"""Add PEFT adapters, such as LoRA, to classifiers, and save them."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from temper.errors import ModelError, unknown
from temper.heads import Completions
from temper.models.blocks import find_head, is_linear
from temper.models.kinds import head_of
from temper.seeding import derive_seed, seeded


def add_adapter(model: Any, settings: Mapping[str, Any], *, drawn: Iterable[str], seed: int) -> Any:
    """Add an adapter to a classifier and freeze the pre-trained weights.

    The classification head stays trainable and is saved as a whole.

    Args:
        model: The classifier.
        settings: Arguments of the PEFT configuration, including ``peft_type`` (``{"peft_type":
            "LORA", "r": 8}``), or the content of an ``adapter_config.json``.
        drawn: Names of randomly initialized weights. Their modules are trained and saved with the
            head, because loading cannot draw the same values again.
        seed: Seed of the adapter.

    References:
        LoRA: Hu et al., ICLR 2022 (arXiv 2106.09685).
    """
    from peft import PeftType, PromptLearningConfig, get_peft_model
    from peft.mapping import PEFT_TYPE_TO_CONFIG_MAPPING

    kind = str(settings.get("peft_type"))
    known = {item.value: PEFT_TYPE_TO_CONFIG_MAPPING.get(item) for item in PeftType}
    configuration = known.get(kind)
    if configuration is None:
        raise ModelError(unknown("type of adapter (`peft_type`)", kind, known))
    if issubclass(configuration, PromptLearningConfig):
        raise ModelError(
            f"An adapter of type {kind} adds tokens before the text, which methods and evaluations "
            "would treat as part of the text. Use one that changes layers, such as LORA."
        )
    head, saved = head_of(model), set(settings.get("modules_to_save") or ())
    # The output layer of a language model is pre-trained, and often the embedding table itself.
    if not issubclass(head, Completions):
        body = model.base_model_prefix
        saved |= {name for name, m in model.named_children() if name != body and [*m.parameters()]}
        saved |= {name.rpartition(".")[0] for name in drawn if name.startswith(f"{body}.")}
    # Not passed on: the class implies the type, and the others describe a saved adapter.
    dropped = {"peft_type", "base_model_name_or_path", "revision", "inference_mode"}
    arguments = {name: value for name, value in settings.items() if name not in dropped}
    arguments |= {"task_type": head.task_type, "modules_to_save": sorted(saved) or None}
    try:
        config = configuration(**arguments)
    except (TypeError, ValueError) as error:
        raise ModelError(f"PEFT rejects the settings of the {kind} adapter: {error}") from error
    with seeded(derive_seed(seed, "lora")), warnings.catch_warnings():
        # PEFT imports a deprecated name from Transformers.
        warnings.simplefilter("ignore", FutureWarning)
        try:
            return get_peft_model(model, config)
        except ValueError as error:
            layers = sorted(
                {n.rpartition(".")[2] for n, m in model.named_modules() if is_linear(m)}
            )
            raise ModelError(
                f"No {kind} adapter can be put on {type(model).__name__} "
                f"({str(error).splitlines()[0]}). Set target_modules to names of its layers: "
                f"{', '.join(layers)}."
            ) from error


def with_trained_head(model: Any, source: str) -> Any:
    """Add a saved adapter, which has no head, to a classifier, and make its head trainable."""
    from peft import (
        PeftConfig,
        get_peft_model,
        get_peft_model_state_dict,
        set_peft_model_state_dict,
    )

    config = PeftConfig.from_pretrained(source)
    # PEFT freezes the head of an adapter that was made without task_type, and does not save it.
    heads = {name.partition(".")[0] for name in find_head(model, [])}
    config.modules_to_save = sorted({*(config.modules_to_save or ()), *heads})
    config.inference_mode = False
    adapted = get_peft_model(model, config)
    kept = load_file(Path(source) / "adapter_model.safetensors")
    set_peft_model_state_dict(adapted, {**get_peft_model_state_dict(adapted), **kept})
    return adapted


def is_adapted(model: Any) -> bool:
    return hasattr(model, "peft_config")


def save_adapter(model: Any, folder: Path, *, base: str | None) -> None:
    """Save an adapter, and the config with the labels of the head next to it."""
    for config in model.peft_config.values():
        config.base_model_name_or_path = base or config.base_model_name_or_path
    # The embeddings do not change; to find that out, PEFT would ask the Hub for the base.
    model.save_pretrained(folder, save_embedding_layers=False)
    model.config.save_pretrained(folder)
    # PEFT writes its own model card, which would look like a user's.
    (folder / "README.md").unlink(missing_ok=True)
