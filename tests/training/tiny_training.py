"""A tiny classifier, a few rows of different lengths, and a Trainer for them."""

from __future__ import annotations

import gc
import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

from temper.data.collator import Collator
from temper.data.encode import LazilyEncoded
from temper.methods import build
from temper.models.windows import set_windows
from temper.testing import tiny as testing
from temper.training.config import wants_unlabeled
from temper.training.trainer import RobustTrainer
from temper.types import Windows

# Every training begins with a full garbage collection, which looks through the libraries' own
# objects for longer than a tiny training lasts, unless these are set aside.
gc.freeze()
VOCABULARY = 32
Item = dict[str, Any]


def tiny_model(*, seed: int = 0, **changes: Any) -> BertForSequenceClassification:
    """Return a random BERT of two layers, 8 wide."""
    torch.manual_seed(seed)
    settings = {
        "vocab_size": VOCABULARY,
        "hidden_size": 8,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 16,
        "max_position_embeddings": 16,
        "num_labels": 2,
        # Wide enough that words, dropout and attacks matter.
        "initializer_range": 0.3,
    }
    return BertForSequenceClassification(BertConfig(**{**settings, **changes}))


def quiet_model(*, seed: int = 0) -> BertForSequenceClassification:
    """Return the same without dropout, for equations between different ways to the same step."""
    return tiny_model(seed=seed, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)


class Averaged(nn.Module):
    """A classifier of mean word vectors that returns a tensor; it repeats no blocks."""

    def __init__(self, dropout: float = 0.1) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(32, 8)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(8, 2)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        mask = attention_mask.unsqueeze(-1).float()
        return self.head(self.dropout((self.words(input_ids) * mask).sum(1) / mask.sum(1)))


class Rows(Dataset[Item]):
    """Rows of 2 to 8 tokens, a function of their number alone."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Item:
        if not 0 <= index < self.count:
            raise IndexError(index)
        draw = random.Random(index)
        ids = [draw.randrange(5, VOCABULARY) for _ in range(2 + draw.randrange(7))]
        return {"input_ids": ids, "attention_mask": [1] * len(ids), "labels": index % 2}


class Unlabeled(Rows):
    """Other rows than those, without labels."""

    def __getitem__(self, index: int) -> Item:
        if not 0 <= index < self.count:
            raise IndexError(index)
        item = Rows(1000)[500 + index]
        return {name: item[name] for name in ("input_ids", "attention_mask")}


def collate(items: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
    """Pad rows to the longest; labels where they have any."""
    longest = max(len(item["input_ids"]) for item in items)
    batch = {
        "input_ids": torch.tensor([pad(item["input_ids"], longest) for item in items]),
        "attention_mask": torch.tensor([pad(item["attention_mask"], longest) for item in items]),
    }
    if "labels" in items[0]:
        batch["labels"] = torch.tensor([item["labels"] for item in items])
    return batch


def pad(values: list[int], length: int) -> list[int]:
    """Append zeros."""
    return values + [0] * (length - len(values))


def arguments(folder: Path | str, **changes: Any) -> TrainingArguments:
    """Return arguments that log every step and save nothing."""
    settings: dict[str, Any] = {
        "use_cpu": True,
        "disable_tqdm": True,
        "report_to": "none",
        "save_strategy": "no",
        "logging_steps": 1,
        "per_device_train_batch_size": 4,
        "per_device_eval_batch_size": 4,
        "learning_rate": 1e-2,
        "num_train_epochs": 1,
        "dataloader_pin_memory": False,
        "seed": 3,
    }
    return TrainingArguments(str(folder), **{**settings, **changes})


def make_trainer(
    folder: Path | str,
    *,
    model: nn.Module | None = None,
    rows: Any = 12,
    more: Mapping[str, Any] | None = None,
    **changes: Any,
) -> RobustTrainer:
    """Return a trainer of a tiny model; methods that want rows without labels get a few.

    Args:
        folder: For checkpoints.
        model: Instead of the tiny one.
        rows: Training rows, or how many.
        more: Arguments of RobustTrainer.
        changes: Training arguments.
    """
    given: dict[str, Any] = {"data_collator": collate, **(more or {})}
    if "model_init" not in given:
        given["model"] = tiny_model() if model is None else model
    if wants_unlabeled(build(given.get("method", "plain"))):
        given.setdefault("unlabeled_dataset", Unlabeled(6))
    return RobustTrainer(
        args=arguments(folder, **changes),
        train_dataset=Rows(rows) if isinstance(rows, int) else rows,
        **given,
    )


def windows_trainer(folder: Path | str, *, rows: int = 12, **changes: Any) -> RobustTrainer:
    """Return a trainer by UEGR of texts that have 1 to 4 windows.

    Args:
        folder: For checkpoints.
        rows: Training rows.
        changes: Training arguments.
    """
    model, tokenizer = testing.tiny_model(), testing.tiny_tokenizer()
    windows = Windows(2, "mean")
    set_windows(model, windows, max_length=6)
    encoded = LazilyEncoded(
        testing.tiny_examples("train", rows), tokenizer, max_length=6, windows=windows
    )
    more = {"method": "uegr", "data_collator": Collator(tokenizer)}
    return make_trainer(
        folder, model=model, rows=encoded, more=more, remove_unused_columns=False, **changes
    )


def stock_trainer(
    folder: Path | str,
    *,
    model: nn.Module | None = None,
    rows: int = 12,
    more: Mapping[str, Any] | None = None,
    **changes: Any,
) -> Trainer:
    """Return Transformers' own trainer of the model without dropout."""
    return Trainer(
        quiet_model() if model is None else model,
        arguments(folder, **changes),
        train_dataset=Rows(rows),
        data_collator=collate,
        **(more or {}),
    )


