"""Nested state as safetensors + JSON, with no pickle: optimisers, schedulers, generators, rules."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from temper.errors import CheckpointError


def write_state(state: Any, folder: Path | str, *, name: str) -> None:
    """Write ``NAME.json`` and, if there are tensors, ``NAME.safetensors``.

    Args:
        state: Nested dicts, lists and tuples of tensors, NumPy arrays, numbers, strings, booleans
            and None. Integer keys and tuples survive.
        folder: Where; must exist.
        name: File stem.

    Raises:
        CheckpointError: If something else is inside.
    """
    tensors: dict[str, torch.Tensor] = {}
    skeleton = _encode(state, tensors, where=name)
    Path(folder, f"{name}.json").write_text(json.dumps(skeleton), encoding="utf-8")
    if tensors:
        save_file(tensors, Path(folder, f"{name}.safetensors"))


def read_state(folder: Path | str, *, name: str) -> Any:
    """Read what ``write_state`` wrote; tensors come on the CPU.

    Raises:
        CheckpointError: If a file is missing or damaged.
    """
    path = Path(folder, f"{name}.json")
    try:
        skeleton = json.loads(path.read_text(encoding="utf-8"))
        stored = path.with_suffix(".safetensors")
        tensors = load_file(stored) if stored.exists() else {}
        return _decode(skeleton, tensors)
    except FileNotFoundError:
        raise CheckpointError(
            f"{path} is missing: the checkpoint is not whole, or Temper did not write it. "
            "Resume from another checkpoint."
        ) from None
    except (ValueError, KeyError) as error:
        raise CheckpointError(
            f"{path} is damaged ({error}). Resume from another checkpoint."
        ) from error


def _encode(value: Any, tensors: dict[str, torch.Tensor], *, where: str) -> Any:
    if isinstance(value, torch.Tensor):
        key = f"t{len(tensors)}"
        tensors[key] = value.detach().cpu().contiguous().clone()
        return {"tensor": key}
    if isinstance(value, np.ndarray):
        inner = _encode(torch.from_numpy(value.astype(np.int64)), tensors, where=where)
        return {"array": inner, "dtype": str(value.dtype)}
    if isinstance(value, dict):
        items = [
            [_key(key, where), _encode(each, tensors, where=f"{where}.{key}")]
            for key, each in value.items()
        ]
        return {"dict": items}
    if isinstance(value, list | tuple):
        kind = "list" if isinstance(value, list) else "tuple"
        parts = [
            _encode(each, tensors, where=f"{where}[{place}]") for place, each in enumerate(value)
        ]
        return {kind: parts}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.generic):
        return value.item()
    raise CheckpointError(
        f"{where} holds a {type(value).__name__}, which cannot be written as safetensors "
        "or JSON. Use an optimiser and a scheduler whose state is made of tensors and plain values."
    )


def _key(key: Any, where: str) -> int | str:
    if isinstance(key, int | str):
        return key
    raise CheckpointError(f"{where} has a key {key!r}; only strings and integers can be written.")


def _decode(value: Any, tensors: dict[str, torch.Tensor]) -> Any:
    if not isinstance(value, dict):
        return value
    (kind, content), *rest = value.items()
    if kind == "tensor":
        return tensors[content]
    if kind == "array":
        return _decode(content, tensors).numpy().astype(rest[0][1])
    if kind == "dict":
        return {key: _decode(each, tensors) for key, each in content}
    each_decoded = [_decode(each, tensors) for each in content]
    return each_decoded if kind == "list" else tuple(each_decoded)
