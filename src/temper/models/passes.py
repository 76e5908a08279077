"""Inputs and records of a forward pass: dropout rates, embeddings, gradient norms."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

SiteKey = tuple[str, int]
"""Name of a dropout site, and number of its call in a forward, from 0 (shared blocks: several)."""


@dataclass(frozen=True)
class DropoutPlan:
    """Dropout rates of the sites in a forward of K passes at once.

    Args:
        seed: Seed of the masks. Pass k at a site draws from (seed, site, k), so K passes at once
            equal K single passes.
        copies: K, how often the batch is repeated.
        first: Number of the first pass; above 0 only if passes are run one by one.
        rates: Site -> rates per example and channel [B, D], or None for the model's own rate. If
            ``rates`` is None, all sites use ``fixed`` or their own rate.
        fixed: One rate per pass, for all sites; K floats.
        only: Sites that the plan applies to; None for all.
    """

    seed: int
    copies: int
    first: int = 0
    rates: dict[SiteKey, Tensor | None] | None = None
    fixed: tuple[float, ...] | None = None
    only: frozenset[SiteKey] | None = None


@dataclass
class Recording:
    """The record of a forward and its backward.

    Args:
        channel_norms: Whether backward records each site's gradient norms by channel, in ``norms``.
        embeddings: The unperturbed, detached embeddings [B, T, D], after the forward.
        shapes: Dropout site -> shape of its output, in forward order.
        norms: Dropout site -> gradient norms [B, D], after the backward.
    """

    channel_norms: bool = False
    embeddings: Tensor | None = None
    shapes: dict[SiteKey, tuple[int, ...]] = field(default_factory=dict)
    norms: dict[SiteKey, Tensor] = field(default_factory=dict)

    def take(self, indices: Tensor) -> Recording:
        """Return the recording of the rows at ``indices`` [b]."""
        embeddings = None if self.embeddings is None else self.embeddings[indices]
        norms = {key: norm[indices] for key, norm in self.norms.items()}
        return replace(self, embeddings=embeddings, norms=norms)
