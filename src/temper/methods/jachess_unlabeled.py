"""JacHess with unlabeled text: each epoch fine-tunes on labeled rows, then smooths on the others.

Labeled batches train only on ``CE(x)``, unlabeled ones only on the penalty of `jachess`, ``eta *
sum_l lambda_l (||J_l||_F^2 + mean_i ||H_{l,i}||_F^2)``. In each epoch the Trainer yields all
labeled batches first.

Source: Jukic and Snajder, TACL 2025, the variant with unlabeled data (section 3.3).
"""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field

from temper.methods import register
from temper.methods.jachess import JacHess


@register(
    "jachess_unlabeled",
    summary="In each epoch plain fine-tuning, then smoothing on text without labels",
    cost="3F; a batch without labels 12F",
    memory="activations of two passes and of their gradients",
    paper="Jukic and Snajder, TACL 2025",
)
class JacHessUnlabeled(JacHess):
    """Settings of JacHess with unlabeled text: those of `JacHess` except ``every``."""

    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        name: values for name, values in JacHess.PRESETS.items() if "every" not in values
    }

    NEEDS_UNLABELED: ClassVar[bool] = True

    every: int = Field(
        default=1,
        ge=1,
        le=1,
        description="Always 1, because batches without labels train only on the penalty.",
    )
