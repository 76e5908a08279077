"""W-Cons (L2-SP): plain fine-tuning held near the pre-trained weights.

``L = CE(x) + weight * sum ||w - w_start||^2`` over all parameters but LayerNorm and biases.

Source: Li et al., ICML 2018 (arXiv 1802.01483), as the authors of RoAST (arXiv 2312.04032) run it.
Differs: L2-SP writes ``alpha/2`` and pulls the new classifier to 0 with a factor of its own; as
RoAST's authors ran it, the classifier is held to what was drawn, with the same factor.
"""

from __future__ import annotations

from typing import Self

from pydantic import Field, FiniteFloat

from temper.backward.anchoring import Anchor
from temper.backward.rule import UpdateRule
from temper.methods import Method, register


@register(
    "w_cons",
    summary="Weights held near where they started",
    cost="3F",
    memory="one copy of the weights",
    paper="Li et al., ICML 2018",
)
class WCons(Method):
    """Settings of W-Cons.

    Args:
        weight: Weight of the squared distance (chosen here and not tuned: the papers select it by
            task; L2-SP's alpha is twice ours); 0 is plain fine-tuning.
    """

    PRETRAINED = "holds the weights near pre-trained ones"

    weight: FiniteFloat = Field(default=0.01, ge=0.0)

    def off(self) -> Self:
        """Let the weights go."""
        return self._with(weight=0.0)

    def update(self) -> list[UpdateRule]:
        """Return the update rule."""
        return [Anchor(self.weight)] if self.weight else []
