"""Sub-models: K dropout passes in one batched forward, with fixed or adaptive rates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from temper.functional.norms import within_example_rank
from temper.lazy import Tensor
from temper.models.passes import DropoutPlan, Recording, SiteKey

if TYPE_CHECKING:
    from temper.models.network import Network

Adaptive = Literal["uniform", "fixed", "gradient"]

BLOCK_DROPOUT = 0.3
"""Dropout rate for sub-models of a model without dropout, divided by its number of blocks.

It applies to the output of each block, as a decoder has no dropout layers. Because the residual
stream sums the blocks, two passes then differ as much as with 0.1 in all dropout layers, at any
depth (``python -m dev.benchmarks.submodels``).
"""


@dataclass(frozen=True)
class SubModels:
    """Number and dropout rates of sub-models, which are passes with different dropout masks.

    Args:
        passes: Number of passes, K >= 1.
        adaptive: ``uniform``: the model's own rates; see `BLOCK_DROPOUT` for a model without
            dropout. ``fixed``: one of ``rates`` per pass. ``gradient``: a rate per example and
            channel, ``low + (high - low) * rank``. The rank is that of the channel's gradient norm
            in the clean pass, so channels with large gradients are dropped more often.
        low: Smallest adaptive rate, in [0, 1).
        high: Largest adaptive rate, in [low, 1).
        rates: K fixed rates in [0, 1).
        sites: ``all`` dropout layers on hidden states, or only the ``last`` one before the head.

    References:
        UEGR (arXiv 2503.16550), section V-A and Figure 3. Differs: the paper gives no formula; see
        docs/methods/uegr.md.
    """

    passes: int = 2
    adaptive: Adaptive = "uniform"
    low: float = 0.0
    high: float = 0.0
    rates: tuple[float, ...] = ()
    sites: Literal["all", "last"] = "all"

    @property
    def single(self) -> bool:
        """Whether this is one pass at the model's own rates."""
        return self.passes == 1 and self.adaptive == "uniform"

    def plan(self, network: Network, recording: Recording | None, *, seed: int) -> DropoutPlan:
        """Return the dropout plan for a batch that is repeated K times.

        The network must have been probed, so that its dropout layers are known. ``gradient`` needs
        the clean pass's recording after its backward; without it a `ValueError` is raised.
        """
        only = None if self.sites == "all" else frozenset(network.site_keys[-1:])
        fixed = self.rates if self.adaptive == "fixed" else None
        if self.adaptive == "uniform" and self.passes > 1:
            if network.without_dropout:
                fixed, only = self._at_blocks(network)
            else:
                network.expect_dropout()
        rates: dict[SiteKey, Tensor | None] | None = None
        if self.adaptive == "gradient":
            if recording is None:
                raise ValueError(
                    "adaptive='gradient' needs the recording of the clean pass. Pass "
                    "clean_recording=step.clean.recording after its backward."
                )
            rates = {key: self.rate(recording, key) for key in recording.shapes}
        return DropoutPlan(
            seed=seed,
            copies=self.passes,
            rates=rates,
            fixed=fixed,
            only=only,
        )

    def _at_blocks(self, network: Network) -> tuple[tuple[float, ...], frozenset[SiteKey]]:
        """Return rates and sites for a model without dropout, at the outputs of its blocks."""
        rate = BLOCK_DROPOUT / len(network.blocks)
        blocks, where = network.blocks, f"each of its {len(network.blocks)} blocks"
        if self.sites == "last":
            blocks, where = blocks[-1:], "its last block"
        network.warn_once(
            f"The model has no dropout, so its sub-models drop {rate:.2%} of the output of {where}."
        )
        return (rate,) * self.passes, frozenset((name, 0) for name, _ in blocks)

    def rate(self, recording: Recording, key: SiteKey) -> Tensor | None:
        """Return the rates [B, D] of a dropout layer, or None if no gradient reached it."""
        norms = recording.norms.get(key)
        if norms is None:
            return None
        return self.low + (self.high - self.low) * within_example_rank(norms)
