"""Jacobian regularization: logits that change slowly with the embeddings.

``L = CE(x) + weight / 2 * C ||J^T v||^2``, ``J = dz/dx`` [C, T E] of the logits by the word
embeddings, v uniform on the unit sphere, so that the mean of the last factor is ``||J||_F^2``.

Source: Hoffman, Roberts and Yaida, arXiv 1908.02729, Eq. 9 and Algorithm 1. Differs: by the word
embeddings, where they have pixels; the embedding table has no gradient of the penalty.
"""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field, FiniteFloat

from temper.functional.smoothness import Law
from temper.methods import register
from temper.methods.smoothness import RATIO_OF_LOGITS, GradientRatio, SmoothnessConfig, Weight


@register(
    "jacobian",
    summary="Penalty on the Jacobian norm of the logits",
    cost="7F",
    memory="activations of one pass and of its gradient",
    paper="Hoffman et al., arXiv 1908.02729",
)
class Jacobian(SmoothnessConfig):
    """Settings of Jacobian regularization, with those of every smoothness penalty."""

    LAW: ClassVar[Law] = "sphere"
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {"paper": {"strength": {"weight": 0.01}}}

    strength: GradientRatio | Weight = Field(
        default=GradientRatio(ratio=RATIO_OF_LOGITS),
        discriminator="kind",
        description="How strong the penalty is: by the `gradient_ratio`, or by its `weight`, eta "
        "before half of the squared norm (the paper: 0.01, for images). A penalty on "
        "the logits opposes the task's loss itself, so that the default is small.",
    )
    hessian_weight: FiniteFloat = Field(
        default=0.0,
        ge=0.0,
        description="Factor on half the Hessian's mean squared norm; the paper has none.",
    )

    def eta(self, weight: float) -> float:
        return weight / 2
