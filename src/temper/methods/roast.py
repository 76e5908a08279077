"""RoAST: adversarial embeddings, and a selective update with one mask per epoch.

The loss is that of `adv_embed`. The importance of a weight is its sum of squared gradients over the
previous epoch (before the first: an epoch of the clean loss without updates). Its rank among all
weights of the blocks gives the probability ``p = sigmoid(2 beta (rank - alpha))`` of the mask m.
The gradient becomes ``m * g / p``.

Source: RoAST (arXiv 2312.04032); released code bbuing9/RoAST. Differs: as adv_embed; p is at least
``p_min`` (released: 1e-8) and rounded to one of 255 values; every batch of an epoch counts (the
released code omits the first).
"""

from __future__ import annotations

from typing import Any, ClassVar

from temper.methods import register
from temper.methods.adv_embed import AdvEmbed
from temper.methods.selection import SelectionConfig, Selective
from temper.methods.variants import Off, variant


@register(
    "roast",
    summary="Adversarial embeddings and a selective update with one mask per epoch",
    cost="7F + mask (+3F once: the first importance)",
    memory="one copy of the blocks' weights and one byte per entry, activations of two passes",
    paper="RoAST, arXiv 2312.04032",
)
class RoAST(AdvEmbed, SelectionConfig):
    """Settings of RoAST: those of `AdvEmbed` and of the selective update."""

    OFF: ClassVar = {**AdvEmbed.OFF, "mask": "off"}

    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        # run.sh of the released code.
        "sentiment": {"mask": {"alpha": 0.9, "beta": 10.0}},
        "entailment": {"mask": {"alpha": 0.6, "beta": 1.0}},
        **AdvEmbed.PRESETS,
    }

    mask: Selective | Off = variant(
        Selective(refresh="epoch"),
        "`selective` or `off`. A mask lasts an epoch, as published. The default alpha "
        "and beta are the mildest published ones, for which p is at least 0.23.",
    )
