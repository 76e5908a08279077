"""VAT: penalize the change of predictions under the worst small perturbation.

``L = CE(x) + weight * max_{||d|| <= epsilon} symKL(f(x), f(x + d))``; d results from one or several
ascent steps from small noise. All passes use the dropout masks of the clean pass. The second term
needs no labels, so unlabeled batches train on it alone.

Source: Miyato et al., TPAMI 2019 (arXiv 1704.03976), with the divergence, norm and site of SMART
(Jiang et al., ACL 2020), which adds a second penalty. Differs: SMART's released loop nearly returns
its initial noise; this one follows the paper's equation (docs/methods/vat.md).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any, ClassVar, Literal

from pydantic import Field

from temper.forward import Losses, Noise, Plan, StepContext
from temper.forward.perturbations import gradient_at
from temper.functional import norms
from temper.functional.losses import Divergence
from temper.functional.norms import Norm
from temper.functional.precision import in_half_precision
from temper.lazy import Tensor, torch
from temper.methods import register
from temper.methods.attack import AttackConfig, Projected, Single
from temper.methods.bounds import Nonnegative, Positive
from temper.methods.variants import variant
from temper.types import Reduction, Step, Term

logger = logging.getLogger(__name__)

# Smaller noise changes logits by less than single precision resolves (1e-5: KL of -3e-8).
SMALLEST_NOISE = 1e-3
# Smaller noise is lost in the rounding of half-precision logits. SiFT uses this size.
SMALLEST_IN_HALF = 1e-2
UNDERFLOW_GUARD = 2.0**12


@register(
    "vat",
    summary="Divergence of predictions under an embedding attack; needs no labels",
    cost="8F (+2F per further attack step)",
    memory="activations of two passes",
    paper="Miyato et al., TPAMI 2019",
)
class VAT(AttackConfig):
    """Settings of virtual adversarial training and of its attack."""

    OFF: ClassVar = {"weight": 0.0}

    # SMART's experiments: epsilon = sigma = 1e-5, eta = 1e-3, one step, lambda = 1. The step is 100
    # times the ball, so the projection cuts it to the whole budget, as one step has here.
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        "smart_paper": {"epsilon": 1e-5, "relative": False, "init_noise": 1e-5, "weight": 2.0},
    }

    epsilon: Nonnegative = Field(
        0.025,
        description="Budget. The default, 0.025 of the largest entry of each token, "
        "transfers between models (SMART's paper: 1e-5 absolute, which is inert).",
    )
    norm: Norm = Field(
        default="linf_scaled",
        description="Norm of the budget: `linf_scaled` (largest entry epsilon, direction kept, as "
        "SMART), `l2`, or `linf` (steps by the sign).",
    )
    attack_scope: Literal["example", "token", "batch"] = Field(
        default="token",
        description="Whether epsilon is the budget of each `token` (as SMART), each `example`, or "
        "the whole `batch`.",
    )
    site: Literal["word", "output"] = Field(
        default="output",
        description="Perturbed embeddings: the `output` of the embeddings block (as SMART), or "
        "`word` embeddings.",
    )
    weight: Nonnegative = Field(
        default=2.0,
        description="Weight of the divergence; 0 is plain fine-tuning. The 1 of SMART's paper is "
        "2 here, because of our factor 1/2.",
    )
    ascent: Single | Projected = variant(
        Single(),
        "One `single` step with the whole budget (as SMART), or several `projected` steps.",
    )
    init_noise: Positive = Field(
        default=1e-3,
        description="Standard deviation of the noise that the ascent starts from (SMART's paper: "
        "1e-5, which is below what single precision resolves). Keep it well below the "
        'budget\'s entries; "attack/alignment" near 1 in the logs says that it is.',
    )
    divergence: Divergence = Field(
        default="sym_kl", description="Type of divergence: `sym_kl` (as SMART) or `js`."
    )
    reduction: Reduction = Field(
        default="mean",
        description="Reduction of the divergence over the rows: `mean` as published, or `sum`.",
    )

    def check(self) -> None:
        super().check()
        if not self.weight:
            return
        if self.init_noise < SMALLEST_NOISE:
            logger.warning(
                "init_noise=%g changes the logits by less than single precision resolves, so the "
                "ascent follows rounding errors. Use %g or more.",
                self.init_noise,
                SMALLEST_NOISE,
            )
        if self.epsilon == 0 or (not self.relative and self.epsilon < SMALLEST_NOISE):
            logger.warning(
                "epsilon=%g%s moves the embeddings by next to nothing, so the divergence is next "
                "to 0 and the method is inert. Use relative=True with epsilon 0.025, or an "
                "absolute epsilon of the embeddings' size.",
                self.epsilon,
                "" if self.relative else " (absolute)",
            )
        elif not self.relative and self.init_noise >= self.epsilon:
            logger.warning(
                "init_noise=%g fills the budget epsilon=%g, so the perturbation is mostly noise. "
                "Lower init_noise or raise epsilon.",
                self.init_noise,
                self.epsilon,
            )

    def plan(self, now: Step) -> Plan:
        if not self.weight:
            return Plan()
        conflicts = frozenset({"perturbation"})
        # The divergence reads no labels.
        return Plan(clean=True, task_weight=1.0, needs_labels=False, conflicts=conflicts)

    def losses(self, step: StepContext) -> Iterator[Losses]:
        yield [step.clean.task, self.smoothness(step)]

    def smoothness(self, step: StepContext) -> Term:
        """Return the term ``weight * symKL(f(x), f(x + d))``, with a gradient through both outputs.

        d starts as small noise. Each ascent step increases the divergence from the clean logits and
        is projected to the budget.
        """
        if self.init_noise < SMALLEST_IN_HALF and in_half_precision(step.batch.device):
            step.network.warn_once(
                f"init_noise={self.init_noise:g} is lost in the rounding of half precision, so the "
                f"ascent follows rounding errors. Set it to {SMALLEST_IN_HALF:g} or more."
            )
        # All passes share the clean pass's dropout masks, so the divergence is due to d alone.
        clean, stream = step.single_clean()  # f(x), [B, U, C]
        noise = Noise(self.init_noise, "normal", site=self.site, special_tokens=self.special_tokens)
        delta = step.noise(noise, "virtual")  # initial d, [B, T, D]
        fraction = self.ascent.step_size

        def change(logits: Tensor) -> Tensor:
            rows = step.divergence_rows((clean.detach(), logits), self.divergence)
            # Only the direction matters; the factor avoids underflow in half precision.
            return rows.sum() * UNDERFLOW_GUARD

        for _ in range(self.ascent.steps):
            gradient, words = gradient_at(step, delta, site=self.site, stream=stream, loss=change)
            ascent = self.attack_step(step, gradient, words, fraction=fraction)
            delta = self.projected_step(step, delta, gradient, words, fraction=fraction)
        step.note_size(delta, words)
        step.notes["attack/alignment"] = alignment(delta, ascent)
        # The clean pass used the distributed wrapper, which allows one forward per backward.
        moved = step.logits(stream, delta=delta, site=self.site, wrapped=False)
        return step.divergence(
            (clean, moved), self.divergence, self.reduction, weight=self.weight, name="smoothness"
        )


def alignment(delta: Tensor, ascent: Tensor) -> Tensor:
    """Return the mean cosine between a perturbation and its last ascent step.

    It is near 1 if little of ``delta`` [B, T, D] is initial noise. An example counts as 0 if either
    is 0.
    """
    sizes = norms.size(delta, norm="l2") * norms.size(ascent, norm="l2")
    products = (delta.detach() * ascent).sum((1, 2), keepdim=True)
    return torch.where(sizes > 0, products / sizes.clamp(min=1e-30), 0.0).mean()
