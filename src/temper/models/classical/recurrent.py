"""Recurrent networks: BiLSTM and TextHAN, and the layers that they are made of."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from temper.models.classical.classifier import (
    BiLSTMConfig,
    ClassicalBody,
    ClassicalClassifier,
    TextHANConfig,
    greatest,
)


@dataclass(frozen=True)
class Sequences:
    """Sequences that lead through the tokens of a batch, and the way back.

    Args:
        take: Number b * T + t of the token at each place [R, L]; any at places past the end.
        mask: Places before the end [R, L], boolean; each row begins with those.
        give: Number r * L + l of the place that each token reads [B, T].
    """

    take: Tensor
    mask: Tensor
    give: Tensor

    @classmethod
    def of_tokens(cls, mask: Tensor) -> Sequences:
        """Lead through the real tokens of each row, whichever side is padded.

        Args:
            mask: Real tokens [B, T], boolean.
        """
        B, T = mask.shape
        start = torch.arange(B, device=mask.device).unsqueeze(1) * T
        order = torch.argsort(mask.logical_not().to(torch.uint8), dim=1, stable=True)
        return cls(start + order, mask.gather(1, order), start + torch.argsort(order, dim=1))


class BiRecurrence(nn.Module):
    """An LSTM or a GRU in both directions; the second reads each sequence from its own end.

    Args:
        size: Width of the input.
        hidden: H, width of one direction's state.
        cell: ``lstm`` or ``gru``.
    """

    def __init__(self, size: int, hidden: int, cell: Literal["lstm", "gru"]) -> None:
        super().__init__()
        kind = nn.LSTM if cell == "lstm" else nn.GRU
        self.ahead = kind(size, hidden, batch_first=True)
        self.back = kind(size, hidden, batch_first=True)

    def forward(self, hidden: Tensor, sequences: Sequences, mask: Tensor) -> Tensor:
        """Run both directions along the sequences.

        Args:
            hidden: [B, T, D].
            sequences: The ways through the tokens.
            mask: Real tokens [B, T], boolean.

        Returns:
            For each token the states of the place that it reads [B, T, 2 H], 0 at padding.
        """
        inputs = hidden.flatten(0, 1)[sequences.take]
        turned = _turned(sequences.mask)
        with self._with_backward():
            ahead = self.ahead(inputs)[0]
            back = self.back(_along(inputs, turned))[0]
        states = torch.cat([ahead, _along(back, turned)], dim=-1)
        return states.flatten(0, 1)[sequences.give] * mask.unsqueeze(-1)

    def _with_backward(self) -> AbstractContextManager[None]:
        """Leave cuDNN aside where its layers have no backward: in evaluation mode."""
        if self.training or not torch.is_grad_enabled():
            return nullcontext()
        flags: AbstractContextManager[None] = torch.backends.cudnn.flags(enabled=False)
        return flags


class AttentionPooling(nn.Module):
    """Weigh states by what they say: ``softmax(u . tanh(W h + b))`` (Yang et al. 2016, Eqs. 5-7).

    Args:
        size: Width of the states.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.projection = nn.Linear(size, size)
        self.context = nn.Linear(size, 1, bias=False)

    def forward(self, states: Tensor, mask: Tensor) -> Tensor:
        """Pool states.

        Args:
            states: [R, L, H].
            mask: Those that count [R, L], boolean; at least one a row.

        Returns:
            [R, H].
        """
        scores = self.context(torch.tanh(self.projection(states))).squeeze(-1)
        weights = scores.masked_fill(~mask, -torch.inf).softmax(dim=1)
        pooled: Tensor = (weights.unsqueeze(-1) * states).sum(dim=1)
        return pooled


def _turned(mask: Tensor) -> Tensor:
    """Return the places [R, L] of each sequence from its end to its start; those past it stay."""
    places = torch.arange(mask.shape[1], device=mask.device).expand(mask.shape)
    return torch.where(mask, mask.sum(dim=1, keepdim=True) - 1 - places, places)


def _along(values: Tensor, places: Tensor) -> Tensor:
    """Return values [R, L, H] in the order of some places [R, L]."""
    return values.gather(1, places.unsqueeze(-1).expand_as(values))


class BiLSTMModel(ClassicalBody):
    """BiLSTM without its head.

    Args:
        config: Its config.
    """

    config_class = BiLSTMConfig

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.width = 2 * config.hidden_size
        sizes = [config.embedding_size, *[self.width] * (config.num_hidden_layers - 1)]
        self.layers = nn.ModuleList(
            BiRecurrence(size, config.hidden_size, "lstm") for size in sizes
        )
        self.between = nn.ModuleList(nn.Dropout(config.dropout) for _ in sizes[1:])
        self.attention = AttentionPooling(self.width) if config.pooling == "attention" else None
        self.post_init()

    def run(self, hidden: Tensor, mask: Tensor, input_ids: Tensor) -> tuple[list[Tensor], Tensor]:
        """Run the layers and pool the last one's states; as `ClassicalBody.run`."""
        sequences = Sequences.of_tokens(mask)
        states: list[Tensor] = []
        for place, layer in enumerate(self.layers):
            below = self.between[place - 1](states[-1]) if place else hidden
            states.append(layer(below, sequences, mask))
        pool = greatest if self.attention is None else self.attention
        return states, pool(states[-1], mask)


