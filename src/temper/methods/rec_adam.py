"""RecAdam: pull towards the pre-trained weights, with a weight that falls during training.

``w <- w - lr * (lambda(t) * adam(g) + (1 - lambda(t)) * gamma * (w - w_start))`` with ``lambda(t) =
1 / (1 + exp(-k (t - t0)))``, for all weights except the classifier. lambda does not scale weight
decay.

Source: Chen et al., EMNLP 2020 (arXiv 2004.12651); released code Sanyuan-Chen/RecAdam@2f39a49.
Differs: it works with any optimizer (published: Adam). Training starts from the pre-trained
weights; the released script starts by default from random ones, which the pull moves to the
pre-trained ones.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Literal

from pydantic import Field

from temper.backward.rule import InitialWeightsRule, Parameters, UpdateRule
from temper.lazy import Tensor, torch
from temper.methods import Method, register
from temper.methods.bounds import Count, Nonnegative, Positive
from temper.methods.variants import Off, Variant, variant
from temper.seeding import Streams
from temper.types import Gradients, State, Step

logger = logging.getLogger(__name__)


class Sigmoid(Variant):
    """Weight of the task at step t, ``lambda(t) = 1 / (1 + exp(-k (t - t0)))``."""

    kind: Literal["sigmoid"] = "sigmoid"
    k: Positive = Field(
        default=0.5,
        description="Steepness of lambda(t) (the paper searched 0.05, 0.1, 0.2, 0.5 and 1; "
        "released code: 0.5).",
    )
    t0: Count = Field(
        default=250,
        description="Step, counted from 1, at which lambda is 1/2 (the paper searched 100, 250, "
        "500 and 1000; released code: 250). Set it below the number of steps.",
    )


@dataclass(frozen=True)
class Recall(InitialWeightsRule):
    """Pull weights to their initial values, then shift to learning the task.

    At step t, counted from 1, for every weight except the classifier's::

        w <- w - lr * lambda(t) * adam(g)
        w <- w - lr * (1 - lambda(t)) * gamma * (w - w_start)
        w <- w - lr * weight_decay * w

    with ``lambda(t) = 1 / (1 + exp(-k (t - t0)))``. The classifier takes the optimizer's plain
    step. Weight decay must be decoupled (AdamW) or 0, because it is removed from the optimizer's
    step and applied separately.

    References:
        RecAdam: Chen et al., EMNLP 2020 (arXiv 2004.12651), Algorithm 1; the released code,
        Sanyuan-Chen/RecAdam, for the order of the three lines and the counting of t.
    """

    k: float = 0.5
    t0: int = 250
    gamma: float = 5000.0

    name = "recall"
    supports_fsdp = True
    conflicts = frozenset({"after_step"})
    logged = MappingProxyType({"recall/task_fraction": "fraction"})

    def init(self, params: Parameters) -> State:
        if not params.head:
            logger.warning(
                "The parameters of the classifier cannot be identified, so all parameters are "
                "pulled to their initial weights, also a new classifier to its random ones."
            )
        return super().init(params)

    def task_fraction(self, number: int) -> float:
        """Return lambda(t) for step t, counted from 1."""
        exponent = self.k * (number - self.t0)
        # This form keeps the exponential at most 1: for a late t0, exp(-k (t - t0)) would overflow.
        small = math.exp(-abs(exponent))
        return (1.0 if exponent >= 0 else small) / (1.0 + small)

    def transform(
        self, grads: Gradients, params: Parameters, state: State, rng: Streams
    ) -> Gradients:
        # The optimizer changes the weights in place after this hook.
        state["before"] = {
            name: params.tensors[name].detach().clone() for name in grads if name not in params.head
        }
        return grads

    def after_step(self, params: Parameters, state: State, step: Step) -> None:
        """Scale the optimizer's step, pull to the initial weights, and apply weight decay."""
        before: dict[str, Tensor] = state.pop("before", {})
        if step.skipped:
            return
        fraction = self.task_fraction(step.number + 1)  # lambda(t)
        state["fraction"] = fraction
        if step.number == 0 and step.total:
            self._warn_of_early_end(step.total)
        strongest, gradients = 0.0, params.gradients()
        for name, old in before.items():
            tensor = params.tensors[name]
            # A later rule may have excluded the parameter from the step.
            if name not in gradients or name not in step.rates:
                continue
            rate, decay = step.rates[name]
            pull = rate * (1 - fraction) * self.gamma  # lr * (1 - lambda) * gamma
            strongest = max(strongest, pull)
            with torch.no_grad():
                # w - lr * lambda * adam(g), from old and the optimizer's step with its decay.
                tensor.mul_(fraction).add_(old, alpha=1 - fraction * (1 - rate * decay))
                tensor.lerp_(params.start[name], pull)
                tensor.mul_(1 - rate * decay)
        if strongest >= 1 and not state.get("warned"):
            state["warned"] = True
            logger.warning(
                "gamma=%g at this learning rate pulls the weights by %g of the way to the initial "
                "ones in one step: from 1 on they overshoot, and above 2 they diverge. Lower gamma "
                "or the learning rate until their product is well below 1 (published: 0.1).",
                self.gamma,
                strongest,
            )

    def _warn_of_early_end(self, total: int) -> None:
        if self.task_fraction(total) < 0.5:
            logger.warning(
                "Training ends after %d steps, while the weight of the task is %.2g: the "
                "pre-trained weights hardly move. Set t0 below the number of steps (now %d).",
                total,
                self.task_fraction(total),
                self.t0,
            )


@register(
    "rec_adam",
    summary="Pull towards the pre-trained weights inside Adam's step, decreasing over time",
    cost="3F",
    memory="one copy of the weights, another during the optimizer's step",
    paper="Chen et al., EMNLP 2020",
)
class RecAdam(Method):
    """Settings of RecAdam."""

    OFF: ClassVar = {"anneal": "off"}

    PRETRAINED = "pulls the weights to pre-trained ones"

    # README of the released code: ALBERT-xxlarge on CoLA, BERT-base on STS-B.
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        "albert_cola": {"anneal": {"k": 0.2, "t0": 1000}},
        "bert_sts": {"anneal": {"k": 1.0, "t0": 1000}},
    }

    anneal: Sigmoid | Off = variant(
        Sigmoid(),
        "How the weight lambda of the task grows: by a `sigmoid`, or `off` for plain fine-tuning.",
    )
    gamma: Nonnegative = Field(
        default=5000.0,
        description="Strength of the pull (the paper: 5000, at learning rates of 1e-5 and 2e-5). "
        "An early step covers the fraction gamma times learning rate of the way back "
        "to the initial weights.",
    )

    def update(self) -> list[UpdateRule]:
        anneal = self.anneal
        return [] if anneal.is_off else [Recall(gamma=self.gamma, **anneal.values)]
