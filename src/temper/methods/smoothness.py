"""Settings and losses of the methods that penalize Jacobian and Hessian norms."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import ClassVar, Literal, Self

from pydantic import Field, FiniteFloat

from temper.backward.layer_norms import LayerNorms
from temper.backward.rule import UpdateRule
from temper.forward import Losses, Plan, StepContext
from temper.forward.smoothness import STEP_SIZES, Layers, Smoothness
from temper.functional.smoothness import Law
from temper.heads import Head
from temper.methods.method import Method, check_whole_text
from temper.methods.variants import Variant
from temper.types import Step

RATIO_OF_LOGITS = 0.02
"""Ratio for penalties on the logits, which oppose the task loss itself: at 1 logits stay flat."""


class GradientRatio(Variant):
    """eta follows from the gradients that training meets."""

    kind: Literal["gradient_ratio"] = "gradient_ratio"
    ratio: float = Field(
        default=1.0,
        gt=0.0,
        description="Norm of the penalty's gradient as a fraction of that of the task loss. The "
        "factor eta for it is the median over the first 8 steps and is then fixed. "
        "The ratio transfers between models and strategies; eta does not. The "
        "gradients of a step's first micro-batch on each process are compared.",
    )


class Weight(Variant):
    """eta itself."""

    kind: Literal["weight"] = "weight"
    weight: FiniteFloat = Field(ge=0.0, description="eta; 0 is plain fine-tuning.")


class Difference(Variant):
    """Finite differences of one-pass gradients."""

    kind: Literal["difference"] = "difference"
    step_size: float = Field(
        default=STEP_SIZES["difference"],
        gt=0.0,
        description="Step over the RMS of the example's embeddings.",
    )


class FourPoint(Variant):
    """Finite differences of the states themselves: with fused attention and compiled models too."""

    kind: Literal["four_point"] = "four_point"
    step_size: float = Field(
        default=STEP_SIZES["four_point"],
        gt=0.0,
        description="Step over the RMS of the example's embeddings.",
    )


class SmoothnessConfig(Method):
    """Settings of a smoothness penalty."""

    HALVES: ClassVar[dict[str, str]] = {"strength": "both", "scheme": "both"}

    strength: GradientRatio | Weight = Field(
        default=GradientRatio(),
        discriminator="kind",
        description="Strength of the penalty: by the `gradient_ratio`, or by its `weight`.",
    )
    jacobian_weight: FiniteFloat = Field(
        default=1.0, ge=0.0, description="Factor on the Jacobian term."
    )
    hessian_weight: FiniteFloat = Field(
        default=1.0, ge=0.0, description="Factor on the Hessian term; 0 saves its passes."
    )
    scheme: Difference | FourPoint = Field(
        default=Difference(),
        discriminator="kind",
        description="Estimator of the norms: `difference` or `four_point`.",
    )
    every: int = Field(
        default=1, ge=1, description="Applies the penalty every n-th step, with n times the weight."
    )

    def check(self) -> None:
        super().check()
        if not self.is_off and not (self.jacobian_weight or self.hessian_weight):
            raise ValueError(
                "one of jacobian_weight and hessian_weight must be above 0; to switch the penalty "
                "off set strength to the weight 0"
            )

    @property
    def is_off(self) -> bool:
        return isinstance(self.strength, Weight) and not self.strength.weight

    def off(self) -> Self:
        return self._with(strength={"weight": 0.0})

    @abstractmethod
    def penalty(self) -> Smoothness:
        """Return the penalty with these settings; see `smoothness`."""

    def smoothness(
        self,
        *,
        layers: Layers,
        law: Law = "signs",
        only_unlabeled: bool = False,
        half: bool = False,
    ) -> Smoothness:
        """Return a penalty with these settings; the arguments are those of `Smoothness`."""
        strength = self.strength
        return Smoothness(
            weight=strength.weight if isinstance(strength, Weight) else 0.0,
            gradient_ratio=strength.ratio if isinstance(strength, GradientRatio) else None,
            half=half,
            jacobian=self.jacobian_weight,
            hessian=self.hessian_weight,
            layers=layers,
            scheme=self.scheme.kind,
            law=law,
            **self.scheme.values,
            every=self.every,
            only_unlabeled=only_unlabeled,
        )

    def layer_norms(self) -> LayerNorms:
        return LayerNorms("uniform")

    def plan(self, now: Step) -> Plan:
        if self.is_off:
            return Plan()
        penalty = self.penalty()
        return Plan(
            clean=True,
            watch={"trace": penalty.watch},
            needs_labels=False,
            reads=penalty.reads,
            conflicts=frozenset({"smoothness"}),
        )

    def check_head(self, head: type[Head]) -> None:
        if not self.is_off:
            # The penalty is that of a text's state.
            check_whole_text(self, head)

    def losses(self, step: StepContext) -> Iterator[Losses]:
        """Yield ``CE(x)`` and the penalty in one total."""
        clean = step.clean
        yield [clean.task, *self.penalty().terms(step, clean.watched["trace"])]

    def update(self) -> list[UpdateRule]:
        return [] if self.is_off or not self.penalty().reads else [self.layer_norms()]
