"""WiSE-FT: after training, interpolate between the initial and the trained weights.

``(1 - alpha) * start + alpha * trained`` for all parameters except the head, whose initial weights
are random.

Source: Wortsman et al., CVPR 2022; for new heads the authors' advice in mlfoundations/wise-ft#8.
Differs: the paper also interpolates its zero-shot classifier, which a fine-tuned encoder does not
have.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import ClassVar

from pydantic import Field

from temper.backward.rule import InitialWeightsRule, Parameters, UpdateRule
from temper.methods import Method, register
from temper.methods.bounds import Fraction
from temper.types import State

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Interpolation(InitialWeightsRule):
    """Set the final weights to ``(1 - alpha) * start + alpha * trained``, except the head's.

    References:
        Wortsman et al., CVPR 2022, Eq. 1.
    """

    alpha: float = 0.5

    name = "interpolation"
    supports_fsdp = True
    conflicts = frozenset({"on_train_end"})

    def init(self, params: Parameters) -> State:
        if not params.head:
            logger.warning(
                "In this model no trainable head is found, so a new head would be interpolated "
                "with its random initial weights like all other weights."
            )
        return {**super().init(params), "finished": False}

    def on_train_end(self, params: Parameters, state: State) -> None:
        if state["finished"]:
            return
        for name, tensor in params.tensors.items():
            if name not in params.head:
                tensor.copy_(params.start[name].lerp(tensor, self.alpha))
        state["finished"] = True


@register(
    "wise_ft",
    summary="Interpolation of the initial and the fine-tuned weights, except the head's",
    cost="3F",
    memory="one copy of the weights",
    paper="Wortsman et al., CVPR 2022",
)
class WiseFT(Method):
    """Settings of WiSE-FT."""

    OFF: ClassVar = {"alpha": 1.0}

    PRETRAINED = "interpolates with the pre-trained weights"

    alpha: Fraction = Field(
        default=0.5,
        description="Weight of the trained weights (the paper's default: 0.5). 1 is plain "
        "fine-tuning; 0 keeps only the head as trained.",
    )

    def update(self) -> list[UpdateRule]:
        return [Interpolation(self.alpha)] if self.alpha != 1.0 else []
