"""JacHess in two phases: an epoch of plain fine-tuning, then smoothing on text without labels.

Batches with labels train on ``CE(x)`` alone, batches without on
``eta * sum_l lambda_l (||J_l||_F^2 + mean_i ||H_{l,i}||_F^2)`` alone, see `jachess`. In every
epoch the Trainer first yields all batches with labels, then all batches without.

Source: Jukic and Snajder, TACL 2025, the variant with unlabeled data (section 3.3).
"""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field

from temper.methods import register
from temper.methods.jachess import JacHess


@register(
    "jachess_unlabeled",
    summary="Plain fine-tuning, then an epoch of smoothing on text without labels",
    cost="3F; a batch without labels 12F",
    memory="activations of two passes and of their gradients",
    paper="Jukic and Snajder, TACL 2025",
)
class JacHessUnlabeled(JacHess):
    """Settings of two-phase JacHess: those of `JacHess` except ``every``."""

    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        name: values for name, values in JacHess.PRESETS.items() if "every" not in values
    }

    NEEDS_UNLABELED: ClassVar[bool] = True

    every: int = Field(
        default=1,
        ge=1,
        le=1,
        description="Always 1: batches without labels have nothing else to train on.",
    )
