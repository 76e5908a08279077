"""Noise on embeddings: its law, its size and where it falls."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from temper.models.network import Network, Site
from temper.seeding import generator
from temper.types import Batch

NoiseLaw = Literal["uniform", "normal", "positive"]
NoiseSize = Literal["entry", "length"]


@dataclass(frozen=True)
class Noise:
    """Say how embeddings are shaken.

    Args:
        size: Half width of the ``uniform`` law, standard deviation of the ``normal`` one, upper end
            of the ``positive`` one, at least 0.
        law: ``uniform`` on [-1, 1], ``normal``, or ``positive``: uniform on [0, 1] (RoAST).
        per: ``entry``: each entry is drawn at that size. ``length``: divided by sqrt(n D), n the
            real tokens of the example (FreeLB, NEFTune), so that the expected l2 norm of a uniform
            draw is size / sqrt 3 whatever the length.
        site: ``word`` embeddings or the ``output`` of the embeddings block.
        special_tokens: Whether special tokens move too.
    """

    size: float
    law: NoiseLaw = "uniform"
    per: NoiseSize = "entry"
    site: Site = "word"
    special_tokens: bool = True

    def draw(self, network: Network, batch: Batch, *, seed: int) -> Tensor:
        """Draw noise for a batch.

        Args:
            network: The network whose embeddings are shaken.
            batch: B rows.
            seed: Where it comes from.

        Returns:
            [B, T, D] in at least fp32, zero at padding.

        References:
            FreeLB (arXiv 1909.11764), Algorithm 1, line 3; NEFTune (arXiv 2310.05914), Algorithm 1.
        """
        width = network.width(batch, site=self.site)
        mask = network.movable(batch, special_tokens=self.special_tokens)
        shape = (*batch.inputs["input_ids"].shape, width)
        draws = generator(seed, batch.device)
        values = torch.empty(shape, device=batch.device, dtype=network.delta_dtype)
        if self.law == "normal":
            values.normal_(generator=draws)
        else:
            values.uniform_(0.0 if self.law == "positive" else -1.0, 1.0, generator=draws)
        values *= self.size
        if self.per == "length":
            values /= batch.mask.sum(1).clamp(min=1).sqrt().view(-1, 1, 1) * math.sqrt(width)
        return torch.where(mask.unsqueeze(-1), values, 0.0)
