"""RoAST: adversarial embeddings with a selective update whose mask lasts an epoch.

The loss is `adv_embed`'s. Importance is the sum of squared gradients over the epoch before (over a
pass on the clean loss before the first), ranked over all blocks; each entry of the epoch's mask is
drawn with ``p = sigmoid(2 beta (rank - alpha))`` and the gradient becomes ``m * g / p``.

Source: RoAST (arXiv 2312.04032); released code bbuing9/RoAST. Differs: as adv_embed; p has a
smallest value (``p_min``; the released code goes down to 1e-8 and divides by it) and is rounded to
one of 255 before the draw; every batch of an epoch counts (the released code leaves the first out).
"""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field

from temper.methods import register
from temper.methods.adv_embed import AdvEmbed
from temper.methods.selection import SelectionConfig, Selective
from temper.methods.variants import Off


@register(
    "roast",
    summary="Adversarial embeddings and a selective update with one mask per epoch",
    cost="7F + mask (+3F once: the first importance)",
    memory="one copy of the blocks' weights and a byte an entry, activations of two passes",
    paper="RoAST, arXiv 2312.04032",
)
class RoAST(AdvEmbed, SelectionConfig):
    """Settings of RoAST: those of adversarial embeddings and of the selective update."""

    OFF: ClassVar = {**AdvEmbed.OFF, "mask": "off"}

    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        # run.sh of the released code.
        "sentiment": {"mask": {"alpha": 0.9, "beta": 10.0}},
        "entailment": {"mask": {"alpha": 0.6, "beta": 1.0}},
        **AdvEmbed.PRESETS,
    }

    mask: Selective | Off = Field(
        default=Selective(refresh="epoch"),
        discriminator="kind",
        description="`selective`, or `off`. A mask lasts an epoch, as published; alpha and beta "
        "are the milder ones: p is 0.23 at least, so that nothing is divided by less.",
    )
