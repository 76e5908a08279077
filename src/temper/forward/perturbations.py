"""Perturbations of the embeddings: noise, and the gradient for an attack."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from temper.functional import norms
from temper.lazy import Tensor, torch
from temper.models.passes import Recording
from temper.seeding import generator
from temper.types import Batch

if TYPE_CHECKING:
    from temper.forward.step import StepContext
    from temper.models.network import Network, Site


def zeros(network: Network, batch: Batch, *, site: Site = "word") -> Tensor:
    """Return a zero perturbation [B, T, D] for a site, which requires a gradient."""
    shape = (*batch.ids.shape, network.width(batch, site=site))
    return torch.zeros(shape, device=batch.device, dtype=network.delta_dtype, requires_grad=True)


def relative_size(delta: Tensor, embeddings: Tensor, batch: Batch, network: Network) -> Tensor:
    """Return the mean over examples of ``||delta|| / ||x||``, with x the embeddings of real tokens.

    Norms are l2, over an example. The network stores both norms of the first call, for a warning.
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
    """Random noise on the embeddings.

    Args:
        size: s >= 0, see ``law``.
        law: ``uniform`` on [-s, s], ``normal`` with standard deviation s, or ``positive``: uniform
            on [0, s] (RoAST).
        per: ``entry`` uses s as it is. ``length`` divides it by sqrt(n D), with n real tokens in
            the example (FreeLB, NEFTune). So the l2 norm of uniform noise is about s / sqrt 3 for
            every n.
        site: Where the noise is added.
        special_tokens: Whether special tokens get noise.
        targets: Whether the target tokens of a language model get noise.
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


def gradient_at(
    step: StepContext,
    delta: Tensor,
    *,
    site: Site,
    stream: str = "attack",
    loss: Callable[[Tensor], Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the gradient of a loss with respect to delta, and the unperturbed embeddings.

    Both are [B, T, D], as delta is. The weights get no gradient. It costs 2F (F: a forward pass).
    ``loss`` maps logits [B, U, C] to a scalar; None is the task loss. All passes of an attack share
    a ``stream``, so they use the same dropout and ascend one function.
    """
    point, recording = delta.detach().requires_grad_(), Recording()
    logits = step.logits(stream, delta=point, site=site, recording=recording, wrapped=False)
    value = step.task_rows(logits).sum() if loss is None else loss(logits)
    (gradient,) = torch.autograd.grad(value, point)
    assert recording.embeddings is not None
    return gradient, recording.embeddings
