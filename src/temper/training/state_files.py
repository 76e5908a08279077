"""Nested state as safetensors + JSON, with no pickle: optimisers, schedulers, generators, rules."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file

from temper.errors import CheckpointError

UNWRITABLE = (
    "which cannot be written as safetensors or JSON. Use an optimiser and a scheduler whose state "
    "is made of tensors and plain values."
)
STORABLE = {
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint16,
    torch.uint32,
    torch.uint64,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
}


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
        raise CheckpointError(_missing(path)) from None
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, SafetensorError) as error:
        raise CheckpointError(_damaged(path, error)) from error


def check_state(folder: Path | str, *, name: str) -> None:
    """Check that what ``write_state`` wrote is whole, without loading its tensors.

    Raises:
        CheckpointError: If a file is missing or damaged.
    """
    path = Path(folder, f"{name}.json")
    stored = path.with_suffix(".safetensors")
    try:
        wanted = set(_tensor_names(json.loads(path.read_text(encoding="utf-8"))))
        held: set[str] = set()
        if stored.exists():
            with safe_open(stored, framework="pt") as file:
                held = set(file.keys())
    except FileNotFoundError:
        raise CheckpointError(_missing(path)) from None
    except (OSError, ValueError, SafetensorError) as error:
        raise CheckpointError(_damaged(path, error)) from error
    if wanted - held:
        raise CheckpointError(_missing(stored))


def _tensor_names(skeleton: Any) -> Iterator[str]:
    if isinstance(skeleton, dict):
        if isinstance(skeleton.get("tensor"), str):
            yield skeleton["tensor"]
        skeleton = list(skeleton.values())
    if isinstance(skeleton, list):
        for part in skeleton:
            yield from _tensor_names(part)


def _missing(path: Path) -> str:
    return (
        f"{path} is missing: the checkpoint is not whole, or Temper did not write it. "
        "Resume from another checkpoint."
    )


def _damaged(path: Path, error: Exception) -> str:
    return f"{path} is damaged ({error}). Resume from another checkpoint."


def _encode(value: Any, tensors: dict[str, torch.Tensor], *, where: str) -> Any:
    if isinstance(value, torch.Tensor):
        if value.layout != torch.strided or value.dtype not in STORABLE:
            kind = f"{value.layout} tensor of {value.dtype}"
            raise CheckpointError(f"{where} holds a {kind}, {UNWRITABLE}")
        key = f"t{len(tensors)}"
        tensors[key] = value.detach().cpu().clone(memory_format=torch.contiguous_format)
        return {"tensor": key}
    if isinstance(value, np.ndarray):
        return _encode_array(value, tensors, where=where)
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
    if isinstance(value, np.generic) and isinstance(value.item(), bool | int | float | str):
        return value.item()
    raise CheckpointError(f"{where} holds a {type(value).__name__}, {UNWRITABLE}")


def _encode_array(
    value: np.ndarray[Any, Any], tensors: dict[str, torch.Tensor], *, where: str
) -> Any:
    """Write an array by its bytes: NumPy has dtypes that safetensors has not."""
    if value.dtype.hasobject or value.dtype.kind == "V":
        raise CheckpointError(f"{where} holds an array of {value.dtype}, {UNWRITABLE}")
    content = (
        torch.frombuffer(bytearray(value.tobytes()), dtype=torch.uint8)
        if value.size
        else (torch.empty(0, dtype=torch.uint8))
    )
    inner = _encode(content, tensors, where=where)
    return {"array": inner, "dtype": value.dtype.str, "shape": list(value.shape)}


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
        (_, dtype), (_, shape) = rest
        raw = _decode(content, tensors).numpy().tobytes()
        return np.frombuffer(raw, dtype=dtype).reshape(shape).copy()
    if kind == "dict":
        return {key: _decode(each, tensors) for key, each in content}
    decoded = [_decode(each, tensors) for each in content]
    return {"list": decoded, "tuple": tuple(decoded)}[kind]
