"""A tiny model and tiny files, so that whole commands run in seconds."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

GOOD, BAD = ("good", "fine", "great"), ("bad", "poor", "awful")
OTHERS = ("the", "a", "film", "phone", "was", "is", "very", "not", "it", "and", "why", "how")


def make_model(folder: Path, *, seed: int = 0) -> Path:
    """Save a random BERT classifier of two layers, of negative and positive, with its tokenizer."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification, BertTokenizer

    folder.mkdir(parents=True)
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *GOOD, *BAD, *OTHERS]
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=128,
        id2label={0: "negative", 1: "positive"},
        label2id={"negative": 0, "positive": 1},
    )
    BertForSequenceClassification(config).save_pretrained(folder)
    tokenizer = BertTokenizer(
        vocab={word: index for index, word in enumerate(vocabulary)}, model_max_length=128
    )
    tokenizer.save_pretrained(folder)
    return folder


def sentences(count: int, *, thing: str = "film") -> list[tuple[str, str]]:
    """Return ``count`` different labeled sentences, half of each label."""
    rows = []
    for number in range(count):
        label = "positive" if number % 2 else "negative"
        word = (GOOD if number % 2 else BAD)[number // 2 % 3]
        # The number of "very" and "the" makes every sentence another one.
        text = f"the {thing} was {'very ' * (number // 6 % 7)}{word}{' and' * (number // 42)}"
        rows.append((text, label))
    return rows


def write_csv(path: Path, rows: list[tuple[str, str]]) -> Path:
    """Write ``text,label`` rows."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "label"])
        writer.writerows(rows)
    return path


def make_data(folder: Path) -> Path:
    """Write train and dev, a shifted set and an anomaly set."""
    write_csv(folder / "reviews" / "train.csv", sentences(40))
    write_csv(folder / "reviews" / "dev.csv", sentences(12, thing="phone"))
    write_csv(folder / "shift.csv", sentences(10, thing="it"))
    (folder / "anomaly.csv").write_text("text\nwhy is it\nhow was it\nwhy not\n", encoding="utf-8")
    return folder


def study_tree(
    model: Path | str,
    source: Path | str,
    *,
    train: Mapping[str, Any] | None = None,
    evaluate: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return nested settings of a study that measures its task alone."""
    return {
        "model": str(model),
        "data": {"source": str(source), "max_length": 32},
        "train": {"max_steps": 2, "device": "cpu", **(train or {})},
        "evaluate": {"perspectives": ["task"], "bootstrap": 0, **(evaluate or {})},
    }


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a tiny random classifier."""
    return make_model(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="session")
def tiny_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with ``reviews/``, ``shift.csv`` and ``anomaly.csv``."""
    return make_data(tmp_path_factory.mktemp("data"))
