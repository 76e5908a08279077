"""LP-FT: linear probing, then fine-tuning, in the same run.

In the first steps only the head trains; then all layers train. The gradients of a trained head
distort the pre-trained features less than those of a random one.

Source: Kumar et al., ICLR 2022. Differs: one run with one learning rate schedule (the paper has
two, the first until convergence); dropout stays on while only the head trains.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from pydantic import Field

from temper.backward.rule import Parameters, UpdateRule, known_total
from temper.errors import ModelError
from temper.lazy import Tensor, torch
from temper.methods import Method, register
from temper.methods.bounds import Fraction, Positive
from temper.methods.variants import Variant, variant
from temper.seeding import Streams
from temper.types import Gradients, State, Step

logger = logging.getLogger(__name__)


class ByFraction(Variant):
    """A fraction of all steps."""

    kind: Literal["fraction"] = "fraction"
    fraction: Fraction = Field(
        default=0.2,
        description="Fraction of the steps that train only the head; 0 is plain fine-tuning, 1 "
        "is linear probing. The default is ours: the paper has two runs.",
    )


class BySteps(Variant):
    """A number of steps."""

    kind: Literal["steps"] = "steps"
    steps: int = Field(ge=0, description="Number of steps that train only the head.")


@dataclass(frozen=True)
class HeadFirst(UpdateRule):
    """Train only the head in the first steps.

    In these steps the other parameters have no gradient, so the optimizer does not change them and
    keeps no moments. On one process ``requires_grad`` is off during the passes, so backward stops
    at the head. In distributed training their gradients are dropped.

    ``probe`` has the fraction or the number of these steps.

    References:
        Kumar et al., ICLR 2022.
    """

    probe: ByFraction | BySteps = field(default_factory=ByFraction)
    head_learning_rate_scale: float = 1.0

    name = "phases"
    supports_fsdp = True
    conflicts = frozenset({"phases"})

    def init(self, params: Parameters) -> State:
        if not params.head:
            raise ModelError(
                "The head must train before the other layers, but no trainable head is found: the "
                "model has no base_model_prefix (as in Transformers), and no layers after its "
                "blocks. Use another method."
            )
        return {"probing": True}

    def length(self, step: Step) -> int:
        probe = self.probe
        return probe.steps if isinstance(probe, BySteps) else round(probe.fraction * step.total)

    def before_forward(self, params: Parameters, state: State, step: Step, rng: Streams) -> None:
        total = known_total(self, step)
        state["probing"] = step.number < self.length(step)
        if step.number == 0 and self.length(step) >= total:
            logger.warning("All %d steps train only the head, so nothing is fine-tuned.", total)
        # DDP waits for the gradient of every parameter, so `requires_grad` must stay on.
        if state["probing"] and step.ranks == 1 and not torch.distributed.is_initialized():
            state["aside"] = True
            for name, tensor in params.tensors.items():
                tensor.requires_grad_(name in params.head)

    def after_backward(self, params: Parameters, state: State) -> None:
        if state.pop("aside", False):
            for tensor in params.tensors.values():
                tensor.requires_grad_(True)

    def regularize(
        self, grads: Gradients, params: Parameters, state: State, step: Step, rng: Streams
    ) -> Gradients:
        # Before clipping, so that the dropped gradients do not count in the norm.
        return self._of_head(grads, params, state)

    def transform(
        self, grads: Gradients, params: Parameters, state: State, rng: Streams
    ) -> Gradients:
        # Again, because a later rule may have added gradients.
        return self._of_head(grads, params, state)

    def learning_rate_scales(
        self, params: Parameters, state: State, step: Step
    ) -> dict[str, float]:
        scale = self.head_learning_rate_scale
        return dict.fromkeys(params.tensors, scale) if state["probing"] and scale != 1 else {}

    def diagnostics(self, state: State) -> dict[str, Tensor | float]:
        return {"phases/probing": float(state["probing"])}

    def _of_head(self, grads: Gradients, params: Parameters, state: State) -> Gradients:
        if not state["probing"]:
            return grads
        return {name: gradient for name, gradient in grads.items() if name in params.head}


@register(
    "lp_ft",
    summary="Trains only the head first, then all weights",
    cost="F while only the head trains, then 3F",
    memory="none",
    paper="Kumar et al., ICLR 2022",
)
class LPFT(Method):
    """Settings of LP-FT."""

    OFF: ClassVar = {"probe": {"fraction": 0.0}}

    PRETRAINED = "trains the head on pre-trained features first"

    probe: ByFraction | BySteps = variant(
        ByFraction(),
        "Length of the phase in which only the head trains: a `fraction` of all steps, or a "
        "number of `steps`.",
    )
    head_learning_rate_scale: Positive = Field(
        default=1.0, description="Factor on the learning rate while only the head trains."
    )

    def update(self) -> list[UpdateRule]:
        probe = self.probe
        is_off = not (probe.steps if isinstance(probe, BySteps) else probe.fraction)
        return [] if is_off else [HeadFirst(probe, self.head_learning_rate_scale)]
