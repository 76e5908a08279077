"""Tiny BERTs, batches of token ids, and texts with a tokenizer, for contract tests."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import Tensor
from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

from temper.data.examples import Examples
from temper.evaluation.classifier import ClassifierPredictor
from temper.evaluation.measurement import EvaluationData
from temper.seeding import seeded

MARKS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
WORDS = tuple(f"word{number}" for number in range(95))
IDS = 23
"""Number of token ids in `rows`; 0 is padding, 1 and 2 are special tokens."""
LENGTH = 64
"""Maximum number of tokens of a row."""


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """Return a word-level tokenizer that adds [CLS] and [SEP]."""
    vocabulary = {word: number for number, word in enumerate([*MARKS, *WORDS])}
    core = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    return marked(core, length=LENGTH)


def marked(core: Tokenizer, *, length: int) -> PreTrainedTokenizerFast:
    """Return a tokenizer whose vocabulary begins with `MARKS`, adding [CLS] and [SEP]."""
    core.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        model_max_length=length,
    )


def tiny_model(*, classes: int = 2, seed: int = 0) -> Any:
    """Return a random BERT of two layers; its large embeddings make predictions depend on words."""
    config = BertConfig(
        vocab_size=len(MARKS) + len(WORDS),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=LENGTH,
        num_labels=classes,
    )
    with seeded(seed), torch.no_grad():
        model = BertForSequenceClassification(config)
        model.bert.embeddings.word_embeddings.weight.normal_(0, 0.5)
        model.classifier.weight.normal_(0, 1.0)
    return model


def tiny_classifier(*, classes: int = 2, seed: int = 0) -> ClassifierPredictor:
    """Return a random classifier that supports every perspective."""
    return ClassifierPredictor(
        tiny_model(classes=classes, seed=seed), tiny_tokenizer(), max_length=LENGTH
    )


def tiny_examples(
    name: str = "dev",
    rows: int = 24,
    *,
    seed: int = 0,
    classes: int = 2,
    kind: Any = "classification",
    **more: Any,
) -> Examples:
    """Return texts of 1 to 12 words with arbitrary labels; ``more`` are fields of `Examples`."""
    draw = random.Random(f"{name} {seed}")
    texts = [" ".join(draw.choices(WORDS, k=draw.randint(1, 12))) for _ in range(rows)]
    labels: Any = None
    if kind == "classification":
        labels = [index % classes for index in range(rows)]
    elif kind == "regression":
        labels = [draw.uniform(-1, 1) for _ in range(rows)]
    return Examples(name, texts, labels=labels, kind=kind, **more)


def tiny_data() -> EvaluationData:
    """Return evaluation data for every perspective: sets of each kind, groups, contrast pairs."""
    dev = tiny_examples(rows=60)
    groups: list[str | None] = ["fiction" if row % 2 else "travel" for row in range(len(dev))]
    paired = tiny_examples("mean", rows=12)
    pairs: list[str | None] = [str(row // 2) for row in range(len(paired))]
    return EvaluationData(
        replace(dev, group=groups),
        shift={"far": tiny_examples("far", rows=20), "near": tiny_examples("near", rows=20)},
        anomaly={"odd": tiny_examples("odd", rows=15, kind="unlabeled")},
        adversarial={"mean": replace(paired, pair=pairs)},
        fit=tiny_examples("fit", rows=40),
        reference=tiny_classifier(seed=9),
    )


def tiny_bert(
    *, classes: int = 3, dropout: float = 0.1, attention: float = 0.1, **settings: Any
) -> BertForSequenceClassification:
    """Return a BERT of two layers in training mode, the same at every call.

    The dropout rates are those after hidden states and attention probabilities; ``settings`` are of
    its ``BertConfig``.
    """
    torch.manual_seed(5)
    values = {
        "vocab_size": IDS,
        "hidden_size": 8,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 12,
        "max_position_embeddings": 12,
        "hidden_dropout_prob": dropout,
        "attention_probs_dropout_prob": attention,
        "num_labels": classes,
        "initializer_range": 0.4,
        **settings,
    }
    return BertForSequenceClassification(BertConfig(**values)).train()


def rows(
    *lengths: int, seed: int = 0, classes: int = 3, regression: bool = False
) -> dict[str, Tensor]:
    """Return a collated batch with rows of the given lengths in tokens, padded on the right."""
    draws = torch.Generator().manual_seed(seed)
    longest = max(lengths)
    ids = torch.randint(3, IDS, (len(lengths), longest), generator=draws)
    mask = torch.zeros_like(ids)
    for row, length in enumerate(lengths):
        mask[row, :length] = 1
        ids[row, 0], ids[row, length - 1] = 1, 2
    labels = torch.randint(0, classes, (len(lengths),), generator=draws)
    if regression:
        labels = torch.randn(len(lengths), generator=draws, dtype=torch.float64)
    return {"input_ids": ids * mask, "attention_mask": mask, "labels": labels}
