"""Write a model to a folder, check a folder before loading, and name damaged files."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from temper.errors import ModelError
from temper.models.modes import quiet

PICKLED = {"pytorch_model.bin", "adapter_model.bin"}
DEPTHS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_decoder_layers")
WIDTHS = ("hidden_size", "d_model", "n_embd", "dim", "intermediate_size", "d_ff", "vocab_size")
OBJECTS = ("config.json", "adapter_config.json", "tokenizer.json", "tokenizer_config.json")


NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")
"""Matches the number of a block in the name of a weight."""


def save_model(model: Any, tokenizer: Any, folder: Path | str, **options: Any) -> None:
    """Write a model and its tokenizer without Transformers' bar; ``options`` are its own."""
    with quiet():
        model.save_pretrained(folder, **options)
    tokenizer.save_pretrained(folder)


def check_folder(folder: Path) -> None:
    """Raise if a JSON file or the header of a safetensors file in a model's folder is damaged."""
    for name in OBJECTS:
        path = folder / name
        if not path.is_file():
            continue
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise ModelError(_damaged(path, error)) from error
        if not isinstance(content, dict):
            raise ModelError(_damaged(path, f"a {type(content).__name__} instead of an object"))
    weights = sorted(folder.glob("*.safetensors"))
    for path in weights:
        shapes(path)
    pickled = sorted(path.name for path in folder.glob("*.bin") if path.name in PICKLED)
    if pickled and not weights:
        raise ModelError(
            f"{folder} has its weights as a pickle ({pickled[0]}), which can run code and is not "
            "opened. If you trust it, load it with Transformers and save it again (save_pretrained "
            "writes safetensors)."
        )


def check_config(
    settings: Mapping[str, Any], attention: object, source: str, *, weights: str
) -> None:
    """Raise if a model's config would run code from the Hub, or needs sizes beyond all memory."""
    names = attention.values() if isinstance(attention, Mapping) else [attention]
    for name in names:
        if isinstance(name, str) and "/" in name:
            raise ModelError(
                f"The config of {source} names {name!r} as `attn_implementation`, which is code "
                "from the Hub. Remove that line from config.json, or write 'sdpa' or 'eager'."
            )
    files = Path(weights).glob("*.safetensors")
    tensor_shapes = [shape for file in files for shape in shapes(file).values()]
    widest = max((max(shape, default=1) for shape in tensor_shapes), default=0)
    for named, most, what in (
        (DEPTHS, len(tensor_shapes), f"have only {len(tensor_shapes):,} tensors"),
        (WIDTHS, widest, f"have no tensor dimension above {widest:,}"),
    ):
        for name in named:
            size = settings.get(name)
            if tensor_shapes and isinstance(size, int) and size > most:
                raise ModelError(
                    f"The config of {source} sets `{name}` to {size:,}, but the weights {what}. "
                    "Copy or download the model again."
                )


def check_names(names: Iterable[object], source: str) -> None:
    """Raise a `ModelError` if two classes in ``id2label`` have the same name."""
    twice = [name for name, times in Counter(map(str, names)).items() if times > 1]
    if twice:
        raise ModelError(
            f"The config of {source} names two classes {twice[0]!r} (`id2label`). Give them "
            "different names in config.json."
        )


def shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Return tensor name -> shape of a safetensors file, from its header only."""
    try:
        with safe_open(path, framework="pt") as file:
            return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise ModelError(_damaged(path, error)) from error


def adapter_classes(folder: Path) -> int | None:
    """Return the number of classes of the head saved with a PEFT adapter; None without a head."""
    path = folder / "adapter_model.safetensors"
    if not path.is_file():
        raise ModelError(
            f"{folder} has adapter_config.json but no {path.name}. Save the adapter again."
        )
    # The head's output layer is the matrix with the fewest rows: one per class.
    whole = [
        shape[0]
        for name, shape in shapes(path).items()
        if re.search(r"(score|classif|head|logits_proj)", name)
        and name.endswith("weight")
        and "lora_" not in name
        and len(shape) == 2
    ]
    return min(whole, default=None)


def further_blocks(unexpected: Iterable[str], known: Iterable[str]) -> list[str]:
    """Return the weights of a checkpoint in blocks that the model, by its config, does not have.

    Example:
        >>> further_blocks(["layer.2.bias", "lm_head.bias"], ["bert.layer.0.bias"])
        ['layer.2.bias']
    """
    # A checkpoint of only the encoder has no prefix.
    shapes_of_names = {NUMBER.sub("#", name) for name in known}
    endings = {shape.partition(".")[2] for shape in shapes_of_names} | shapes_of_names
    # Other unused weights, such as those of the pre-training head, are not an error.
    numbered = [name for name in unexpected if NUMBER.search(name)]
    return sorted(name for name in numbered if NUMBER.sub("#", name) in endings)


def _damaged(path: Path, why: object) -> str:
    return f"{path} is damaged ({why}). Copy or download the model again."
