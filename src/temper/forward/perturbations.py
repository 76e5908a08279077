"""Perturbations of the embeddings: noise of a law and size, and the gradient of an attack."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from temper.functional import norms
from temper.lazy import torch
from temper.models.passes import Recording
from temper.seeding import generator
from temper.types import Batch

if TYPE_CHECKING:
    from torch import Tensor

    from temper.forward.step import StepContext
    from temper.models.network import Network, Site


def zeros(network: Network, batch: Batch, *, site: Site = "word") -> Tensor:
    """Return a zero delta [B, T, D] at a site that requires a gradient."""
    shape = (*batch.ids.shape, network.width(batch, site=site))
    return torch.zeros(shape, device=batch.device, dtype=network.delta_dtype, requires_grad=True)


def relative_size(delta: Tensor, embeddings: Tensor, batch: Batch, network: Network) -> Tensor:
    """Return the size of a perturbation relative to the embeddings of the real tokens.

    The result is the scalar ``RMS(delta) / RMS(x)``, the mean over examples. The network stores the
    norms of the first measured perturbation.
    """
    unmoved = norms.size(norms.masked(embeddings, batch.mask), norm="l2").clamp(min=1e-12)
    moved = norms.size(delta.detach(), norm="l2")
    if network.first_norms is None:
        network.first_norms = (moved.mean(), unmoved.mean())
    return (moved / unmoved).mean()


NoiseLaw = Literal["uniform", "normal", "positive"]
NoiseSize = Literal["entry", "length"]


@dataclass(frozen=True)
class Noise:
    """The distribution of noise on the embeddings.

    Args:
        size: Half width of the ``uniform`` law, standard deviation of the ``normal`` one, upper end
            of the ``positive`` one, at least 0.
        law: ``uniform`` on [-1, 1], ``normal``, or ``positive``: uniform on [0, 1] (RoAST).
        per: ``entry``: each entry is drawn at that size. ``length``: divided by sqrt(n D), n the
            real tokens of the example (FreeLB, NEFTune), so that the expected l2 norm of a uniform
            draw is size / sqrt 3 for every length.
        targets: Whether tokens that a language model is to predict move too.
    """

    size: float
    law: NoiseLaw = "uniform"
    per: NoiseSize = "entry"
    site: Site = "word"
    special_tokens: bool = True
    targets: bool = False

    def draw(self, network: Network, batch: Batch, *, seed: int) -> Tensor:
        """Draw noise [B, T, D] in at least fp32, zero at padding.

        References:
            FreeLB (arXiv 1909.11764), Algorithm 1, line 3; NEFTune (arXiv 2310.05914), Algorithm 1.
        """
        width = network.width(batch, site=self.site)
        mask = network.movable(batch, special_tokens=self.special_tokens, targets=self.targets)
        shape = (*batch.ids.shape, width)
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


def gradient_at(step: StepContext, delta: Tensor, *, site: Site) -> tuple[Tensor, Tensor]:
    """Return the gradient of the task loss with respect to delta, not the weights (2F).

    The unperturbed embeddings are returned too; delta and both results are [B, T, D].
    """
    point, recording = delta.detach().requires_grad_(), Recording()
    # One stream for all passes of an attack: they drop the same units and ascend one function.
    logits = step.logits("attack", delta=point, site=site, recording=recording, wrapped=False)
    (gradient,) = torch.autograd.grad(step.task_rows(logits).sum(), point)
    assert recording.embeddings is not None
    return gradient, recording.embeddings
