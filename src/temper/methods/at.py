"""Adversarial training: the clean loss plus the loss at a worst-case step of the embeddings.

``L = CE(x) + adversarial_weight * CE(x + delta)``, ``delta`` one FGM step, or several projected
ones (PGD).

Source: Miyato et al., ICLR 2017; UEGR (arXiv 2503.16550), ablation. Differs: clean pass and attack
share one backward, so one step costs 6F.
"""

from __future__ import annotations

from typing import ClassVar, Self

from pydantic import Field, FiniteFloat

from temper.forward import AdversarialLoss, Clean, Joint
from temper.methods import Method, Published, register
from temper.methods.attack import AttackConfig, Projected, Single


@register(
    "at",
    summary="Clean loss plus the loss under an embedding attack",
    cost="6F (+2F per further step)",
    memory="none",
    paper="Miyato et al., ICLR 2017",
    claims="perturbation",
)
class AT(AttackConfig):
    """Settings of adversarial training, with those of the attack.

    Args:
        adversarial_weight: Weight of the attacked loss; 0 is plain fine-tuning.
        ascent: ``single`` step of the whole budget, or ``projected`` ones (PGD).
    """

    PUBLISHED: ClassVar[dict[str, Published]] = {
        "adversarial_weight": Published("1", "the paper"),
        "norm": Published("l2", "the paper"),
    }

    adversarial_weight: FiniteFloat = Field(default=1.0, ge=0.0)
    ascent: Single | Projected = Field(default=Single(), discriminator="kind")

    def off(self) -> Self:
        """Switch the attacked loss off."""
        return self._with(adversarial_weight=0.0)

    def build(self) -> Method:
        """Return the method."""
        if not self.adversarial_weight:
            return Method("at", self)
        attack = AdversarialLoss(
            self.perturbation(**self.ascent.values),
            weight=self.adversarial_weight,
        )
        return Method("at", self, Joint(Clean(weight=1.0), (attack,)))
