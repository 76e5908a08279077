"""R-AT with the selective update: UEGR's ablation without adaptive dropout.

Source: UEGR (arXiv 2503.16550), ablation study; the losses are R-AT's, the update rule is UEGR's.
"""

from __future__ import annotations

from typing import ClassVar

from temper.methods import register
from temper.methods.r_at import RAT
from temper.methods.selection import SelectionConfig


@register(
    "r_at_su",
    summary="R-AT with the selective update",
    cost="9F + mask",
    memory="activations of two passes",
    paper="UEGR, arXiv 2503.16550",
)
class RATSU(RAT, SelectionConfig):
    """Settings of R-AT and of the selective update."""

    OFF: ClassVar = {"adversarial_weight": 0.0, "divergence_weight": 0.0, "mask": "off"}
