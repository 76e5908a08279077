"""Layer-wise learning rate decay: lower layers have smaller learning rates.

The learning rate of a layer is ``rate * decay^depth``. The head has depth 0. The top block, and
layers between it and the head, have depth 1, and so on. The embeddings are one deeper than the
lowest block.

Source: discriminative fine-tuning, Howard and Ruder, ACL 2018 (1/2.6 per layer); ELECTRA, Clark et
al., ICLR 2020 (0.8 and 0.9); Sun et al., CCL 2019 (0.95). Differs: docs/methods/layer_decay.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pydantic import Field

from temper.backward.rule import Parameters, UpdateRule
from temper.methods import Method, register
from temper.methods.bounds import PositiveFraction
from temper.types import State, Step


@dataclass(frozen=True)
class LayerDecay(UpdateRule):
    """Multiply each parameter's learning rate by ``decay^depth``; the head has depth 0.

    References:
        Howard and Ruder, ACL 2018, section 3.2; Clark et al., ICLR 2020, appendix B.
    """

    decay: float = 0.9

    name = "layer_decay"
    supports_fsdp = True

    def learning_rate_scales(
        self, params: Parameters, state: State, step: Step
    ) -> dict[str, float]:
        return {name: self.decay**depth for name, depth in params.depths.items()}


@register(
    "layer_decay",
    summary="Lower learning rates for lower layers",
    cost="3F",
    memory="none",
    paper="Howard and Ruder, ACL 2018",
)
class LayerDecayConfig(Method):
    """Settings of layer-wise learning rates."""

    OFF: ClassVar = {"decay": 1.0}

    PRETRAINED = "trains pre-trained layers more slowly than the head"

    decay: PositiveFraction = Field(
        default=0.9,
        description="Factor between the learning rates of a layer and the next lower one; 1 is "
        "plain fine-tuning.",
    )

    def update(self) -> list[UpdateRule]:
        return [LayerDecay(self.decay)] if self.decay != 1.0 else []
