"""Ingredients of a soup: folders of finished runs, and whether they can be averaged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import safe_open

from temper.errors import CheckpointError, ModelError
from temper.models.folders import check_folder, read_object
from temper.training.checkpoint_folder import read_json
from temper.training.run import MODEL_FILES, RECORDS

WEIGHTS = {".safetensors", ".bin"}
NOT_COPIED = RECORDS | {"model.safetensors.index.json", "training_args.json", "trainer_state.json"}
# What a network computes is decided by more than shapes: heads, activations, positions.
MUST_AGREE = (
    "architectures", "model_type", "num_attention_heads", "num_key_value_heads", "hidden_act",
    "position_embedding_type", "tie_word_embeddings", "problem_type", "vocab_size",
)  # fmt: skip


@dataclass(frozen=True)
class Ingredient:
    """A checkpoint that may become part of a soup.

    Args:
        folder: Where it lies.
        record: Its ``run.json``; empty for a checkpoint that Temper has not trained.
        config: Its ``config.json``.
        tensors: File of each tensor, by name.
        kinds: Type and shape of each tensor, by name.
    """

    folder: Path
    record: dict[str, Any] = field(repr=False)
    config: dict[str, Any] = field(repr=False)
    tensors: dict[str, Path] = field(repr=False)
    kinds: dict[str, str] = field(repr=False)

    @property
    def labels(self) -> dict[str, str]:
        """Name of each class, by its number; empty where none are named."""
        return {str(key): str(value) for key, value in self.config.get("id2label", {}).items()}

    def plain_files(self) -> list[Path]:
        """Return configuration and tokenizer: what an average takes over as it is."""
        suffixes = (MODEL_FILES - WEIGHTS) | {".jinja"}
        return [
            file
            for file in sorted(self.folder.iterdir())
            if file.is_file() and file.suffix in suffixes and file.name not in NOT_COPIED
        ]


def read_ingredient(folder: Path) -> Ingredient:
    """Read all of a run but its weights.

    Args:
        folder: Of a finished run, or any folder with a whole Transformers checkpoint.

    Returns:
        What it holds.

    Raises:
        CheckpointError: If there is no checkpoint, or the run is not finished.
        ModelError: If a file is damaged, or it is an adapter.
    """
    if not folder.is_dir():
        raise CheckpointError(f"{folder} is no folder. A soup is made of folders of finished runs.")
    record = read_json(folder / "run.json") if (folder / "run.json").exists() else {}
    if record and record.get("status") != "finished":
        raise CheckpointError(
            f"The run in {folder} is {record.get('status')!r}, expected 'finished'. Run its "
            "`temper train` again to finish it."
        )
    if (folder / "adapter_config.json").exists():
        raise ModelError(
            f"{folder} holds a PEFT adapter, and an average of adapters' factors is not that of "
            "their models. Train with train.lora.merge=true, or merge each adapter into its model."
        )
    check_folder(folder)
    tensors: dict[str, Path] = {}
    kinds: dict[str, str] = {}
    for file in sorted(folder.glob("model*.safetensors")):
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118 (it is no mapping)
                entry = opened.get_slice(name)
                tensors[name] = file
                kinds[name] = f"{entry.get_dtype()} {list(entry.get_shape())}"
    if not tensors or not (folder / "config.json").exists():
        raise CheckpointError(
            f"{folder} holds no config.json with a model.safetensors. Give folders of finished "
            "runs."
        )
    return Ingredient(folder, record, read_object(folder / "config.json"), tensors, kinds)


def check_alike(members: Sequence[Ingredient]) -> None:
    """Refuse to average models of different architectures, shapes or labels.

    Args:
        members: At least one.

    Raises:
        ModelError: Naming the first two that differ, and in what.
    """
    first = members[0]
    for other in members[1:]:
        what = _difference(first, other)
        if what:
            raise ModelError(
                f"{first.folder} and {other.folder} cannot be averaged: {what}. A soup needs runs "
                "of one model on one task."
            )


def _difference(first: Ingredient, other: Ingredient) -> str | None:
    """Say in what two checkpoints differ; None where they can be averaged."""
    for name in MUST_AGREE:
        one, two = first.config.get(name), other.config.get(name)
        if one != two:
            return f"`{name}` of their config.json is {one!r} and {two!r}"
    if first.labels != other.labels:
        return f"their labels are {first.labels} and {other.labels}"
    for name in dict.fromkeys([*first.kinds, *other.kinds]):
        one, two = first.kinds.get(name, "missing"), other.kinds.get(name, "missing")
        if one != two:
            return f"the tensor {name!r} is {one} and {two}"
    return None
