"""Sub-models: K passes under dropout in one batched forward, at rates that may follow gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from temper.functional.norms import within_example_rank
from temper.models.passes import DropoutPlan

if TYPE_CHECKING:
    from torch import Tensor

    from temper.models.network import Network
    from temper.models.passes import Recording, SiteKey

Adaptive = Literal["uniform", "fixed", "gradient"]

BLOCK_DROPOUT = 0.3
"""Rate of sub-models at the blocks' outputs, over the number of blocks, where no dropout is.

A decoder adds its blocks up, so that what is dropped behind each of them adds up too: two passes
are as far apart as at 0.1 in all dropout layers, however deep it is (``python -m
dev.benchmarks.submodels``).
"""


@dataclass(frozen=True)
class SubModels:
    """How many sub-models there are and at which rates they drop.

    Args:
        passes: K, at least 1.
        adaptive: ``uniform``: the model's own rates; of several passes of a model without any
            dropout, `BLOCK_DROPOUT` over the number of blocks at their outputs. ``fixed``:
            ``rates``, one a pass.
            ``gradient``: a rate per example and channel, ``low + (high - low) * rank`` of the
            clean pass's gradient norm at the site, so that units with large gradients are
            suppressed.
        low: Smallest adaptive rate, in [0, 1).
        high: Largest adaptive rate, in [low, 1).
        rates: K fixed rates in [0, 1).
        sites: ``all`` dropout layers that a forward calls on hidden states, or only the ``last``
            before the head.

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

    @property
    def follows_gradient(self) -> bool:
        """Whether the clean pass must record gradients at the sites."""
        return self.adaptive == "gradient"

    def plan(self, network: Network, recording: Recording | None, *, seed: int) -> DropoutPlan:
        """Make the dropout plan of a batch that is stacked K times.

        The network must have been probed, so that its sites are known. ``gradient`` needs the
        recording of the clean pass after its backward, else a `ValueError` is raised.
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
                raise ValueError("adaptive='gradient' needs the recording of the clean pass.")
            rates = {key: self.rate(recording, key) for key in recording.sites.shapes}
        return DropoutPlan(
            seed=seed,
            copies=self.passes,
            rates=rates,
            fixed=fixed,
            only=only,
        )

    def _at_blocks(self, network: Network) -> tuple[tuple[float, ...], frozenset[SiteKey]]:
        """Return rates and sites of passes that differ by dropout, for a model that has none."""
        rate = BLOCK_DROPOUT / len(network.blocks)
        blocks, where = network.blocks, f"each of its {len(network.blocks)} blocks"
        if self.sites == "last":
            blocks, where = blocks[-1:], "its last block"
        network.warn_once(
            f"The model has no dropout, so its sub-models drop {rate:.2%} of the output of {where}."
        )
        return (rate,) * self.passes, frozenset((name, 0) for name, _ in blocks)

    def rate(self, recording: Recording, key: SiteKey) -> Tensor | None:
        """Return a site's rates [B, D], or None if no gradient reached it."""
        norms = recording.sites.channel_norms.get(key)
        if norms is None:
            return None
        return self.low + (self.high - self.low) * within_example_rank(norms)