class BiLSTMForSequenceClassification(ClassicalClassifier):
    """BiLSTM with its head."""

    config_class = BiLSTMConfig
    body_class = BiLSTMModel


@dataclass(frozen=True)
class Sentences:
    """Where the sentences of a batch lie: N in all, at most W tokens each, at most S a row.

    Args:
        words: From the tokens to the words of each sentence [N, W], and back.
        texts: From the tokens to the sentences of each row [B, S], each read at its last token;
            back to every token of the sentence.
        number: Sentence, among the N, of each token [B, T]; any at padding.
    """

    words: Sequences
    texts: Sequences
    number: Tensor


def find_sentences(mask: Tensor, ends: Tensor, *, longest: int) -> Sentences:
    """Cut the rows of a batch into sentences.

    Args:
        mask: Real tokens [B, T], boolean.
        ends: Tokens that end a sentence [B, T], boolean; a row's last one does anyway, and of
            several side by side the last.
        longest: Most tokens of a sentence, >= 1.
    """
    B, T = mask.shape
    rows = Sequences.of_tokens(mask)
    # Real tokens first, whichever side is padded.
    real, ending = rows.mask, ends.flatten()[rows.take] & rows.mask
    ending = ending & ~F.pad(ending[:, 1:], (0, 1))
    places = torch.arange(T, device=mask.device).expand(B, T)
    starts = real & F.pad(ending[:, :-1], (1, 0), value=True)
    first = torch.where(starts, places, 0).cummax(dim=1).values
    starts = starts | (real & ((places - first) % longest == 0))
    first = torch.where(starts, places, 0).cummax(dim=1).values
    in_row = starts.long().cumsum(dim=1) - 1
    counts = starts.sum(dim=1)
    number = in_row.clamp(min=0) + F.pad(counts.cumsum(0)[:-1], (1, 0)).unsqueeze(1)
    within = places - first
    width, most = int(within[real].max()) + 1, int(counts.max())
    take = mask.new_zeros((int(counts.sum()), width), dtype=torch.int64)
    filled = torch.zeros_like(take, dtype=torch.bool)
    take[number[real], within[real]] = rows.take[real]
    filled[number[real], within[real]] = True
    last = real & F.pad(starts[:, 1:] | ~real[:, 1:], (0, 1), value=True)
    at_ends = mask.new_zeros((B, most), dtype=torch.int64)
    row = torch.arange(B, device=mask.device).unsqueeze(1).expand(B, T)
    at_ends[row[last], in_row[last]] = rows.take[last]
    there = torch.arange(most, device=mask.device) < counts.unsqueeze(1)
    # Back from the order of real tokens first to that of the batch.
    number, within, in_row = (each.flatten()[rows.give] for each in (number, within, in_row))
    give = (number * width + within).where(mask, 0)
    spread = (row * most + in_row).where(mask, 0)
    return Sentences(
        Sequences(take, filled, give), Sequences(at_ends, there, spread), number.where(mask, 0)
    )


class TextHANModel(ClassicalBody):
    """TextHAN without its head; its blocks are the recurrences over words and over sentences.

    Args:
        config: Its config.
    """

    config_class = TextHANConfig

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.width = 2 * config.hidden_size
        self.layers = nn.ModuleList(
            BiRecurrence(size, config.hidden_size, "gru")
            for size in (config.embedding_size, self.width)
        )
        self.between = nn.Dropout(config.dropout)
        self.word_attention = AttentionPooling(self.width)
        self.sentence_attention = AttentionPooling(self.width)
        self.post_init()

    def run(self, hidden: Tensor, mask: Tensor, input_ids: Tensor) -> tuple[list[Tensor], Tensor]:
        """Run words, then sentences, each under its attention; as `ClassicalBody.run`.

        The second state gives every token what its sentence has; the head reads it at each
        sentence's last token.
        """
        marks = torch.tensor(list(self.config.sentence_ends), device=input_ids.device)
        found = find_sentences(
            mask, torch.isin(input_ids, marks), longest=self.config.sentence_length
        )
        words = self.layers[0](hidden, found.words, mask)
        states = self.between(words).flatten(0, 1)[found.words.take]
        sentences = self.word_attention(states, found.words.mask)
        texts = self.layers[1](sentences[found.number], found.texts, mask)
        pooled = self.sentence_attention(texts.flatten(0, 1)[found.texts.take], found.texts.mask)
        return [words, texts], pooled


class TextHANForSequenceClassification(ClassicalClassifier):
    """TextHAN with its head."""

    config_class = TextHANConfig
    body_class = TextHANModel
