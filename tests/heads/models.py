"""A tiny model of Transformers for each head, with a batch of rows of different lengths."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    BertConfig,
    BertForMultipleChoice,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
    LlamaConfig,
    LlamaForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)

from temper.heads import UNLABELED
from temper.models.windows import set_windows
from temper.testing.tiny import rows
from temper.types import Pool, Windows

Inputs = dict[str, Tensor]
WORDS, CLASSES, LABELS = 64, 3, 4
SIZES = {"num_attention_heads": 2, "intermediate_size": 16, "num_hidden_layers": 2}


def draws(seed: int = 7) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def texts() -> Inputs:
    return {name: each for name, each in rows(6, 3, 5, 4).items() if name != "labels"}


def bert(kind: Callable[[BertConfig], nn.Module], **settings: Any) -> nn.Module:
    return kind(BertConfig(vocab_size=WORDS, hidden_size=8, **SIZES, **settings))


def multi_label() -> tuple[nn.Module, Inputs]:
    labels = torch.randint(2, (4, LABELS), generator=draws()).double()
    problem = {"num_labels": LABELS, "problem_type": "multi_label_classification"}
    return bert(BertForSequenceClassification, **problem), texts() | {"labels": labels}


def tokens() -> tuple[nn.Module, Inputs]:
    inputs = texts()
    labels = torch.randint(CLASSES, inputs["input_ids"].shape, generator=draws())
    labels[inputs["attention_mask"] == 0] = UNLABELED
    labels[:, 0] = UNLABELED
    return bert(BertForTokenClassification, num_labels=CLASSES), inputs | {"labels": labels}


def spans() -> tuple[nn.Module, Inputs]:
    context = texts()["attention_mask"].clone()
    context[:, 1] = 0  # a question
    ends = {
        "start_positions": torch.tensor([2, 0, 3, 2]),
        "end_positions": torch.tensor([4, 2, 4, 9]),  # the last one was cut off
    }
    return bert(BertForQuestionAnswering), texts() | ends | {"context_mask": context}


def choices() -> tuple[nn.Module, Inputs]:
    pairs = [rows(6, 3, 5), rows(6, 2, 4), rows(6, 6, 3)]
    stacked = {
        name: torch.stack([each[name] for each in pairs], 0)
        for name in pairs[0]
        if name != "labels"
    }
    return bert(BertForMultipleChoice), stacked | {"labels": torch.tensor([2, 0, 1])}


def windowed(
    *numbers: int, pool: Pool = "mean", tokens: int = 5, **settings: Any
) -> tuple[nn.Module, Inputs]:
    """Return a classifier of texts that have so many windows each, and a batch [B, W, T].

    The last window of a text is shorter than the others.
    """
    sequences = rows(*(tokens - (last % 2) for last in range(sum(numbers))))
    size = (len(numbers), max(numbers), sequences["input_ids"].shape[1])
    result = {name: torch.zeros(size, dtype=torch.long) for name in ("input_ids", "attention_mask")}
    start = 0
    for row, count in enumerate(numbers):
        for name, each in result.items():
            each[row, :count] = sequences[name][start : start + count]
        start += count
    model = bert(BertForSequenceClassification, **{"num_labels": CLASSES, **settings})
    set_windows(model, Windows(1, pool), max_length=tokens)
    labels = torch.randint(CLASSES, (len(numbers),), generator=draws())
    return model, result | {"labels": labels}


def several_labels_in_windows() -> tuple[nn.Module, Inputs]:
    problem = {"num_labels": LABELS, "problem_type": "multi_label_classification"}
    model, inputs = windowed(1, 3, 2, 2, pool="max", **problem)
    labels = torch.randint(2, (4, LABELS), generator=draws()).double()
    return model, inputs | {"labels": labels}


def _completed(inputs: Inputs) -> Tensor:
    labels = inputs["input_ids"].clone()
    labels[inputs["attention_mask"] == 0] = UNLABELED
    labels[:, :2] = UNLABELED  # the prompt
    return labels


def completions() -> tuple[nn.Module, Inputs]:
    config = LlamaConfig(
        vocab_size=WORDS, hidden_size=8, pad_token_id=0, attention_dropout=0.1, **SIZES
    )
    inputs = texts()
    return LlamaForCausalLM(config), inputs | {"labels": _completed(inputs)}


def _summaries() -> Tensor:
    labels = torch.randint(3, WORDS, (4, 3), generator=draws())
    labels[1:3, 2] = UNLABELED
    return labels


def t5() -> tuple[nn.Module, Inputs]:
    sizes = {"d_model": 8, "d_kv": 4, "d_ff": 16, "num_layers": 2, "num_heads": 2}
    config = T5Config(vocab_size=WORDS, decoder_start_token_id=0, **sizes)
    return T5ForConditionalGeneration(config), texts() | {"labels": _summaries()}


def bart() -> tuple[nn.Module, Inputs]:
    sizes = {
        f"{side}_{name}": value
        for side in ("encoder", "decoder")
        for name, value in (("layers", 2), ("attention_heads", 2), ("ffn_dim", 16))
    }
    config = BartConfig(vocab_size=WORDS, d_model=8, max_position_embeddings=32, **sizes)
    return BartForConditionalGeneration(config), texts() | {"labels": _summaries()}


MODELS: dict[str, Callable[[], tuple[nn.Module, Inputs]]] = {
    "classification-windows": lambda: windowed(2, 3, 1, 2),
    "multi_label": multi_label,
    "multi_label-windows": several_labels_in_windows,
    "tokens": tokens,
    "spans": spans,
    "choices": choices,
    "completions": completions,
    "seq2seq": t5,
    "seq2seq-bart": bart,
}


def model_of(name: str, *, seed: int = 0) -> tuple[nn.Module, Inputs]:
    """Return a head's model in float64, in training mode, and its batch."""
    torch.manual_seed(seed)
    model, inputs = MODELS[name]()
    with torch.no_grad():
        for tensor in model.parameters():
            # Transformers' tiny initial weights hide differences between passes.
            if tensor.dim() > 1:
                tensor.mul_(4)
    return model.double().train(), inputs
