"""Layer norms before training: how fast each layer of the base model changes with its input."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.distributed
from torch import Tensor

from temper.backward.rule import UpdateRule
from temper.errors import ModelError
from temper.functional.smoothness import Strategy, layer_weights, probes, pulled_back, squared_norm
from temper.models.modes import in_mode
from temper.models.network import Network, Parameters
from temper.seeding import Streams, generator
from temper.types import Batch, State, Step

logger = logging.getLogger(__name__)

SATURATED = 0.99


@dataclass(frozen=True)
class LayerNorms(UpdateRule):
    """Keep the weights of a smoothness penalty's layers; it moves no weight of the model.

    ``lambda_l`` follows from ``s_l``, the mean over examples of ``||J_l||_F^2`` of the base model
    in evaluation mode, measured once. Both stay in the state, so that checkpoints hold them.

    Args:
        strategy: How norms become weights; ``uniform`` needs no measurement.
        temperature: Of the strategy ``log``.
        rows: How many rows they are measured on, >= 1.
        projections: Probes a row and layer, >= 1.
        twice: Whether the penalty will differentiate the states twice; a model that has no second
            derivative is then refused before training.

    References:
        Jukic and Snajder, TACL 2025, "normalised" weights and their ablation.
    """

    strategy: Strategy = "log"
    temperature: float = 1.0
    rows: int = 256
    projections: int = 2
    twice: bool = True

    name = "smoothness"
    supports_fsdp = True

    @property
    def calibration_rows(self) -> int:
        """Number of rows to measure on."""
        return 0 if self.strategy == "uniform" else self.rows

    def init(self, params: Parameters) -> State:
        """Return nothing measured; uniform weights are an empty tensor."""
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
        """Measure the norms and weigh the layers.

        Raises:
            ModelError: If the model has no blocks, or a norm is 0 or not finite.
        """
        norms = jacobian_norms(
            network,
            batches,
            projections=self.projections,
            draws=generator(rng.local("layer norms")),
            ranks=step.ranks,
            twice=self.twice,
        )
        if not bool((torch.isfinite(norms) & (norms > 0)).all()):
            raise ModelError(
                f"Every layer's Jacobian norm must be above 0 and finite, got {norms.tolist()}. "
                "Look at the model's weights."
            )
        weights = layer_weights(norms, self.strategy, temperature=self.temperature)
        state["norms"], state["weights"] = norms, weights
        if len(weights) > 1 and float(weights.max()) > SATURATED:
            logger.warning(
                "layers=%r gives %.1f %% of the weight to one of %d layers (number %d); the "
                "others are hardly smoothed. Use 'log' with a higher temperature, or 'uniform'.",
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
    """Estimate the mean over examples of ``||J_l||_F^2`` in evaluation mode.

    Args:
        network: The network; its modules' modes are put back.
        batches: The examples.
        projections: Probes a row and layer.
        draws: Where the probes are drawn from.
        ranks: Processes that measure together.
        twice: Whether the states must have a second derivative later; a model that has none is
            refused here.

    Returns:
        [L], fp64 on the CPU, over the examples of all processes.
    """
    total: Tensor | None = None
    count = 0
    try:
        with in_mode(network.model, training=False):
            for batch in batches:
                device = batch.device
                # The products, too, are taken without a half precision that is on outside.
                with torch.autocast(device.type, enabled=False):
                    found = _of_batch(network, batch, projections, draws, twice=twice)
                total = found if total is None else total + found
                count += batch.size
    finally:
        network.rest()
    if total is None:
        raise ModelError("Norms of layers need at least one row to be measured on, got none.")
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
            found = pulled_back(state, trace.root, probe)
            rows += squared_norm(found, batch.mask).cpu().double()
        sums.append(rows.sum() / projections)
    return torch.stack(sums)
