"""Look at a model's folder before a library does: damaged files are named, none is guessed at."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from temper.errors import ModelError

OBJECTS = ("config.json", "adapter_config.json", "tokenizer.json", "tokenizer_config.json")


def check_folder(folder: Path) -> None:
    """Read the JSON files and the headers of the safetensors files of a model's folder.

    Args:
        folder: Where a checkpoint or a PEFT adapter lies.

    Raises:
        ModelError: If a file is damaged, naming it.
    """
    for name in OBJECTS:
        if (folder / name).is_file():
            read_object(folder / name)
    for path in sorted(folder.glob("*.safetensors")):
        shapes(path)


def read_object(path: Path) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        ModelError: If it is damaged or something else.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(_damaged(path, error)) from error
    if not isinstance(content, dict):
        raise ModelError(_damaged(path, f"a {type(content).__name__} instead of an object"))
    return content


def shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Return the shape of each tensor of a safetensors file; no tensor is read.

    Raises:
        ModelError: If the file is damaged or cut off.
    """
    try:
        with safe_open(path, framework="pt") as file:
            return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise ModelError(_damaged(path, error)) from error


def adapter_classes(folder: Path) -> int | None:
    """Return the number of classes of the head that a PEFT adapter brings along.

    Args:
        folder: With adapter_model.safetensors.

    Returns:
        Rows of its smallest whole matrix, which is the head's last; None if there is no such.
    """
    path = folder / "adapter_model.safetensors"
    if not path.is_file():
        raise ModelError(f"{folder} has adapter_config.json but no {path.name}. Save it again.")
    whole = [
        shape[0]
        for name, shape in shapes(path).items()
        if re.search(r"(score|classif|head|logits_proj)", name)
        and name.endswith("weight")
        and "lora_" not in name
        and len(shape) == 2
    ]
    return min(whole, default=None)


def misfits(
    missing: Iterable[str], mismatched: Iterable[str], *, backbone: str, new_head: bool
) -> list[str]:
    """Return the weights that a checkpoint should have had and that would be drawn at random.

    A new head may be missing, and a pooler, which checkpoints of language models lack.

    Args:
        missing: Names that the checkpoint has not.
        mismatched: Names whose shape is another.
        backbone: Prefix of the names below the head.
        new_head: Whether the head is meant to be new.
    """

    def above(name: str) -> bool:
        return new_head and not name.startswith(f"{backbone}.")

    unexpected = [name for name in missing if not (above(name) or (new_head and "pooler" in name))]
    return sorted({*unexpected, *(name for name in mismatched if not above(name))})


def _damaged(path: Path, why: object) -> str:
    return f"{path} is damaged ({why}). Copy or download the model again."
