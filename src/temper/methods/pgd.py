"""PGD: adversarial training after K projected ascent steps on the embeddings.

``L = clean_weight * CE(x) + adversarial_weight * CE(x + d_K)``, with ``d_{k+1} = project(d_k +
step)``. Budget and norm are those of `at`.

Source: Madry et al., ICLR 2018. Differs: it attacks embeddings, with a budget that is by default a
fraction of each example's l2 norm; the start is 0 by default, not random; ascent and final pass
share dropout masks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import ClassVar

from pydantic import Field

from temper.forward import Losses, Plan, StepContext, plain
from temper.forward.perturbations import gradient_at, zeros
from temper.functional import norms
from temper.lazy import Tensor, torch
from temper.methods import register
from temper.methods.attack import AttackConfig
from temper.methods.bounds import Nonnegative, Positive
from temper.models.passes import Recording
from temper.seeding import generator
from temper.types import Step


@register(
    "pgd",
    summary="Loss under an embedding attack of K projected gradient steps",
    cost="(3 + 2K)F (+3F with the clean loss)",
    memory="none",
    paper="Madry et al., ICLR 2018",
)
class PGD(AttackConfig):
    """Settings of adversarial training with projected steps, and of its attack."""

    OFF: ClassVar = {"adversarial_weight": 0.0, "clean_weight": 1.0}

    adversarial_weight: Nonnegative = Field(
        default=1.0, description="Weight of the adversarial loss."
    )
    clean_weight: Nonnegative = Field(
        default=0.0, description="Weight of the additional clean loss."
    )
    steps: int = Field(
        default=3, ge=1, le=64, description="Number K of ascent steps (the paper: 7 for CIFAR-10)."
    )
    step_size: Positive = Field(default=0.5, description="Size of a step as a fraction of epsilon.")
    random_start: bool = Field(
        default=False,
        description="Whether the ascent starts from noise inside the budget (the paper: yes).",
    )

    def check(self) -> None:
        super().check()
        if not self.adversarial_weight and not self.clean_weight:
            raise ValueError(
                "adversarial_weight and clean_weight are both 0, so nothing is minimized; set one "
                "of them"
            )

    def plan(self, now: Step) -> Plan:
        if not self.adversarial_weight:
            return plain(self.clean_weight)
        conflicts = frozenset({"perturbation"})
        return Plan(totals=1, task_weight=self.clean_weight, conflicts=conflicts)

    def losses(self, step: StepContext) -> Iterator[Losses]:
        """Yield ``CE(x + d_K)``; the K ascent steps compute no gradients of the weights."""
        delta = self._start(step)  # d_0, [B, T, D]
        for _ in range(self.steps):
            gradient, words = gradient_at(step, delta, site=self.site)  # [B, T, D]
            # d_{k+1} = project(d_k + step)
            delta = self.projected_step(step, delta, gradient, words, fraction=self.step_size)
        # The same dropout masks as in the ascent: train the network that was attacked.
        recording = Recording()
        logits = step.logits("attack", delta=delta, site=self.site, recording=recording)
        step.note_size(delta, recording.embeddings)
        yield [step.task((logits,), name="adversarial", weight=self.adversarial_weight)]

    def _start(self, step: StepContext) -> Tensor:
        """Return d_0 [B, T, D]: zero, or noise with entries uniform on ``[-r, r]``.

        r is the budget. For ``l2`` it is the budget divided by the square root of the number of
        entries, which gives a norm of about budget / sqrt 3.
        """
        zero = zeros(step.network, step.batch, site=self.site)
        if not self.random_start:
            return zero
        zero = zero.detach()
        mask = self.movable(step)
        draws = generator(step.streams.local("noise", "adversarial"), step.batch.device)
        noise = torch.empty_like(zero).uniform_(-1.0, 1.0, generator=draws)
        radius = self.radius(self._embeddings(step, zero) if self.relative else zero, mask)
        if self.norm == "l2":
            # The l2 norm of ones is the square root of the number of entries.
            ones = norms.masked(torch.ones_like(zero), mask)
            entries = norms.size(ones, norm="l2", scope=self.attack_scope)
            radius = radius / entries.clamp(min=math.sqrt(zero.shape[-1]))
        return norms.masked(noise, mask) * radius

    def _embeddings(self, step: StepContext, zero: Tensor) -> Tensor:
        """Return the unperturbed embeddings [B, T, D], from which a relative budget is computed."""
        if self.site == "word":
            return step.network.embeddings(step.batch)
        # The input of the blocks is only known from a forward pass.
        recording = Recording()
        with torch.no_grad():
            step.logits("attack", delta=zero, site="output", recording=recording, wrapped=False)
        assert recording.embeddings is not None
        return recording.embeddings
