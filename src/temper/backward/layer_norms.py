"""Layer norms before training: how fast each layer of the base model changes with its input."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from temper.backward.rule import UpdateRule
from temper.errors import ModelError
from temper.functional.smoothness import (
    Strategy,
    layer_weights,
    probes,
    squared_norm,
    vector_jacobian_product,
)
from temper.lazy import torch
from temper.models.modes import in_mode
from temper.models.shards import keep_whole
from temper.seeding import Streams, generator
from temper.types import Batch, State, Step

if TYPE_CHECKING:
    from torch import Tensor

    from temper.models.network import Network, Parameters

logger = logging.getLogger(__name__)

SATURATED = 0.99
PROJECTIONS = 2
"""Probes per row and layer."""


@dataclass(frozen=True)
class LayerNorms(UpdateRule):
    """Keep the layer weights of a smoothness penalty; the model's weights do not change.

    ``lambda_l`` follows from ``s_l``, the mean over examples of ``||J_l||_F^2`` of the base model
    in evaluation mode, measured once. Both are kept in the state and saved in checkpoints.

    Args:
        strategy: Formula of the weights; ``uniform`` needs no measurement.
        rows: Number of rows to measure on, >= 1.
        twice: Whether the penalty will differentiate the states twice; a model without a second
            derivative then raises before training.

    References:
        Jukic and Snajder, TACL 2025, Eqs. 2 and 5, and the ablation in section 7.
    """

    strategy: Strategy = "log"
    temperature: float = 1.0
    rows: int = 256
    twice: bool = True

    name = "smoothness"
    supports_fsdp = True

    @property
    def calibration_rows(self) -> int:
        return 0 if self.strategy == "uniform" else self.rows

    def init(self, params: Parameters) -> State:
        # Uniform weights, which are not measured, are an empty tensor.
        return {"weights": torch.empty(0)} if self.strategy == "uniform" else {}

    def calibrate(
        self,
        network: Network,
        batches: Iterable[Batch],
        params: Parameters,
        state: State,
        step: Step,
        rng: Streams,
    ) -> None:
        """Measure the norms and compute the layer weights."""
        norms = jacobian_norms(
            network,
            batches,
            projections=PROJECTIONS,
            draws=generator(rng.local("layer norms")),
            ranks=step.ranks,
            twice=self.twice,
        )
        if not bool((torch.isfinite(norms) & (norms > 0)).all()):
            raise ModelError(
                f"Every layer's Jacobian norm must be above 0 and finite, got {norms.tolist()}. "
                "Check the model's weights."
            )
        weights = layer_weights(norms, self.strategy, temperature=self.temperature)
        state["norms"], state["weights"] = norms, weights
        if len(weights) > 1 and float(weights.max()) > SATURATED:
            logger.warning(
                "layers=%r puts %.1f%% of the weight on one of %d layers (number %d); the others "
                "are hardly smoothed. Use 'log' with a higher temperature, or 'uniform'.",
                self.strategy,
                100 * float(weights.max()),
                len(weights),
                int(weights.argmax()),
            )


def jacobian_norms(
    network: Network,
    batches: Iterable[Batch],
    *,
    projections: int,
    draws: torch.Generator,
    ranks: int = 1,
    twice: bool = False,
) -> Tensor:
    """Estimate the mean over examples of ``||J_l||_F^2`` in evaluation mode (Eq. 2).

    ``twice`` raises if the states have no second derivative. The result is [L], fp64 on the CPU,
    over the examples of all ``ranks`` processes, with ``projections`` probes per row and layer.
    """
    # Several derivatives of one graph read weights after FSDP would have freed them.
    keep_whole(network.model)
    total: Tensor | None = None
    count = 0
    try:
        with in_mode(network.model, training=False):
            for batch in batches:
                device = batch.device
                # The products are computed without an enclosing half-precision autocast, too.
                with torch.autocast(device.type, enabled=False):
                    norms = _of_batch(network, batch, projections, draws, twice=twice)
                total = norms if total is None else total + norms
                count += batch.size
    finally:
        network.reset()
    if total is None:
        raise ModelError("Layer norms are measured on at least one row, got none.")
    sums = torch.cat([total, total.new_tensor([count])])
    if ranks > 1:
        sums = sums.to(device)
        torch.distributed.all_reduce(sums)
    return (sums[:-1] / sums[-1]).cpu()


def _of_batch(
    network: Network, batch: Batch, projections: int, draws: torch.Generator, *, twice: bool
) -> Tensor:
    with torch.enable_grad(), network.tracer(batch).tracing(twice=twice) as trace:
        trace.logits = network.logits(batch, wrapped=False)
    sums = []
    for state in trace.at_head():
        rows = torch.zeros(batch.size, dtype=torch.float64)
        for _ in range(projections):
            probe = probes((batch.size, state.shape[-1]), "signs", draws, like=state)
            product = vector_jacobian_product(state, trace.root, probe)  # v^T J_l, [B, T, E]
            rows += squared_norm(product, batch.mask).cpu().double()
        sums.append(rows.sum() / projections)
    return torch.stack(sums)
