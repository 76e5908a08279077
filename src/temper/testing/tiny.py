"""A tiny BERT and rows for it: enough to see whether a method keeps its laws, in milliseconds."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import BertConfig, BertForSequenceClassification

WORDS = 23
"""Vocabulary; id 0 is the padding, 1 and 2 are special tokens."""


def tiny_bert(
    *, classes: int = 3, dropout: float = 0.1, attention: float = 0.1, **settings: Any
) -> BertForSequenceClassification:
    """Return a BERT of two layers in training mode, the same at every call.

    Args:
        classes: C; 1 for a regression.
        dropout: Rate behind hidden states.
        attention: Rate behind attention probabilities.
        settings: Of its ``BertConfig``.
    """
    torch.manual_seed(5)
    values = {
        "vocab_size": WORDS,
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
    """Return a collated batch with rows of the given lengths, padded on the right.

    Args:
        lengths: Tokens of each row.
        seed: Of ids and labels.
        classes: C.
        regression: Whether labels are numbers.
    """
    draws = torch.Generator().manual_seed(seed)
    longest = max(lengths)
    ids = torch.randint(3, WORDS, (len(lengths), longest), generator=draws)
    mask = torch.zeros_like(ids)
    for row, length in enumerate(lengths):
        mask[row, :length] = 1
        ids[row, 0], ids[row, length - 1] = 1, 2
    labels = torch.randint(0, classes, (len(lengths),), generator=draws)
    if regression:
        labels = torch.randn(len(lengths), generator=draws, dtype=torch.float64)
    return {"input_ids": ids * mask, "attention_mask": mask, "labels": labels}
