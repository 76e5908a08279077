"""WiSE-FT: once training is over, the weights go part of the way back to where they began.

``(1 - alpha) * start + alpha * trained`` for all parameters but the head's, which stays as trained:
its start is a random draw.

Source: Wortsman et al., CVPR 2022; for new heads the authors' advice in mlfoundations/wise-ft#8.
Differs: the paper interpolates a zero-shot classifier too, which a fine-tuned encoder has not.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import ClassVar, Self

from pydantic import Field

from temper.backward.rule import InitialWeightsRule, UpdateRule
from temper.methods import Method, Published, register
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


@register(
    "wise_ft",
    summary="Halfway back to the pre-trained weights after training",
    cost="3F",
    memory="one copy of the weights",
    paper="Wortsman et al., CVPR 2022",
    claims="rule: finish",
)
class WiseFT(Method):
    """Settings of WiSE-FT.

    Args:
        alpha: Share of the trained weights, in [0, 1] (the paper: 0.5 where nothing is known); 1 is
            plain fine-tuning, 0 leaves nothing trained but the head.
    """

    PUBLISHED: ClassVar[dict[str, Published]] = {
        "alpha": Published("0.5", "the paper, where nothing is known"),
    }

    PRETRAINED = "goes back to pre-trained weights part of the way"

    alpha: float = Field(default=0.5, ge=0.0, le=1.0)

    def off(self) -> Self:
        """Keep the trained weights."""
        return self._with(alpha=1.0)

    def update(self) -> list[UpdateRule]:
        """Return the update rule."""
        if self.alpha == 1.0:
            return []
        return [Interpolation(alpha=self.alpha)]
