"""Sharpness-aware minimization: the gradient is taken at the worst weights nearby.

The ascent step is ``e = rho * g / ||g||`` with one norm over all trainable parameters. The
optimizer then uses the gradient at ``w + e`` to update w. With ``adaptive`` the ball scales with
the weights (ASAM): ``e = rho * T^2 g / ||T g||``, ``T = |w| + eta``, and T = 1 for biases.

Source: SAM, Foret et al., ICLR 2021; on text Bahri et al., ACL 2022. ASAM, Kwon et al., ICML 2021,
and SamsungLabs/ASAM@dc9b513. Differs: both passes use the same dropout masks; all micro-batches of
a step and all ranks share one e (davda54/sam has one e per rank and no gradient accumulation). No
constant is added to the norm, so the radius is exactly rho. There is no ascent if the gradient is
zero or not finite.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from pydantic import Field

from temper.backward.rule import Parameters, UpdateRule
from temper.backward.sharpness import WeightAscent, WeightPart, has_direction, l2_norms
from temper.lazy import Tensor
from temper.methods import Method, register
from temper.methods.bounds import Nonnegative, Positive
from temper.methods.variants import Off, Variant, variant

logger = logging.getLogger(__name__)

LARGE = 1.0


class ASAM(Variant):
    """A ball whose radius scales with the sizes of the weights (ASAM)."""

    kind: Literal["asam"] = "asam"
    eta: Positive = Field(
        default=0.01, description="Constant added to the absolute value of each weight."
    )


@dataclass(frozen=True)
class SharpnessAware(WeightAscent):
    """The ascent of SAM, or of ASAM with a ball scaled by the sizes of the weights.

    SAM: ``e = rho * g / ||g||``, one norm over all trainable parameters. ASAM: ``e = rho * T^2 g /
    ||T g||`` with ``T = |w| + eta``, and T = 1 for biases; ``||e / T|| = rho``.

    References:
        Foret et al., ICLR 2021, Eq. 2; Kwon et al., ICML 2021, Eq. 8.
    """

    rho: float = 0.05
    adaptive: bool = False
    eta: float = 0.01

    supports_fsdp = True

    def factors(
        self,
        parts: Sequence[WeightPart],
        gradients: Sequence[Tensor],
        sizes: Sequence[float],
        params: Parameters,
    ) -> list[float] | None:
        size = math.hypot(*sizes)  # ||g||
        if not has_direction(size):
            return None
        if self.adaptive:
            self._scale(parts, gradients)  # T g
            size = math.hypot(*l2_norms(gradients, params))  # ||T g||
            if not has_direction(size):
                return None
            self._scale(parts, gradients)  # T^2 g
        # The norm is that of all parts together, so all have one factor.
        return [self.rho / size] * len(parts)

    def _scale(self, parts: Sequence[WeightPart], gradients: Sequence[Tensor]) -> None:
        """Multiply the gradients by T in place; recomputing T saves a copy of the weights."""
        for part, gradient in zip(parts, gradients, strict=True):
            if "bias" not in part.name.rpartition(".")[2]:
                gradient.mul_(part.of(part.weight).abs().add_(self.eta))


@register(
    "adv_weight",
    summary="Gradient at nearby weights with a higher loss (SAM, ASAM)",
    cost="6F",
    memory="during a step, the perturbed weights once more",
    paper="Foret et al., ICLR 2021",
)
class AdvWeight(Method):
    """Settings of sharpness-aware minimization."""

    OFF: ClassVar = {"rho": 0.0}

    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        # README of davda54/sam@3c3afdb.
        "asam": {"adaptive": True, "rho": 2.0},
        # The released code's defaults, SamsungLabs/ASAM@dc9b513.
        "asam_released": {"adaptive": True, "rho": 0.5},
    }

    rho: Nonnegative = Field(
        default=0.05,
        description="Radius of the ascent step; 0 is plain fine-tuning. The radius of ASAM is "
        "relative to the weights, and at least ten times as large.",
    )
    adaptive: ASAM | Off = variant(
        Off(), "`asam` scales the ball by the sizes of the weights; `off` is SAM."
    )

    def check(self) -> None:
        super().check()
        if self.adaptive.is_off and self.rho >= LARGE:
            logger.warning(
                "rho=%g is a radius for adaptive=True. Without it the published radius is 0.05, "
                "and a radius this large takes the gradient far from the weights.",
                self.rho,
            )

    def update(self) -> list[UpdateRule]:
        if not self.rho:
            return []
        return [SharpnessAware(self.rho, not self.adaptive.is_off, **self.adaptive.values)]
