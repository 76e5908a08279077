"""Adversarial training: the clean loss plus the loss at a worst-case step of the embeddings.

``L = CE(x) + adversarial_weight * CE(x + delta)``, ``delta`` one FGM step, or several projected
ones (PGD).

Source: Miyato et al., ICLR 2017; UEGR (arXiv 2503.16550), ablation. Differs: clean pass and attack
share one backward, so one step costs 6F.
"""

from __future__ import annotations

from typing import ClassVar, Self

from pydantic import Field

from temper.backward.rule import chain
from temper.forward.adversarial import AdversarialLoss
from temper.forward.objective import Clean, Joint
from temper.methods.attack import AttackConfig
from temper.methods.method import Method
from temper.methods.published import Published
from temper.methods.registry import register


@register(
    "at",
    summary="Clean loss plus the loss under an embedding attack",
    cost="6F (+2F per further step)",
    memory="none",
    paper="Miyato et al., ICLR 2017",
)
class AT(AttackConfig):
    """Settings of adversarial training, with those of the attack.

    Args:
        adversarial_weight: Weight of the attacked loss; 0 is plain fine-tuning.
        steps: Ascent steps; more than one is PGD with projection.
        step_size: Size of each of several steps, as a share of epsilon.
    """

    PUBLISHED: ClassVar[dict[str, Published]] = {
        "adversarial_weight": Published("1", "the paper"),
        "norm": Published("l2", "the paper"),
    }

    adversarial_weight: float = Field(default=1.0, ge=0.0, allow_inf_nan=False)
    steps: int = Field(default=1, ge=1)
    step_size: float = Field(default=0.5, gt=0.0, allow_inf_nan=False)

    def off(self) -> Self:
        """Switch the attacked loss off."""
        return self._with(adversarial_weight=0.0)

    def build(self) -> Method:
        """Return the method."""
        if not self.adversarial_weight:
            return Method("at", self, Clean(), chain())
        attack = AdversarialLoss(
            self.perturbation(steps=self.steps, step_size=self.step_size),
            weight=self.adversarial_weight,
        )
        return Method("at", self, Joint(Clean(weight=1.0), (attack,)), chain())