def unbucketed_trainer(
    folder: Path | str,
    *,
    model: nn.Module | None = None,
    more: Mapping[str, Any] | None = None,
    **changes: Any,
) -> RobustTrainer:
    """Return our trainer of that model, whose rows come in the order of `stock_trainer`'s."""
    return make_trainer(
        folder,
        model=quiet_model() if model is None else model,
        more={"bucket_by_length": False, **(more or {})},
        **changes,
    )


def weights(model: nn.Module) -> dict[str, Tensor]:
    """Return copies of all weights."""
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def unequal(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> list[str]:
    """Return the names of the tensors that are not bit-equal."""
    assert first.keys() == second.keys()
    return [name for name in first if not torch.equal(first[name], second[name])]


def farthest(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> float:
    """Return the largest difference between two sets of weights."""
    assert first.keys() == second.keys()
    return max(float((first[name] - second[name]).abs().max()) for name in first)


def training_logs(trainer: RobustTrainer) -> list[dict[str, float]]:
    """Return the logs of training steps."""
    return [entry for entry in trainer.state.log_history if "loss" in entry]


def settings_of_run(
    project: Path, *, method: str = "plain", data: Mapping[str, Any] | None = None, **train: Any
) -> dict[str, Any]:
    """Return nested settings of a short run on the tiny project.

    Args:
        project: Folder with ``model`` and ``data``.
        method: Name of the method.
        data: Further settings of ``data``.
        train: Of the training loop.
    """
    short = {"logging_steps": 1, "save_steps": 2, "device": "cpu", "learning_rate": 1e-3}
    return {
        "model": str(project / "model"),
        "data": {"source": str(project / "data" / "reviews"), "max_length": 32, **(data or {})},
        "method": {"name": method},
        "train": {**short, **train},
    }


def record(folder: Path) -> dict[str, Any]:
    """Return what ``run.json`` holds."""
    content: dict[str, Any] = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    return content


def logs(folder: Path) -> list[dict[str, Any]]:
    """Return the lines of ``metrics.jsonl``."""
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
