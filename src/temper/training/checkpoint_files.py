"""What a checkpoint to resume from consists of: found, checked before use, and swept up."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open

from temper.errors import CheckpointError
from temper.training.checkpoint_folder import newest_checkpoint_in
from temper.training.state_files import check_state, read_state

PARTIAL = ".partial-"
WEIGHTS = ("model.safetensors", "adapter_model.safetensors", "model.safetensors.index.json")
ADVICE = "Resume from another checkpoint, or train anew."


def newest_checkpoint(folder: Path | str) -> Path:
    """Return the newest ``checkpoint-N`` of a folder.

    Raises:
        CheckpointError: If there is none.
    """
    newest = newest_checkpoint_in(Path(folder))
    if newest is None:
        raise CheckpointError(
            f"{folder} holds no checkpoint-N to resume from. Train without resuming first, or "
            "give the folder of a checkpoint."
        )
    return newest


def check_checkpoint(folder: Path | str, *, states: Sequence[str]) -> None:
    """Check that a checkpoint is whole before anything of it is loaded.

    Args:
        folder: The checkpoint.
        states: Stems of the files that ``write_state`` wrote.

    Raises:
        CheckpointError: If a file is missing, cut off or no JSON; it names the file.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise CheckpointError(f"The checkpoint {folder} is not a folder. {ADVICE}")
    if not (folder / "trainer_state.json").is_file():
        raise CheckpointError(f"{folder / 'trainer_state.json'} is missing. {ADVICE}")
    for state in states:
        check_state(folder, name=state)
    # PEFT gives every adapter but the one named "default" a folder of its own.
    if not any((folder / name).is_file() for name in WEIGHTS) and not list(
        folder.glob("*/adapter_model.safetensors")
    ):
        raise CheckpointError(f"{folder} holds no weights, expected {WEIGHTS[0]}. {ADVICE}")
    index = folder / WEIGHTS[2]
    shards = set(_read_json(index)["weight_map"].values()) if index.is_file() else set()
    missing = sorted(name for name in shards if not (folder / name).is_file())
    if missing:
        raise CheckpointError(f"{folder / missing[0]} is missing. {ADVICE}")
    for file in sorted(folder.rglob("*.json")):
        _read_json(file)
    for file in sorted(folder.rglob("*.safetensors")):
        try:
            with safe_open(file, framework="pt"):
                pass
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{file} is damaged ({error}). {ADVICE}") from error


def load_part(part: Any, folder: Path | str, *, name: str) -> None:
    """Load what ``write_state`` wrote into an optimiser, a scheduler or a stepper.

    Raises:
        CheckpointError: If the file is damaged, or was written for another one.
    """
    saved = read_state(folder, name=name)
    try:
        part.load_state_dict(saved)
    except (ValueError, KeyError, TypeError, RuntimeError) as error:
        raise CheckpointError(
            f"The {name} of {folder} does not fit this training ({error}). Resume with the model, "
            "the optimiser and the method that wrote it."
        ) from error


def remove_partial(folder: Path | str) -> None:
    """Remove checkpoints that a killed process left half-written."""
    for entry in Path(folder).glob(f"{PARTIAL}*"):
        shutil.rmtree(entry)


def put_in_place(partial: Path, final: Path) -> None:
    """Push a folder's files to the disk, then give the folder its name."""
    for file in partial.rglob("*"):
        descriptor = os.open(file, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    if final.exists():
        shutil.rmtree(final)
    os.replace(partial, final)


def note_best(state: Any, run: Path, final: Path) -> None:
    """Name the checkpoint of the best step in the Trainer's state, where there is one.

    Args:
        state: The Trainer's state.
        run: The folder of all checkpoints.
        final: The checkpoint that is being written.
    """
    if state.best_global_step:
        best = run / f"checkpoint-{state.best_global_step}"
        if best == final or best.exists():
            state.best_model_checkpoint = str(best)


def generator_states() -> dict[str, Any]:
    """Return the states of the global generators of this process."""
    states = {
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "cpu": torch.random.get_rng_state(),
    }
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.random.get_rng_state()
    return states


def set_generator_states(states: dict[str, Any]) -> None:
    """Put the global generators back to what ``generator_states`` gave."""
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])
    torch.random.set_rng_state(states["cpu"])
    if torch.cuda.is_available() and "cuda" in states:
        torch.cuda.random.set_rng_state(states["cuda"])


def _read_json(file: Path) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{file} is damaged ({error}). {ADVICE}") from error
