"""Inputs and records of one forward pass: dropout rates, embeddings, gradients."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

SiteKey = tuple[str, int]
"""A site's name and the number of its call in one forward (shared blocks have several)."""


@dataclass(frozen=True)
class DropoutPlan:
    """Dropout rates of the sites in a batched forward of K passes.

    Args:
        seed: Seed of the masks; pass k at a site draws from (seed, site, k), so that K passes in
            one forward equal K forwards.
        copies: K, the number of copies of the batch.
        first: Number of the first pass, 0 unless the passes are run one by one.
        rates: A rate per site, example and channel [B, D]; a site that maps to None, and every
            site where ``rates`` itself is None, keeps the model's own rate.
        fixed: One rate for each pass, the same at all sites; K floats.
        only: Sites that the plan applies to; None for all.
    """

    seed: int
    copies: int
    first: int = 0
    rates: dict[SiteKey, Tensor | None] | None = None
    fixed: tuple[float, ...] | None = None
    only: frozenset[SiteKey] | None = None


@dataclass
class SiteLog:
    """Shapes of the sites in the order of one forward, and gradients by channel after backward."""

    shapes: dict[SiteKey, tuple[int, ...]] = field(default_factory=dict)
    channel_norms: dict[SiteKey, Tensor] = field(default_factory=dict)


@dataclass
class Recording:
    """Record of a forward and its backward.

    Args:
        channel_norms: Whether to record the gradient norm of every dropout site by channel (filled
            by backward).

    After the forward ``embeddings`` [B, T, D] has the unperturbed, detached embeddings at the
    perturbed module.
    """

    channel_norms: bool = False
    embeddings: Tensor | None = None
    sites: SiteLog = field(default_factory=SiteLog)

    def take(self, indices: Tensor) -> Recording:
        """Return the record of the rows at the indices [b]."""
        embeddings = None if self.embeddings is None else self.embeddings[indices]
        norms = {key: each[indices] for key, each in self.sites.channel_norms.items()}
        return replace(self, embeddings=embeddings, sites=replace(self.sites, channel_norms=norms))
