"""Re-initialised top layers: the top blocks start from random weights, not pre-trained ones.

The top ``layers`` blocks, and what stands between them and the head (a pooler, a last norm), are
drawn anew before the first step, as the model's own initialisation does.

Source: Zhang et al., ICLR 2021, section 5. Differs: docs/methods/reinit.md.
"""

from __future__ import annotations

from typing import ClassVar, Self

from pydantic import Field

from temper.backward.layers import TopLayers
from temper.backward.rule import UpdateRule
from temper.methods import Method, Published, register


@register(
    "reinit",
    summary="The top blocks start from random weights",
    cost="3F",
    memory="none",
    paper="Zhang et al., ICLR 2021",
)
class Reinit(Method):
    """Settings of re-initialised top layers.

    Args:
        layers: How many blocks start anew, at least 0; 0 is plain fine-tuning.
        std: Standard deviation of the drawn weights, above 0.
    """

    PUBLISHED: ClassVar[dict[str, Published]] = {
        "layers": Published("1 to 6 of 24", "Section 5, chosen on dev rows"),
        "std": Published("0.02", "BERT's initialisation"),
    }

    PRETRAINED = "draws some of the pre-trained layers anew"

    layers: int = Field(default=1, ge=0)
    std: float = Field(default=0.02, gt=0.0, allow_inf_nan=False)

    def off(self) -> Self:
        """Start from the weights as they are."""
        return self._with(layers=0)

    def update(self) -> list[UpdateRule]:
        """Return the update rule."""
        if not self.layers:
            return []
        return [TopLayers(layers=self.layers, std=self.std)]
