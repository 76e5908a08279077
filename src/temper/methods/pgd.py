"""PGD: adversarial training at the end of K projected ascent steps on the embeddings.

``L = clean_weight * CE(x) + adversarial_weight * CE(x + d_K)``, ``d_{k+1} = project(d_k + step)``,
the budget and its geometry those of `at`.

Source: Madry et al., ICLR 2018. Differs: the budget lies on the embeddings, by default in l2 per
example and a share of their norm; the start is 0 by default, not random; ascent and final pass
drop the same units.
"""

from __future__ import annotations

from typing import ClassVar, Self

from pydantic import Field, FiniteFloat

from temper.forward.adversarial import ProjectedAscent
from temper.forward.objective import Clean, Joint, plain
from temper.methods import Method, Published, register
from temper.methods.attack import AttackConfig


@register(
    "pgd",
    summary="The loss at the end of K projected ascent steps",
    cost="(3 + 2K)F (+3F with the clean loss)",
    memory="none",
    paper="Madry et al., ICLR 2018",
    claims="perturbation",
)
class PGD(AttackConfig):
    """Settings of adversarial training with projected steps, with those of the attack.

    Args:
        adversarial_weight: Weight of the attacked loss.
        clean_weight: Weight of the clean loss beside it.
        steps: K, ascent steps, at least 1 (the paper: 7 for CIFAR-10).
        step_size: Size of a step as a share of epsilon, above 0.
        random_start: Whether the ascent starts from noise inside the budget (the paper: yes).
    """

    PUBLISHED: ClassVar[dict[str, Published]] = {
        "adversarial_weight": Published("1", "the paper"),
        "clean_weight": Published("0", "the paper"),
        "steps": Published("7", "the paper, CIFAR-10"),
        "step_size": Published("0.25", "the paper, CIFAR-10"),
        "random_start": Published("true", "the paper"),
    }

    adversarial_weight: FiniteFloat = Field(default=1.0, ge=0.0)
    clean_weight: FiniteFloat = Field(default=0.0, ge=0.0)
    steps: int = Field(default=3, ge=1, le=64)
    step_size: FiniteFloat = Field(default=0.5, gt=0.0)
    random_start: bool = False

    def check(self) -> None:
        """Refuse to minimise nothing."""
        super().check()
        if not self.adversarial_weight and not self.clean_weight:
            raise ValueError(
                "adversarial_weight and clean_weight are both 0, so nothing is minimised; set one "
                "of them"
            )

    def off(self) -> Self:
        """Leave the clean loss alone, at weight 1."""
        return self._with(adversarial_weight=0.0, clean_weight=1.0)

    def build(self) -> Method:
        """Return the method."""
        if not self.adversarial_weight:
            return Method("pgd", self, plain(self.clean_weight))
        # A perturbation of a single step takes the whole budget at once; here a step is a share
        # of it however many there are.
        attack = self.perturbation(steps=max(self.steps, 2), step_size=self.step_size)
        ascent = ProjectedAscent(
            attack,
            steps=self.steps,
            random_start=self.random_start,
            weight=self.adversarial_weight,
        )
        return Method("pgd", self, Joint(Clean(weight=self.clean_weight), (ascent,)))
