"""Jacobian norms of the base model's layers, which weight the layers of a smoothness penalty."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass

from temper.backward.rule import Network, Parameters, UpdateRule
from temper.errors import ModelError
from temper.functional.smoothness import (
    Strategy,
    layer_weights,
    probes,
    squared_norm,
    vector_jacobian_product,
)
from temper.lazy import Tensor, torch
from temper.models.modes import in_mode
from temper.models.shards import keep_whole
from temper.seeding import Streams, generator
from temper.types import Batch, State, Step

logger = logging.getLogger(__name__)

SATURATED = 0.99
PROJECTIONS = 2
"""Number of random probes per row and layer."""


@dataclass(frozen=True)
class LayerJacobians(UpdateRule):
    """Measure the weights lambda_l of the layers in a smoothness penalty, once before training.

    They follow from ``s_l``, the mean of ``||J_l||_F^2`` over examples in evaluation mode, with J_l
    the Jacobian of layer l by the word embeddings. Checkpoints store both. The rule changes neither
    gradients nor the model.

    Args:
        strategy: Formula of lambda_l, see `layer_weights`; ``uniform`` needs no measurement.
        temperature: Temperature of the strategy ``log``.
        rows: Number of rows to measure on, >= 1.
        twice: Whether the penalty needs second derivatives. If the model has none, an error is
            raised before training.

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
                "The Jacobian norm of every layer must be above 0 and finite, got "
                f"{norms.tolist()}. Check the model's weights, or set layers='uniform'."
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
    """Estimate the mean of ``||J_l||_F^2`` over examples for each layer l, [L] fp64 on the CPU.

    J_l is the Jacobian of layer l's state by the word embeddings (Eq. 2). The model is in
    evaluation mode. The mean is over the examples of all ``ranks`` processes, with ``projections``
    probes per row and layer. With ``twice`` it raises if the states have no second derivative.
    """
    # Several backwards through one graph need the weights longer than FSDP keeps them.
    keep_whole(network.model)
    total: Tensor | None = None
    count = 0
    try:
        with in_mode(network.model, training=False):
            for batch in batches:
                device = batch.device
                # Products must be in full precision, even inside a half-precision autocast.
                with torch.autocast(device.type, enabled=False):
                    norms = _of_batch(network, batch, projections, draws, twice=twice)
                total = norms if total is None else total + norms
                count += batch.size
    finally:
        network.reset()
    if total is None:
        raise ModelError(
            "The Jacobian norms of the layers need at least one row, got none. Pass training "
            "batches."
        )
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
