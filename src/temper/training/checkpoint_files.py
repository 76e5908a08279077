"""Checkpoints to resume from: their files are written, found, checked and removed here.

The nested state of optimizers, schedulers, generators and rules is safetensors + JSON, no pickle.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from temper.checkpoints.folder import newest_checkpoint_in
from temper.errors import CheckpointError
from temper.files import CHECKSUMS, checksums, disagreements, write_json

ADVICE = "Resume from another checkpoint, or start over."
UNWRITABLE = (
    "which cannot be written as safetensors or JSON. Use an optimizer and a scheduler whose state "
    "is made of tensors and plain values."
)


def write_state(state: Any, folder: Path | str, *, name: str) -> None:
    """Write ``NAME.json`` and, if there are tensors, ``NAME.safetensors`` into an existing folder.

    A state is nested dicts, lists and tuples of tensors, NumPy arrays, numbers, strings, booleans
    and None. Integer keys and tuples survive. Anything else in it raises a `CheckpointError`.
    """
    tensors: dict[str, torch.Tensor] = {}
    try:
        skeleton = _encode(state, tensors, where=name)
        if tensors:
            save_file(tensors, Path(folder, f"{name}.safetensors"))
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{name} has a tensor ({error}), {UNWRITABLE}") from error
    Path(folder, f"{name}.json").write_text(json.dumps(skeleton), encoding="utf-8")


def read_state(folder: Path | str, *, name: str) -> Any:
    """Read a state that ``write_state`` wrote, with tensors on the CPU."""
    path = Path(folder, f"{name}.json")
    stored = path.with_suffix(".safetensors")
    skeleton = _read_json(path)
    with _whole(path):
        return _decode(skeleton, load_file(stored) if stored.exists() else {})


@contextmanager
def _whole(path: Path) -> Iterator[None]:
    """Raise a `CheckpointError` if files read in this context are missing or damaged."""
    try:
        yield
    except FileNotFoundError:
        raise CheckpointError(
            f"{path} is missing: the checkpoint is incomplete, or Temper did not write it. {ADVICE}"
        ) from None
    except (
        OSError,
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
        RecursionError,
        SafetensorError,
    ) as error:
        raise CheckpointError(f"{path} is damaged ({error}). {ADVICE}") from error


def _read_json(path: Path) -> Any:
    with _whole(path):
        return json.loads(path.read_text(encoding="utf-8"))


def _encode(value: Any, tensors: dict[str, torch.Tensor], *, where: str) -> Any:
    if isinstance(value, torch.Tensor) and value.layout == torch.strided:
        key = f"t{len(tensors)}"
        tensors[key] = value.detach().cpu().clone(memory_format=torch.contiguous_format)
        return {"tensor": key}
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
        return {"array": _encode(torch.from_numpy(value.copy()), tensors, where=where)}
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, int | str):
                raise CheckpointError(
                    f"{where} has a key {key!r}; only strings and integers can be written."
                )
        items = [
            [key, _encode(item, tensors, where=f"{where}.{key}")] for key, item in value.items()
        ]
        return {"dict": items}
    if isinstance(value, list | tuple):
        parts = [
            _encode(item, tensors, where=f"{where}[{index}]") for index, item in enumerate(value)
        ]
        return {"list" if isinstance(value, list) else "tuple": parts}
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise CheckpointError(f"{where} is of type {type(value).__name__}, {UNWRITABLE}")


def _decode(value: Any, tensors: dict[str, torch.Tensor]) -> Any:
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "tensor":
        return tensors[content]
    if kind == "array":
        return _decode(content, tensors).numpy()
    if kind == "dict":
        return {key: _decode(item, tensors) for key, item in content}
    decoded = [_decode(item, tensors) for item in content]
    return {"list": decoded, "tuple": tuple(decoded)}[kind]


def newest_checkpoint(folder: Path | str) -> Path:
    """Return the newest ``checkpoint-N`` of a folder; a `CheckpointError` if there is none."""
    newest = newest_checkpoint_in(Path(folder))
    if newest is None:
        raise CheckpointError(
            f"{folder} has no checkpoint-N to resume from. Train without resuming first, or "
            "pass the folder of a checkpoint."
        )
    return newest


def check_checkpoint(folder: str, *, rank: int) -> None:
    """Check that a process can resume from a checkpoint, before any of it is loaded."""
    if not Path(folder).is_dir():
        raise CheckpointError(f"The checkpoint {folder} is not a folder. {ADVICE}")
    check_sums(Path(folder))
    wrote = rank_in(folder, rank)
    for state in ("optimizer", "scheduler", "method", f"progress_{wrote}", f"rng_state_{wrote}"):
        _read_json(Path(folder, f"{state}.json"))


def rank_in(folder: Path | str, rank: int) -> int:
    """Return the number of the process whose stored random state a process resumes with."""
    # If more processes resume than wrote it, several load one state; rules draw by rank anyway.
    wrote = sum(1 for _ in Path(folder).glob("rng_state_*.json"))
    return rank % max(1, wrote)


def check_sums(folder: Path) -> None:
    """Raise a `CheckpointError` if files of a folder are not as `put_in_place` wrote them."""
    written = _read_json(folder / CHECKSUMS)
    with _whole(folder / CHECKSUMS):
        faults = disagreements(folder, written["sha256"])
    if faults:
        raise CheckpointError(f"{' '.join(faults)} {ADVICE}")


def load_part(part: Any, folder: Path | str, *, name: str) -> None:
    """Load a state that ``write_state`` wrote into an optimizer, a scheduler or a stepper."""
    saved = read_state(folder, name=name)
    try:
        part.load_state_dict(saved)
    except (ValueError, KeyError, TypeError, RuntimeError) as error:
        raise CheckpointError(
            f"The {name} state in {folder} does not fit this run ({error}). Resume with the model, "
            "the optimizer and the method that wrote it."
        ) from error


def put_in_place(partial: Path, final: Path) -> None:
    """Write the hashes of a folder's files, flush them to the disk, then rename the folder."""
    write_json(partial / CHECKSUMS, {"sha256": checksums(partial)})
    for file in partial.rglob("*"):
        descriptor = os.open(file, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    if final.exists():
        shutil.rmtree(final)
    os.replace(partial, final)


def make_newest(checkpoint: Path) -> None:
    """Make sure that a checkpoint has the latest modification time of its folder."""
    # Transformers removes the oldest by time: after a clock was set back, that would be this one.
    others = checkpoint.parent.glob("checkpoint-*")
    latest = max((other.stat().st_mtime_ns for other in others if other != checkpoint), default=0)
    if latest >= checkpoint.stat().st_mtime_ns:
        os.utime(checkpoint, ns=(latest + 10**9, latest + 10**9))


def generator_states() -> dict[str, Any]:
    states = {
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "cpu": torch.random.get_rng_state(),
    }
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.random.get_rng_state()
    return states


def set_generator_states(states: dict[str, Any]) -> None:
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])
    torch.random.set_rng_state(states["cpu"])
    if torch.cuda.is_available() and "cuda" in states:
        torch.cuda.random.set_rng_state(states["cuda"])


@contextmanager
def of_same_sizes(checkpoint: str | None) -> Iterator[None]:
    """Turn torch's error for weights of other shapes into a `CheckpointError`."""
    try:
        yield
    except RuntimeError as error:
        mismatch = next((li for li in str(error).splitlines() if "size mismatch" in li), None)
        if checkpoint is None or mismatch is None:
            raise
        raise CheckpointError(
            f"The sizes of the weights of {checkpoint} differ from the model's, for example due to "
            f"a different number of classes ({mismatch.strip()}). Resume with the model that was "
            "trained, or start a new training run."
        ) from error
