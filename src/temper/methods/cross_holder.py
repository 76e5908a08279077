"""Cross-Hoelder regularization: penalize how fast differences of logits change with the input.

``L = CE(x) + weight * 1/C sum_{i<j} (||d(z_i - z_j)/dx||^2 + 1/C ||d2(z_i - z_j)/dx2||_F^2)``, with
logits z and word embeddings x. A softmax depends only on differences of logits, so the random
probes sum to 0.

Source: Mustafa et al., "Input Hessian Regularization of Neural Networks", arXiv 2009.06571, as the
baseline of Jukic and Snajder, TACL 2025. Differs: estimated by random projections, as in JacHess.
"""

from __future__ import annotations

from typing import ClassVar

from temper.errors import SettingError
from temper.functional.smoothness import Law
from temper.heads import Head
from temper.methods import register
from temper.methods.smoothness import (
    DIFFERENCES_NEED_CLASSES,
    RATIO_OF_LOGITS,
    GradientRatio,
    SmoothnessConfig,
    Weight,
)
from temper.methods.variants import variant


@register(
    "cross_holder",
    summary="Penalty on the gradient and Hessian norms of differences of logits",
    cost="13F",
    memory="activations of two passes and of their gradients",
    paper="Mustafa et al., arXiv 2009.06571",
)
class CrossHolder(SmoothnessConfig):
    """Settings of Cross-Hoelder regularization."""

    LAW: ClassVar[Law] = "zero_sum"

    strength: GradientRatio | Weight = variant(
        GradientRatio(ratio=RATIO_OF_LOGITS),
        "Strength of the penalty, as a `gradient_ratio` or as a `weight` (eta). The "
        "default is small, because a penalty on the logits opposes the task loss.",
    )

    def check_head(self, head: type[Head]) -> None:
        """Raise if the outputs are not classes, because only classes have differences of logits."""
        super().check_head(head)
        if not self.is_off and not head.has_classes:
            raise SettingError(DIFFERENCES_NEED_CLASSES)
