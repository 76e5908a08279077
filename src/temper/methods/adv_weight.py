"""Sharpness-aware minimisation: the gradient is taken at the worst weights nearby.

``e = rho * g / ||g||`` with one norm over all trainable parameters; the step goes along ``dL(w +
e)/dw`` from w. With ``adaptive`` the ball follows the weights' sizes (ASAM): ``e = rho * T^2 g /
||T g||``, ``T = |w| + eta``, and T = 1 for biases.

Source: SAM, Foret et al., ICLR 2021; on text Bahri et al., ACL 2022. ASAM, Kwon et al., ICML 2021,
and SamsungLabs/ASAM@dc9b513. Differs: both passes see the same dropout; all micro-batches of a step
and all ranks share one e (davda54/sam takes an e a rank, and cannot accumulate); nothing is added
to the norm, so that the radius is exactly rho, and a gradient that is zero or not finite moves
nothing.
"""

from __future__ import annotations

import logging
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, FiniteFloat

from temper.backward.rule import UpdateRule
from temper.backward.sharpness import SharpnessAware
from temper.methods import Method, Published, register
from temper.methods.variants import Off, Variant

logger = logging.getLogger(__name__)

LARGE = 1.0


class ASAM(Variant):
    """A ball that follows the weights' sizes.

    Args:
        eta: What is added to the weights' sizes, above 0.
    """

    kind: Literal["asam"] = "asam"
    eta: float = Field(default=0.01, gt=0.0)


@register(
    "adv_weight",
    summary="Gradient at the worst weights nearby (SAM, ASAM)",
    cost="6F",
    memory="during a step, what moves once more",
    paper="Foret et al., ICLR 2021",
    claims="rule: gradient",
)
class AdvWeight(Method):
    """Settings of sharpness-aware minimisation.

    Args:
        rho: Radius, at least 0; 0 is plain fine-tuning. ASAM's radius is measured
            relative to the weights and is ten times as large or more.
        adaptive: ``asam``, whose ball follows the weights' sizes, or ``off``.
    """

    PUBLISHED: ClassVar[dict[str, Published]] = {
        "rho": Published("0.05", "the paper"),
        "adaptive.eta": Published("0.01", "ASAM's paper"),
    }

    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        # README of davda54/sam@3c3afdb.
        "asam": {"adaptive": True, "rho": 2.0},
        # The released code's defaults, SamsungLabs/ASAM@dc9b513.
        "asam_released": {"adaptive": True, "rho": 0.5},
    }

    rho: FiniteFloat = Field(default=0.05, ge=0.0)
    adaptive: ASAM | Off = Field(default=Off(), discriminator="kind")

    def check(self) -> None:
        """Warn of a radius that is meant for the other kind of ball."""
        super().check()
        if self.adaptive.is_off and self.rho >= LARGE:
            logger.warning(
                "rho=%g is a radius for adaptive=True. Without it the published one is 0.05, and "
                "one so large takes the gradient far from the weights.",
                self.rho,
            )

    def off(self) -> Self:
        """Take the gradient where the weights are."""
        return self._with(rho=0.0)

    def update(self) -> list[UpdateRule]:
        """Return the update rule."""
        if not self.rho:
            return []
        adaptive = not self.adaptive.is_off
        rule = SharpnessAware(rho=self.rho, adaptive=adaptive, **self.adaptive.values)
        return [rule]
