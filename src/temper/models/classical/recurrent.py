"""Recurrent layers in two directions that no padding reaches, and attention that pools."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn


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
