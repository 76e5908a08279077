"""Perturbation: a budget, a geometry and a place, and the step that a gradient makes of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from temper.functional.norms import Norm, ascent_step, project, scoped_norm, vocabulary_gradient
from temper.functional.precision import at_least_single
from temper.models.network import Network, Site
from temper.types import Batch

PerturbationScope = Literal["example", "token", "batch", "matrix"]


@dataclass(frozen=True)
class Perturbation:
    """Say how embeddings may be moved.

    Args:
        epsilon: Budget, at least 0: absolute, or a share of the embeddings' own norm.
        relative: Whether epsilon is a share of the norm that the embeddings have in the same scope.
        norm: ``l2``; ``linf`` (largest entry epsilon, direction kept: RoAST); ``sign`` (FGSM).
        scope: What shares the budget: an example, a token, the batch, or the embedding matrix
            (R-AT as released: every occurrence of a word moves alike).
        site: ``word`` embeddings, or the blocks' input (``output`` of the embeddings block).
        special_tokens: Whether special tokens move too.
        steps: Ascent steps; more than one is PGD, projected to the budget.
        step_size: Size of each of several steps as a share of epsilon.
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
        """Return a zero delta [B, T, D] that wants a gradient."""
        shape = (*batch.inputs["input_ids"].shape, network.width(batch, site=self.site))
        return torch.zeros(
            shape, device=batch.device, dtype=network.delta_dtype, requires_grad=True
        )

    def first(self, gradient: Tensor, embeddings: Tensor, network: Network, batch: Batch) -> Tensor:
        """Step from the clean point: the whole budget with one step, a share of it with several.

        Args:
            gradient: Of the loss by delta [B, T, D].
            embeddings: Unperturbed [B, T, D].
            network: The attacked network.
            batch: Its batch.

        Returns:
            delta [B, T, D], detached; zero at padding.

        References:
            UEGR (arXiv 2503.16550), Eq. 2.
        """
        share = 1.0 if self.steps == 1 else self.step_size
        mask = network.movable(batch, special_tokens=self.special_tokens)
        own = embeddings if self.relative else None
        if self.scope == "matrix":
            moving = torch.where(mask.unsqueeze(-1), gradient, 0.0)
            looked_up, size = vocabulary_gradient(
                moving, batch.inputs["input_ids"], vocabulary=network.vocabulary
            )
            usable = (size > 0) & torch.isfinite(size)
            step = looked_up / torch.where(usable, size, 1.0) * (self.epsilon * share)
            return torch.where(usable & mask.unsqueeze(-1), step, 0.0)
        return ascent_step(
            gradient,
            mask,
            epsilon=self.epsilon * share,
            norm=self.norm,
            scope=self.scope,
            embeddings=own,
        )

    def further(
        self, delta: Tensor, gradient: Tensor, embeddings: Tensor, network: Network, batch: Batch
    ) -> Tensor:
        """Step again from a delta and project to the budget (PGD); shapes as in ``first``."""
        delta = delta.detach()
        if self.scope == "matrix":
            return delta + self.first(gradient, embeddings, network, batch)
        mask = network.movable(batch, special_tokens=self.special_tokens)
        moved = delta + self.first(gradient, embeddings, network, batch)
        budget = torch.tensor(self.epsilon, device=delta.device, dtype=delta.dtype)
        if self.relative:
            own = torch.where(mask.unsqueeze(-1), at_least_single(embeddings), 0.0)
            budget = budget * scoped_norm(own, norm=self.norm, scope=self.scope)
        return project(moved, mask, budget=budget, norm=self.norm, scope=self.scope)


def relative_size(delta: Tensor, embeddings: Tensor, batch: Batch, network: Network) -> Tensor:
    """Measure a perturbation against the embeddings over the real tokens of each example.

    Args:
        delta: [B, T, D], zero at padding.
        embeddings: Unperturbed [B, T, D].
        batch: Its batch.
        network: Keeps the norms of the first perturbation that is measured.

    Returns:
        ``RMS(delta) / RMS(x)``, the mean over examples, a scalar.
    """
    inside = torch.where(batch.mask.unsqueeze(-1), at_least_single(embeddings.detach()), 0.0)
    own = scoped_norm(inside, norm="l2", scope="example").clamp(min=1e-12)
    moved = scoped_norm(delta.detach(), norm="l2", scope="example")
    if network.first_norms is None:
        network.first_norms = (moved.mean(), own.mean())
    return (moved / own).mean()
