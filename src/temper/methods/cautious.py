"""Cautious updates: drop the entries of the optimizer's step that would increase the loss.

``w <- w - lr * u * m / c`` with ``m = 1[u * g > 0]``, where u is the optimizer's update (such as
Adam's) and g the gradient of this step; c is the mean of m over each tensor.

Source: Liang et al., "Cautious Optimizers: Improving Training with One Line of Code", arXiv
2411.16085, Algorithm 1; released code kyleliang919/C-Optim. Differs: c is the mean over the entries
whose gradient is not 0. Over all entries, the unused rows of a word embedding would make c tiny,
and the steps of the used rows up to a thousand times as long.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar, Literal

from pydantic import Field

from temper.backward.rule import Parameters, UpdateRule
from temper.functional.precision import at_least_single
from temper.lazy import Tensor, torch
from temper.methods.method import Method
from temper.methods.registry import register
from temper.seeding import Streams
from temper.types import Gradients, State, Step


class AgreeingUpdate(UpdateRule):
    """Keep only the entries of the optimizer's step that agree with the sign of the gradient.

    ``floor`` is a lower bound of the divisor c.

    References:
        arXiv 2411.16085, Algorithm 1.
    """

    name = "cautious"
    conflicts = frozenset({"after_step"})
    supports_fsdp = True
    logged: Mapping[str, str] = MappingProxyType({"cautious/kept": "kept"})

    def __init__(self, floor: float = 1e-3) -> None:
        self.floor = floor

    def transform(
        self, grads: Gradients, params: Parameters, state: State, rng: Streams
    ) -> Gradients:
        # The optimizer changes the weights in place after this hook.
        state["before"] = {name: params.tensors[name].detach().clone() for name in grads}
        return grads

    def after_step(self, params: Parameters, state: State, step: Step) -> None:
        """Undo the entries of the step that disagree with the gradient, and scale up the others."""
        before: dict[str, Tensor] = state.pop("before", {})
        if step.skipped:
            return
        gradients, kept = params.gradients(), []
        for name, old in before.items():
            # A later rule may have excluded the parameter from the step.
            if name not in gradients or name not in step.rates:
                continue
            rate, decay = step.rates[name]
            # Decoupled weight decay is no part of the update u.
            start = at_least_single(old) * (1 - rate * decay)
            moved = at_least_single(params.tensors[name]) - start  # -lr * u
            agrees = moved * gradients[name] < 0  # m = 1[u * g > 0]
            counts = torch.stack([agrees.sum(), (gradients[name] != 0).sum()])
            counts = params.summed(counts).to(moved.dtype)
            mean = (counts[0] / counts[1].clamp(min=1)).clamp(min=self.floor)  # c
            params.tensors[name].copy_(start + moved * agrees / mean)
            kept.append(counts)
        if kept:
            total = torch.stack(kept).sum(0)
            state["kept"] = total[0] / total[1].clamp(min=1)


@register(
    "cautious",
    summary="Drops the entries of a step that point against the gradient",
    cost="3F",
    memory="the weights once more during a step",
    paper="Liang et al., arXiv 2411.16085",
)
class Cautious(Method):
    """Settings of cautious updates."""

    OFF: ClassVar = {"mask": "off"}

    mask: Literal["sign", "off"] = Field(
        default="sign",
        description="`sign` keeps the entries of the update that agree with the gradient; `off` "
        "is plain fine-tuning.",
    )
    floor: float = Field(
        default=1e-3,
        gt=0.0,
        le=1.0,
        description="Lower bound of the fraction by which the kept entries are divided.",
    )

    def update(self) -> list[UpdateRule]:
        return [AgreeingUpdate(self.floor)] if self.mask == "sign" else []
