"""What the methods that penalise Jacobian and Hessian norms have in common."""

from __future__ import annotations

from typing import Any, Self

from pydantic import Field, model_validator

from temper.backward.layer_norms import LayerNorms
from temper.backward.rule import chain
from temper.forward.objective import Clean, Joint
from temper.forward.smoothness import Layers, Scheme, Smoothness
from temper.functional.smoothness import Law
from temper.methods.method import Method, MethodConfig
from temper.methods.registry import name_of

RATIO = 1.0
RATIO_OF_LOGITS = 0.02
"""A penalty on the logits opposes the task's loss itself: at 1 they stay flat."""
DIMENSIONS, PROJECTIONS = 10, 1


class SmoothnessConfig(MethodConfig):
    """Settings of a smoothness penalty.

    Args:
        gradient_ratio: How large the norm of the penalty's gradient shall be, as a share of that of
            the task's loss, above 0. The factor eta that makes it so is the median over the first 8
            steps and is then held. It carries over between models and strategies; eta does not.
            Compared are the gradients of a step's first micro-batch on each process.
        weight: eta itself, at least 0, in place of ``gradient_ratio``; 0 is plain fine-tuning.
        jacobian_weight: Factor on the Jacobian term, at least 0.
        hessian_weight: Factor on the Hessian term, at least 0; 0 spares its passes.
        scheme: How the norms are estimated: ``difference`` (finite differences of one-pass
            gradients), ``four_point`` (of the states themselves: with fused attention and compiled
            models too), ``nested`` (reverse mode over reverse mode), or ``loop`` (the
            paper's, layer by layer and dimension by dimension, for tests and ablations).
        step_size: Step of the finite differences over the RMS of the example's embeddings, above
            0; None takes 2e-3, and 3e-2 for ``four_point``. Not read by the other schemes.
        dimensions: Hidden dimensions that ``loop`` takes the Hessian of, at least 1 (the paper:
            0, 5, 10, 20 or 50, by default 10).
        projections: Probes that ``loop`` takes for each norm, at least 1.
        every: Penalise every so many steps, so many times as hard, at least 1.
    """

    gradient_ratio: float | None = Field(default=RATIO, gt=0.0, allow_inf_nan=False)
    weight: float | None = Field(default=None, ge=0.0, allow_inf_nan=False)
    jacobian_weight: float = Field(default=1.0, ge=0.0, allow_inf_nan=False)
    hessian_weight: float = Field(default=1.0, ge=0.0, allow_inf_nan=False)
    scheme: Scheme = "difference"
    step_size: float | None = Field(default=None, gt=0.0, allow_inf_nan=False)
    dimensions: int = Field(default=DIMENSIONS, ge=1)
    projections: int = Field(default=PROJECTIONS, ge=1)
    every: int = Field(default=1, ge=1)

    @model_validator(mode="before")
    @classmethod
    def _take_one_of_both(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("weight") is not None:
            return {"gradient_ratio": None, **values}
        return values

    @model_validator(mode="after")
    def _check_size(self) -> Self:
        if (self.weight is None) == (self.gradient_ratio is None):
            raise ValueError(
                "one of weight and gradient_ratio must be given, got "
                f"weight={self.weight} and gradient_ratio={self.gradient_ratio}"
            )
        return self

    @model_validator(mode="after")
    def _refuse_what_is_not_read(self) -> Self:
        if self.scheme != "loop" and (
            self.dimensions != DIMENSIONS or self.projections != PROJECTIONS
        ):
            raise ValueError(
                "dimensions and projections are read by scheme='loop' only, got scheme="
                f"{self.scheme!r}"
            )
        if self.step_size is not None and self.scheme in ("nested", "loop"):
            raise ValueError(
                "step_size is read by the schemes 'difference' and 'four_point' only, got scheme="
                f"{self.scheme!r}"
            )
        if not self.hessian_weight and (
            self.dimensions != DIMENSIONS or (self.scheme == "difference" and self.step_size)
        ):
            raise ValueError(
                "hessian_weight=0 takes no Hessian, so dimensions, and step_size of scheme="
                "'difference', are not read"
            )
        if self.weight != 0 and not (self.jacobian_weight or self.hessian_weight):
            raise ValueError(
                "one of jacobian_weight and hessian_weight must be above 0; to switch the penalty "
                "off set weight=0"
            )
        return self

    def off(self) -> Self:
        """Switch the penalty off."""
        return self._with(weight=0.0, gradient_ratio=None)

    def method(
        self,
        *,
        layers: Layers,
        law: Law = "signs",
        norms: LayerNorms | None = None,
        only_unlabelled: bool = False,
        half: bool = False,
    ) -> Method:
        """Return the method with these settings.

        Args:
            layers: What is smoothed.
            law: What probes are drawn from.
            norms: Weighs the layers; needed for all of them.
            only_unlabelled: Whether batches with labels go without the penalty.
            half: Whether the weight stands before half of the squared norms.
        """
        name = name_of(self)
        if self.weight == 0:
            return Method(name, self, Clean(), chain())
        part = Smoothness(
            weight=(self.weight or 0.0) / (2 if half else 1),
            gradient_ratio=self.gradient_ratio,
            jacobian=self.jacobian_weight,
            hessian=self.hessian_weight,
            layers=layers,
            scheme=self.scheme,
            step_size=self.step_size,
            law=law,
            dimensions=self.dimensions,
            projections=self.projections,
            every=self.every,
            only_unlabelled=only_unlabelled,
        )
        rule = chain()
        if part.needs:
            # Without layers to weigh it keeps the measured eta alone.
            rule = chain(norms or LayerNorms("uniform"))
        return Method(name, self, Joint(Clean(), (part,)), rule)
