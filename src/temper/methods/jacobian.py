"""Jacobian regularization: penalize how fast the logits change with the embeddings.

``L = CE(x) + weight / 2 * C ||J^T v||^2``, where ``J = dz/dx`` [C, T E] is the Jacobian of the
logits by the word embeddings, and v is uniform on the unit sphere. The mean of ``C ||J^T v||^2`` is
``||J||_F^2``.

Source: Hoffman, Roberts and Yaida, arXiv 1908.02729, Eq. 9 and Algorithm 1. Differs: word
embeddings instead of pixels; the embedding table gets no gradient of the penalty.
"""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field

from temper.functional.smoothness import Law
from temper.methods import register
from temper.methods.bounds import Nonnegative
from temper.methods.smoothness import RATIO_OF_LOGITS, GradientRatio, SmoothnessConfig, Weight
from temper.methods.variants import variant


@register(
    "jacobian",
    summary="Penalty on the Jacobian norm of the logits",
    cost="7F",
    memory="activations of one pass and of its gradient",
    paper="Hoffman et al., arXiv 1908.02729",
)
class Jacobian(SmoothnessConfig):
    """Settings of Jacobian regularization."""

    LAW: ClassVar[Law] = "sphere"
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {"paper": {"strength": {"weight": 0.01}}}

    strength: GradientRatio | Weight = variant(
        GradientRatio(ratio=RATIO_OF_LOGITS),
        "Strength of the penalty, as a `gradient_ratio` or as a `weight` (eta, the "
        "factor on half of the squared norm; the paper: 0.01 for images). The default "
        "is small, because a penalty on the logits opposes the task loss.",
    )
    hessian_weight: Nonnegative = Field(
        default=0.0,
        description="Factor on half of the Hessian's mean squared norm, which the paper does not "
        "have.",
    )

    def eta(self, weight: float) -> float:
        return weight / 2
