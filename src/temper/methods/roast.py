"""RoAST: adversarial embeddings with a selective update whose mask lasts an epoch.

The loss is `adv_embed`'s. Importance is the sum of squared gradients over the epoch before (over a
pass on the clean loss before the first), ranked over all blocks; each entry of the epoch's mask is
drawn with ``p = sigmoid(2 beta (rank - alpha))`` and the gradient becomes ``m * g / p``.

Source: RoAST (arXiv 2312.04032); released code bbuing9/RoAST. Differs: as adv_embed; p has a
smallest value (``p_min``; the released code goes down to 1e-8 and divides by it) and is rounded to
one of 255 before the draw; every batch of an epoch counts (the released code leaves the first out).
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Self

from temper.methods.adv_embed import AdvEmbed
from temper.methods.method import Method
from temper.methods.published import Published
from temper.methods.registry import register
from temper.methods.selection import SelectionConfig


@register(
    "roast",
    summary="Adversarial embeddings and a selective update, one mask an epoch",
    cost="7F + mask (+3F once: the first importance)",
    memory="one copy of the blocks' weights and a byte an entry, activations of two passes",
    paper="RoAST, arXiv 2312.04032",
)
class RoAST(AdvEmbed, SelectionConfig):
    """Settings of RoAST: those of adversarial embeddings and of the selective update.

    Args:
        alpha: Turning point in [0, 1]; about the share that is masked. The default is the milder
            one: p is .23 at least, so that nothing is divided by less.
        beta: Sharpness, above 0.
        refresh: A new mask every ``epoch`` as published, or every ``step``.
    """

    PUBLISHED: ClassVar[dict[str, Published]] = {
        **AdvEmbed.PUBLISHED,
        "alpha": Published(".9 sentiment, .6 entailment", "run.sh"),
        "beta": Published("10 sentiment, 1 entailment", "run.sh"),
        "refresh": Published("epoch", "the paper"),
        "scale": Published("true", "run.sh, --unbiased_scale"),
        "normalise": Published("rank", "released code"),
        "orientation": Published("prose", "released code"),
        "mask_scope": Published("blocks", "released code"),
    }

    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        # run.sh of the released code.
        "sentiment": {"alpha": 0.9, "beta": 10.0},
        "entailment": {"alpha": 0.6, "beta": 1.0},
        "released": {"released": True},
    }

    refresh: Literal["step", "epoch"] = "epoch"

    def off(self) -> Self:
        """Switch the perturbed pass and the mask off and weigh the clean loss by 1."""
        return super().off()._with(mask=False)

    def build(self) -> Method:
        """Return the method."""
        return Method("roast", self, self.objective(), self.rule())
