"""The attack on the embeddings that several methods share: settings and steps."""

from __future__ import annotations

import logging
import math
from typing import Any, ClassVar, Literal

from pydantic import Field

from temper.forward import StepContext
from temper.functional import norms
from temper.functional.norms import Norm
from temper.lazy import Tensor
from temper.methods.bounds import Nonnegative, Positive
from temper.methods.method import Method
from temper.methods.variants import Variant

logger = logging.getLogger(__name__)

SMALLEST_LOSS = 0.01
"""A loss term that cannot exceed this has almost no effect."""


class Single(Variant):
    """One ascent step with the whole budget."""

    kind: Literal["single"] = "single"
    steps: ClassVar[int] = 1
    step_size: ClassVar[float] = 1.0


class Projected(Variant):
    """Several ascent steps, each projected back to the budget (PGD)."""

    kind: Literal["projected"] = "projected"
    steps: int = Field(default=2, ge=2, description="Number of ascent steps.")
    step_size: Positive = Field(default=0.5, description="Size of a step as a fraction of epsilon.")


class AttackConfig(Method):
    """Base class of methods that attack the embeddings: settings and steps of the attack."""

    SIZE: ClassVar[str] = "epsilon"

    epsilon: Nonnegative = Field(
        default=0.025,
        description="Budget of the perturbation (UEGR's paper: 0.01, 0.1 or 0.4 absolute). With 0 "
        "the adversarial passes still run; to skip them, set their weights to 0.",
    )
    relative: bool = Field(
        default=True,
        description="Whether epsilon is a fraction of the embedding norm (that of the budget's "
        "norm and scope), which transfers between models.",
    )
    norm: Norm = Field(
        default="l2",
        description="Norm of the budget: `l2`, `linf` (steps by the sign of the gradient), or "
        "`linf_scaled` (steps by the gradient divided by its largest entry).",
    )
    attack_scope: Literal["example", "token", "batch"] = Field(
        default="example",
        description="Whether epsilon is the budget of each `example`, each `token`, or the "
        "whole `batch`.",
    )
    site: Literal["word", "output"] = Field(
        default="word",
        description="Perturbed embeddings: `word` embeddings, or the `output` of the embeddings "
        "block.",
    )
    special_tokens: bool = Field(
        default=True, description="Also perturb special tokens such as [CLS] and [SEP]."
    )

    def attack_step(
        self, step: StepContext, gradient: Tensor, embeddings: Tensor, *, fraction: float = 1.0
    ) -> Tensor:
        """Return an attack step, whose size is a fraction of the budget epsilon.

        ``gradient`` is that of the loss by the embeddings. It, the unperturbed ``embeddings`` and
        the result are [B, T, D]. The result is detached, and zero at padding.

        References:
            UEGR (arXiv 2503.16550), Eq. 2.
        """
        mask = self.movable(step)
        gradient = norms.masked(gradient, mask)
        direction = norms.steepest(gradient, norm=self.norm, scope=self.attack_scope)
        return direction * self.radius(embeddings, mask, fraction=fraction)

    def projected_step(
        self,
        step: StepContext,
        delta: Tensor,
        gradient: Tensor,
        embeddings: Tensor,
        *,
        fraction: float,
    ) -> Tensor:
        """Add an `attack_step` to delta [B, T, D] and project the sum to the budget (PGD)."""
        moved = delta.detach() + self.attack_step(step, gradient, embeddings, fraction=fraction)
        radius = self.radius(embeddings, self.movable(step))
        return norms.project(moved, radius, norm=self.norm, scope=self.attack_scope)

    def movable(self, step: StepContext) -> Tensor:
        """Return which tokens the attack may move, [B, T]."""
        return step.network.movable(step.batch, special_tokens=self.special_tokens)

    def radius(self, embeddings: Tensor, mask: Tensor, *, fraction: float = 1.0) -> Tensor:
        """Return a fraction of the budget as an absolute radius, one number or one per scope.

        ``embeddings`` [B, T, D] are unperturbed; ``mask`` [B, T] marks the tokens that may move.
        """
        embeddings = norms.masked(embeddings, mask)
        radius = embeddings.new_tensor(self.epsilon * fraction)
        if not self.relative:
            return radius
        return radius * norms.size(embeddings, norm=self.norm, scope=self.attack_scope)


def warn_of_small_divergence(config: Any, weight: float) -> None:
    """Warn if a method's Jensen-Shannon term is too small to have an effect."""
    # The divergence is at most ln 2 per row, and so is its mean over the rows.
    largest = weight * math.log(2)
    if (config.divergence, config.reduction) == ("js", "mean") and 0 < largest < SMALLEST_LOSS:
        logger.warning(
            "%s: divergence='js' with reduction='mean' and a weight of %g is at most %.2g in the "
            "loss, which has almost no effect. Use reduction='sum', or raise the weight.",
            type(config).__name__,
            weight,
            largest,
        )


def check_divergence(config: Any, weight: float) -> None:
    """Check the ``weight`` of the divergence that a method's adversarial passes are compared by.

    It raises if the attack is only half switched off: with ``adversarial_weight=0``, the
    adversarial passes would still run for a default ``divergence_weight`` that the user has not
    set. It warns if the divergence is too small.
    """
    is_set = "divergence_weight" in config.model_fields_set
    if not config.adversarial_weight and weight and not is_set:
        raise ValueError(
            "with adversarial_weight=0 the adversarial passes still run for their divergence "
            f"(divergence_weight={weight:g}); set divergence_weight=0 too to switch the "
            "attack off, or set divergence_weight explicitly to keep only the divergence"
        )
    warn_of_small_divergence(config, weight)
