"""WiSE-FT: the final weights are interpolated with the initial ones."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from temper.backward.rule import InitialWeightsRule
from temper.models.network import Parameters
from temper.types import State

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Interpolation(InitialWeightsRule):
    """Set weights to ``(1 - alpha) * start + alpha * trained`` at the end; the head stays trained.

    Args:
        alpha: Share of the trained weights, in [0, 1].

    References:
        Wortsman et al., CVPR 2022, Eq. 1.
    """

    alpha: float = 0.5

    name = "interpolation"
    supports_fsdp = True
    conflicts = frozenset({"finish"})

    def init(self, params: Parameters) -> State:
        """Start unfinished."""
        if not params.head:
            logger.warning(
                "In this model no trainable head is found, so that a head drawn anew would be "
                "interpolated with its first draw like all other weights."
            )
        return {**super().init(params), "finished": False}

    def on_train_end(self, params: Parameters, state: State) -> None:
        """Interpolate, once."""
        if state["finished"]:
            return
        for name, tensor in params.tensors.items():
            if name not in params.head:
                tensor.copy_(params.start[name].lerp(tensor, self.alpha))
        state["finished"] = True
