"""Perturbations of the embeddings: noise of a law and size, and the step that a gradient makes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from temper.functional import norms
from temper.functional.norms import Norm
from temper.lazy import torch
from temper.models.passes import Recording
from temper.seeding import generator
from temper.types import Batch

if TYPE_CHECKING:
    from torch import Tensor

    from temper.forward.step import StepContext
    from temper.models.network import Network, Site

PerturbationScope = Literal["example", "token", "batch", "matrix"]


@dataclass(frozen=True)
class Perturbation:
    """The geometry of a perturbation of the embeddings, and its ascent steps.

    Args:
        epsilon: Budget, at least 0: absolute, or a fraction of the embeddings' norm.
        relative: Whether epsilon is a fraction of the norm of the embeddings in the same scope.
        norm: ``l2``; ``linf`` (FGSM); ``linf_scaled`` (largest entry epsilon, direction kept:
            RoAST).
        scope: Scope of the budget: an example, a token, the batch, or the embedding matrix
            (R-AT as released: every occurrence of a word moves in the same way).
        site: ``word`` embeddings, or the blocks' input (``output`` of the embeddings block).
        steps: Ascent steps; more than one is PGD, projected to the budget.
        step_size: Size of each of several steps as a fraction of epsilon.
    """

    epsilon: float
    relative: bool = False
    norm: Norm = "l2"
    scope: PerturbationScope = "example"
    site: Site = "word"
    special_tokens: bool = True
    steps: int = 1
    step_size: float = 0.5

    def zeros(self, network: Network, batch: Batch) -> Tensor:
        return zeros(network, batch, site=self.site)

    def first(self, gradient: Tensor, embeddings: Tensor, network: Network, batch: Batch) -> Tensor:
        """Take the first step: the whole budget with one step, a fraction of it with several.

        The gradient with respect to delta, the unperturbed embeddings and the result are [B, T, D];
        the result is detached, and zero at padding.

        References:
            UEGR (arXiv 2503.16550), Eq. 2.
        """
        fraction = 1.0 if self.steps == 1 else self.step_size
        mask = network.movable(batch, special_tokens=self.special_tokens)
        gradient = norms.masked(gradient, mask)
        if self.scope == "matrix":
            looked_up, size = norms.vocabulary_gradient(
                gradient, batch.ids, vocabulary=network.vocabulary
            )
            usable = (size > 0) & torch.isfinite(size)
            step = looked_up / torch.where(usable, size, 1.0) * (self.epsilon * fraction)
            return torch.where(usable & mask.unsqueeze(-1), step, 0.0)
        direction = norms.steepest(gradient, norm=self.norm, scope=self.scope)
        return direction * self.radius(embeddings, mask, fraction=fraction)

    def further(
        self, delta: Tensor, gradient: Tensor, embeddings: Tensor, network: Network, batch: Batch
    ) -> Tensor:
        """Take another step from delta and project to the budget (PGD); shapes as in ``first``."""
        moved = delta.detach() + self.first(gradient, embeddings, network, batch)
        if self.scope == "matrix":
            return moved
        mask = network.movable(batch, special_tokens=self.special_tokens)
        radius = self.radius(embeddings, mask)
        return norms.project(moved, radius, norm=self.norm, scope=self.scope)

    def radius(self, embeddings: Tensor, mask: Tensor, *, fraction: float = 1.0) -> Tensor:
        """Return a fraction of the budget, one number or one per scope.

        The embeddings [B, T, D] are unperturbed; ``mask`` [B, T] has the tokens that may move.
        """
        embeddings = norms.masked(embeddings, mask)
        radius = embeddings.new_tensor(self.epsilon * fraction)
        if not self.relative:
            return radius
        assert self.scope != "matrix"
        return radius * norms.size(embeddings, norm=self.norm, scope=self.scope)


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


def gradient_at(
    step: StepContext,
    perturbation: Perturbation,
    delta: Tensor | None,
) -> tuple[Tensor, Recording]:
    """Return the gradient of the task loss with respect to delta, not the weights (2F).

    ``delta`` is [B, T, D], or None for zero. The gradient has its shape.
    """
    if delta is None:
        delta = perturbation.zeros(step.network, step.batch)
    point = delta.detach().requires_grad_()
    recording = Recording()
    # One stream for all passes of an attack: they drop the same units and ascend one function.
    logits = step.logits(
        "attack", delta=point, site=perturbation.site, recording=recording, wrapped=False
    )
    (gradient,) = torch.autograd.grad(step.task_rows(logits).sum(), point)
    return gradient, recording
