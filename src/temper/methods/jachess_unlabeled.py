"""JacHess in two phases: an epoch of plain fine-tuning, then smoothing on text without labels.

Batches with labels train on ``CE(x)`` alone, batches without on
``eta * sum_l lambda_l (||J_l||_F^2 + mean_i ||H_{l,i}||_F^2)`` alone, see `jachess`. The Trainer
brings all of the one, then all of the other, in every epoch.

Source: Jukic and Snajder, TACL 2025, the variant with unlabelled data.
"""

from __future__ import annotations

from temper.methods.jachess import JacHess
from temper.methods.method import Method
from temper.methods.registry import register


@register(
    "jachess_unlabeled",
    summary="Plain fine-tuning, then an epoch of smoothing on text without labels",
    cost="3F; a batch without labels 12F",
    memory="activations of two passes and of their gradients",
    paper="Jukic and Snajder, TACL 2025",
)
class JacHessUnlabeled(JacHess):
    """Settings of two-phase JacHess: those of `JacHess`."""

    def build(self) -> Method:
        """Return the method."""
        return self.method(layers=self.layers, norms=self.norms(), only_unlabelled=True)
