"""Cross-Hoelder regularization: differences of logits that change slowly and evenly.

``L = CE(x) + weight * 1/C sum_{i<j} (||d(z_i - z_j)/dx||^2 + 1/C ||d2(z_i - z_j)/dx2||_F^2)``, z
the logits, x the word embeddings. A softmax depends on differences of logits only;
probes that sum to 0 measure only these.

Source: Mustafa et al., "Input Hessian Regularization of Neural Networks", arXiv 2009.06571, as the
baseline of Jukic and Snajder, TACL 2025. Differs: estimated as JacHess is, on the logits alone.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

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


@register(
    "cross_holder",
    summary="Penalty on the gradient and Hessian norms of differences of logits",
    cost="13F",
    memory="activations of two passes and of their gradients",
    paper="Mustafa et al., arXiv 2009.06571",
)
class CrossHolder(SmoothnessConfig):
    """Settings of Cross-Hoelder regularization: those of every smoothness penalty."""

    LAW: ClassVar[Law] = "zero_sum"

    strength: GradientRatio | Weight = Field(
        default=GradientRatio(ratio=RATIO_OF_LOGITS),
        discriminator="kind",
        description="Strength of the penalty: by the `gradient_ratio`, or by its `weight`, eta. A "
        "penalty on the logits opposes the task loss itself, so the default is small.",
    )

    def check_head(self, head: type[Head]) -> None:
        """Raise if the outputs are not classes: their differences have no meaning."""
        super().check_head(head)
        if not self.is_off and not head.has_classes:
            raise SettingError(DIFFERENCES_NEED_CLASSES)
