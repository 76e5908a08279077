"""Re-initialized top layers: the top blocks start from random weights.

The top ``layers`` blocks, and layers between them and the head (pooler, last norm), are drawn again
before the first step.

Source: Zhang et al., ICLR 2021, section 5. Differs: docs/methods/reinit.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pydantic import Field

from temper.backward.rule import Parameters, UpdateRule
from temper.errors import ModelError
from temper.methods import Method, register
from temper.methods.bounds import Positive
from temper.seeding import Streams, generator
from temper.types import State


@dataclass(frozen=True)
class TopLayers(UpdateRule):
    """Re-initialize the top ``layers`` blocks and the layers between them and the head.

    Parameters with two or more axes are drawn from ``N(0, std^2)``. Of the one-dimensional ones,
    biases become 0 and weights (of norms) become 1.

    References:
        Zhang et al., ICLR 2021, section 5.
    """

    layers: int = 1
    std: float = 0.02

    name = "top_layers"
    supports_fsdp = True

    def init(self, params: Parameters) -> State:
        blocks = max((params.depths[name] for name in params.blocks), default=0)
        if self.layers > blocks:
            raise ModelError(
                f"{self.layers} blocks are to be re-initialized, but this model has "
                f"{blocks or 'none'} that train. Lower `layers`, or use another method."
            )
        return {}

    def begin_run(self, params: Parameters, state: State, rng: Streams) -> None:
        tensors = params.tensors
        # Shared, so that all ranks draw the same weights.
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


@register(
    "reinit",
    summary="Random initialization of the top blocks",
    cost="3F",
    memory="none",
    paper="Zhang et al., ICLR 2021",
)
class Reinit(Method):
    """Settings of re-initialized top layers."""

    OFF: ClassVar = {"layers": 0}

    PRETRAINED = "re-initializes some of the pre-trained layers"

    layers: int = Field(
        default=1, ge=0, description="Number of re-initialized blocks; 0 is plain fine-tuning."
    )
    std: Positive = Field(default=0.02, description="Standard deviation of the new random weights.")

    def update(self) -> list[UpdateRule]:
        return [TopLayers(self.layers, self.std)] if self.layers else []
