"""A network whose derivatives by the words can be worked out by hand."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Layer(nn.Module):
    """A function of the words [B, T, 2] whose value stands at every position.

    ``quadratic`` is ``(2 sum_t x_t0^2, 3 sum_t x_t1^2)``, ``linear`` is ``sum_t x_t``, ``mixed`` is
    ``(s, 2 s)`` with s the sum of all squares, ``constant`` is 1, ``steep`` has no slope at all.
    """

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        # Two matrices make it a block as any other.
        self.first, self.second = nn.Linear(1, 1), nn.Linear(1, 1)

    def forward(self, words: Tensor) -> Tensor:
        squares = words.square().sum(1, keepdim=True)
        made = {
            "quadratic": squares * torch.tensor([2.0, 3.0]),
            "linear": words.sum(1, keepdim=True),
            "mixed": squares.sum(2, keepdim=True) * torch.tensor([1.0, 2.0]),
            "constant": torch.ones(len(words), 1, 2),
            "steep": (words - words.detach()).square().sum((1, 2), keepdim=True).sqrt(),
        }
        return made[self.kind].to(words.dtype).expand_as(words)


class ByHand(nn.Module):
    """A network of such layers that also reads its padding; its logits are the last state."""

    def __init__(self, *kinds: str) -> None:
        super().__init__()
        self.words = nn.Embedding(100, 2)
        self.alone = Layer("quadratic")
        if kinds:
            self.layers = nn.ModuleList([Layer(kind) for kind in kinds])

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        words = self.words(input_ids)
        states = [layer(words) for layer in getattr(self, "layers", [self.alone])]
        logits: Tensor = states[-1][:, 0]
        return logits
