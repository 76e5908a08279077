"""VAT: predictions that hold at the point nearby that changes them most.

``L = CE(x) + weight * max_{||d|| <= epsilon} symKL(f(x), f(x + d))``; d is one ascent step (or
several) from small noise, all passes under the clean pass's dropout masks. The second term reads
no labels: a batch without labels trains on it alone.

Source: Miyato et al., TPAMI 2019 (arXiv 1704.03976), with the divergence, norm and place of SMART
(Jiang et al., ACL 2020), whose first half this is. Differs: the loop that SMART's authors released
returns nearly the noise that it starts from; this one is built from the paper's equation
(docs/methods/vat.md).
"""

from __future__ import annotations

import logging
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, FiniteFloat

from temper.forward import Clean, Coupling, Joint, Part
from temper.forward.consistency import Virtual
from temper.functional.losses import Divergence
from temper.functional.norms import Norm
from temper.methods import Method, Published, register
from temper.methods.attack import AttackConfig, Projected, Single
from temper.types import Reduction

logger = logging.getLogger(__name__)

# Noise below it changes logits by less than single precision resolves (1e-5: KL of -3e-8).
SMALLEST_NOISE = 1e-3


@register(
    "vat",
    summary="Predictions held where the embeddings nearby change them most; needs no labels",
    cost="8F (+2F per further step)",
    memory="activations of two passes",
    paper="Miyato et al., TPAMI 2019",
    claims="perturbation",
)
class VAT(AttackConfig):
    """Settings of virtual adversarial training, with those of the attack.

    Args:
        epsilon: Budget, at least 0. The default, 0.025 of the largest entry of each token, carries
            over between models (SMART's paper: 1e-5 absolute, which is inert).
        norm: ``linf_scaled`` (largest entry epsilon, direction kept: as SMART), ``l2`` or ``linf``
            (its sign).
        attack_scope: What shares the budget: ``token`` (as SMART), ``example``, or ``batch``.
        site: ``output`` of the embeddings block (as SMART) or ``word`` embeddings.
        weight: Weight of the divergence (SMART's paper: 1, of a divergence without our half, so
            2 here); 0 is plain fine-tuning.
        ascent: ``single`` step of the whole budget (as SMART), or ``projected`` ones.
        init_noise: Standard deviation of the noise that the ascent starts from, above 0 (SMART's
            paper: 1e-5, which is below what single precision resolves). Keep it well below the
            budget's entries; "attack/alignment" near 1 in the logs says that it is.
        divergence: ``sym_kl`` as SMART, or ``js``.
        reduction: ``mean`` over the rows as published, or ``sum``.
    """

    PUBLISHED: ClassVar[dict[str, Published]] = {
        "epsilon": Published("1e-5", "SMART's paper, absolute"),
        "relative": Published("false", "SMART's paper"),
        "norm": Published("linf_scaled", "SMART's paper"),
        "weight": Published("1 of a divergence without the half, 2 here", "SMART's paper"),
        "ascent": Published("single", "SMART's paper"),
        "init_noise": Published("1e-5", "SMART's paper"),
        "divergence": Published("sym_kl", "SMART's paper"),
        "reduction": Published("mean", "SMART's paper"),
    }

    # SMART's experiments: epsilon = sigma = 1e-5, eta = 1e-3, one step, lambda = 1. The step is 100
    # times the ball, so the projection cuts it to the whole budget, as one step has here.
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        "smart_paper": {"epsilon": 1e-5, "relative": False, "init_noise": 1e-5, "weight": 2.0},
    }

    norm: Norm = "linf_scaled"
    attack_scope: Literal["example", "token", "batch"] = "token"
    site: Literal["word", "output"] = "output"
    weight: FiniteFloat = Field(default=2.0, ge=0.0)
    ascent: Single | Projected = Field(default=Single(), discriminator="kind")
    init_noise: float = Field(default=1e-3, gt=0.0, allow_inf_nan=False)
    divergence: Divergence = "sym_kl"
    reduction: Reduction = "mean"

    def check(self) -> None:
        """Warn of noise and perturbations that do next to nothing."""
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

    def off(self) -> Self:
        """Switch the divergence off."""
        return self._with(weight=0.0)

    def parts(self) -> tuple[Part, ...]:
        """Return what is minimised beside the clean loss."""
        if not self.weight:
            return ()
        attack = self.perturbation(**self.ascent.values)
        coupling = Coupling(self.weight, self.divergence, self.reduction)
        return (Virtual(attack, self.init_noise, coupling),)

    def build(self) -> Method:
        """Return the method."""
        parts = self.parts()
        objective = Joint(Clean(weight=1.0), parts) if parts else Clean()
        return Method("vat", self, objective)
