"""Adversarial training: the clean loss plus the loss at attacked embeddings.

``L = CE(x) + adversarial_weight * CE(x + delta)``, where ``delta`` is one FGM step or several
projected steps (PGD).

Source: Miyato et al., ICLR 2017; UEGR (arXiv 2503.16550), ablation. Differs: the clean pass and
the attack share one backward, so a step costs 6F.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from pydantic import Field

from temper.forward import Losses, Plan, StepContext, SubModels
from temper.forward.perturbations import gradient_at
from temper.methods import register
from temper.methods.attack import AttackConfig, Projected, Single
from temper.methods.bounds import Nonnegative
from temper.methods.variants import variant
from temper.types import Step


@register(
    "at",
    summary="Clean loss plus the loss under an embedding attack",
    cost="6F (+2F per further attack step)",
    memory="none",
    paper="Miyato et al., ICLR 2017",
)
class AT(AttackConfig):
    """Settings of adversarial training and of its attack."""

    OFF: ClassVar = {"adversarial_weight": 0.0}

    adversarial_weight: Nonnegative = Field(
        default=1.0, description="Weight of the adversarial loss; 0 is plain fine-tuning."
    )
    ascent: Single | Projected = variant(
        Single(), "One `single` step with the whole budget, or several `projected` steps (PGD)."
    )

    def plan(self, now: Step) -> Plan:
        if not self.adversarial_weight:
            return Plan()
        return Plan(
            clean=True,
            totals=1,
            task_weight=1.0,
            site=self.site,
            gradient=True,
            conflicts=frozenset({"perturbation"}),
        )

    def losses(self, step: StepContext) -> Iterator[Losses]:
        """Yield ``CE(x)``, then ``adversarial_weight * CE(x + delta)``."""
        clean = step.clean
        yield [clean.task]  # CE(x); its backward also leaves g = dCE/dx
        words, fraction = clean.embeddings, self.ascent.step_size
        # epsilon * g / ||g||, or the first of several steps, [B, T, D].
        delta = self.attack_step(step, clean.gradient, words, fraction=fraction)
        for _ in range(self.ascent.steps - 1):
            gradient, _ = gradient_at(step, delta, site=self.site)
            delta = self.projected_step(step, delta, gradient, words, fraction=fraction)
        step.note_size(delta, words)
        # f(x + delta), 1 x [B, U, C].
        attacked = step.passes(SubModels(passes=1), delta=delta, site=self.site)
        yield [step.task(attacked, name="adversarial", weight=self.adversarial_weight)]
