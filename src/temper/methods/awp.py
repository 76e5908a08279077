"""Adversarial weight perturbation (AWP): an ascent step of each matrix, relative to its norm.

``e_l = gamma * ||w_l|| * g_l / ||g_l||`` for each parameter l with two or more axes. The optimizer
then uses the gradient at ``w + e`` to update w. Alone it uses the clean loss; ``at + awp`` is the
paper's AT-AWP.

Source: Wu et al., NeurIPS 2020; released code csdongxian/AWP. Differs: the ascent uses the gradient
of the whole optimizer step; the released code takes one SGD step on a copy of the model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic import Field

from temper.backward.rule import Parameters, UpdateRule
from temper.backward.sharpness import WeightAscent, WeightPart, has_direction, l2_norms
from temper.lazy import Tensor
from temper.methods import Method, register
from temper.methods.bounds import Nonnegative


@dataclass(frozen=True)
class RelativeAscent(WeightAscent):
    """The ascent step of AWP: each matrix moves by a fraction of its norm.

    ``e_l = gamma * ||w_l|| * g_l / ||g_l||`` for each parameter l with two or more axes, gamma > 0.

    References:
        Wu et al., NeurIPS 2020, Eqs. 7 and 8; one step of it, as released.
    """

    gamma: float = 0.01

    supports_fsdp = True

    def covers(self, tensor: Tensor) -> bool:
        # Vectors (biases, weights of norms) do not move.
        return tensor.dim() > 1

    def factors(
        self,
        parts: Sequence[WeightPart],
        gradients: Sequence[Tensor],
        sizes: Sequence[float],
        params: Parameters,
    ) -> list[float] | None:
        """Return ``gamma * ||w_l|| / ||g_l||`` for each matrix (Eq. 7)."""
        if not math.isfinite(math.hypot(*sizes)):
            return None
        weights = l2_norms([part.weight for part in parts], params)
        return [
            self.gamma * weight / size if has_direction(size) else 0.0
            for weight, size in zip(weights, sizes, strict=True)
        ]


@register(
    "awp",
    summary="Gradient at weights that are perturbed towards a higher loss, matrix by matrix",
    cost="6F",
    memory="during a step, the perturbed weights once more",
    paper="Wu et al., NeurIPS 2020",
)
class AWP(Method):
    """Settings of adversarial weight perturbation."""

    OFF: ClassVar = {"gamma": 0.0}

    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        # trades_AWP/train_trades_cifar.py of csdongxian/AWP@00a8e85, without its warm-up of ten
        # epochs.
        "trades": {"gamma": 0.005},
    }

    gamma: Nonnegative = Field(
        default=0.01,
        description="Fraction of each matrix's norm (the paper: 0.01 with plain adversarial "
        "training, 0.005 with TRADES); 0 is plain fine-tuning.",
    )

    def update(self) -> list[UpdateRule]:
        return [RelativeAscent(self.gamma)] if self.gamma else []
