"""Layers by their depth: lower ones train more slowly, the top ones start anew."""

from __future__ import annotations

from dataclasses import dataclass

from temper.backward.rule import UpdateRule
from temper.errors import ModelError
from temper.models.network import Parameters
from temper.seeding import Streams, generator
from temper.types import State, Step


@dataclass(frozen=True)
class LayerDecay(UpdateRule):
    """Multiply each parameter's learning rate by ``decay^depth``, the head's depth being 0.

    Args:
        decay: In (0, 1].

    References:
        Howard and Ruder, ACL 2018, section 3.2; Clark et al., ICLR 2020, appendix B.
    """

    decay: float = 0.9

    name = "layer_decay"
    supports_fsdp = True

    def learning_rate_scales(
        self, params: Parameters, state: State, step: Step
    ) -> dict[str, float]:
        """Return the factor of each parameter."""
        return {name: self.decay**depth for name, depth in params.depths.items()}


@dataclass(frozen=True)
class TopLayers(UpdateRule):
    """Draw the top blocks, and what stands between them and the head, anew before the first step.

    Matrices and vectors of embeddings are drawn from ``N(0, std^2)``; of one-dimensional parameters
    biases become 0 and weights, which are those of norms, 1.

    Args:
        layers: How many blocks, at least 1.
        std: Standard deviation, above 0.

    References:
        Zhang et al., ICLR 2021, section 5.
    """

    layers: int = 1
    std: float = 0.02

    name = "top_layers"
    supports_fsdp = True

    def init(self, params: Parameters) -> State:
        """Check that there are so many blocks.

        Raises:
            ModelError: If there are not.
        """
        blocks = max((params.depths[name] for name in params.blocks), default=0)
        if self.layers > blocks:
            raise ModelError(
                f"{self.layers} of the blocks are to start anew, and this model has "
                f"{blocks or 'none'} that train. Lower `layers`, or leave the method out."
            )
        return {}

    def begin_run(self, params: Parameters, state: State, rng: Streams) -> None:
        """Draw them, alike on all ranks."""
        tensors = params.tensors
        draws = generator(rng.shared("top layers"), next(iter(tensors.values())).device)
        for name, depth in params.depths.items():
            if not 1 <= depth <= self.layers:
                continue
            if tensors[name].dim() > 1:
                drawn = tensors[name].new_empty(params.shape(name, tensors[name]))
                drawn.normal_(0.0, self.std, generator=draws)
                tensors[name].copy_(params.part(name, drawn))
            else:
                tensors[name].fill_(0.0 if name.endswith("bias") else 1.0)
