"""Tiny networks in double precision, and a BERT, that the tests of methods share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    LlamaConfig,
    LlamaForSequenceClassification,
    XLNetConfig,
    XLNetForSequenceClassification,
)

from temper.backward import hooks
from temper.backward.rule import UpdateRule, implements
from temper.forward import Plan, StepContext
from temper.forward.totals import step_totals
from temper.methods import Method, build, names
from temper.methods.plain import Plain
from temper.models.network import Network
from temper.seeding import Streams
from temper.testing.tiny import IDS, rows, tiny_bert
from temper.training.config import wants_unlabeled
from temper.types import Batch, LossTerms, State, Step

__all__ = [
    "of_each_kind",
    "recorded_drops",
    "rows",
    "tiny_bert",
    "tiny_llama",
    "tiny_network",
    "tiny_xlnet",
    "totals_of",
    "with_rules",
]


def of_each_kind() -> list[str]:
    """Return one method for each set of hooks; a training loop treats the others as that one."""
    protocols = [
        each
        for each in vars(hooks).values()
        if getattr(each, "_is_protocol", False) and each.__module__ == hooks.__name__
    ]
    result = {}
    for name in names():
        method = build(name)
        kind = (
            *(implements(method.rule, each) for each in protocols),
            method.plan(Step()) == Plan(),
            wants_unlabeled(method),
        )
        result[kind] = name
    return sorted(result.values())


def with_rules(*rules: UpdateRule) -> Method:
    """Return plain fine-tuning with update rules."""

    class Planted(Plain):
        NAME = "planted"

        def update(self) -> list[UpdateRule]:
            return list(rules)

    return Planted()


def totals_of(
    method: Method,
    network: Network,
    batch: Mapping[str, Any],
    *,
    now: Step | None = None,
    state: State | None = None,
    streams: Streams | None = None,
) -> Iterator[LossTerms]:
    """Yield the totals of one step; the caller runs backward on each."""
    given, kept = Batch.of(batch), {} if state is None else state
    now = Step(units=given.size) if now is None else now
    context = StepContext(network, given, kept, now, streams or Streams(0))
    return step_totals(method.composed(), context)


class TinyBlock(nn.Module):
    """Two matrices and a dropout layer around a tanh."""

    def __init__(self, width: int, rate: float) -> None:
        super().__init__()
        self.inner = nn.Linear(width, width)
        self.outer = nn.Linear(width, width)
        self.dropout = nn.Dropout(rate)

    def forward(self, hidden_states: Tensor) -> Tensor:
        return hidden_states + self.dropout(self.outer(torch.tanh(self.inner(hidden_states))))


class TinyNetwork(nn.Module):
    """Embeddings, dropout, two blocks, the mean over real tokens, dropout, a head."""

    def __init__(self, *, classes: int = 3, width: int = 4, rate: float = 0.3) -> None:
        super().__init__()
        self.words = nn.Embedding(IDS, width)
        self.after_words = nn.Dropout(rate)
        self.layers = nn.ModuleList([TinyBlock(width, rate) for _ in range(2)])
        self.before_head = nn.Dropout(rate)
        self.head = nn.Linear(width, classes)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        hidden = self.after_words(self.words(input_ids))
        for layer in self.layers:
            hidden = layer(hidden)
        real = attention_mask.unsqueeze(-1).to(hidden.dtype)
        mean = (hidden * real).sum(1) / real.sum(1)
        return self.head(self.before_head(mean))


class MeanOfWords(nn.Module):
    """Embeddings and a head, with no block between them."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(IDS, 4), nn.Linear(4, 3)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return self.head(self.words(input_ids).mean(1))


def tiny_network(**settings: Any) -> TinyNetwork:
    """Return a network in double precision and training mode, the same at every call."""
    torch.manual_seed(3)
    return TinyNetwork(**settings).double().train()


def tiny_xlnet() -> XLNetForSequenceClassification:
    """Return an XLNet of two layers, whose hidden states have the time first."""
    torch.manual_seed(6)
    config = XLNetConfig(
        vocab_size=23,
        d_model=8,
        n_layer=2,
        n_head=2,
        d_inner=12,
        num_labels=3,
        dropout=0.3,
        initializer_range=0.4,
    )
    return XLNetForSequenceClassification(config).train()


def tiny_llama(*, layers: int = 2) -> LlamaForSequenceClassification:
    """Return a LLaMA, which has no dropout layer."""
    torch.manual_seed(7)
    config = LlamaConfig(
        vocab_size=23,
        hidden_size=8,
        intermediate_size=12,
        num_hidden_layers=layers,
        num_attention_heads=2,
        num_labels=3,
        pad_token_id=0,
    )
    return LlamaForSequenceClassification(config).train()


@contextmanager
def recorded_drops(model: nn.Module) -> Iterator[dict[str, list[Tensor]]]:
    """Note what every dropout layer multiplied its input by, call after call.

    A forward that replays these multipliers needs to know nothing of how they were drawn.
    """
    noted: dict[str, list[Tensor]] = {}
    hooks = []

    def watch(name: str) -> Any:
        def hook(_: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
            ratio = output.detach() / args[0].detach()
            noted.setdefault(name, []).append(ratio)

        return hook

    for name, module in model.named_modules():
        if isinstance(module, nn.Dropout):
            hooks.append(module.register_forward_hook(watch(name)))
    try:
        yield noted
    finally:
        for hook in hooks:
            hook.remove()
