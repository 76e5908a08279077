"""RecAdam: the optimizer's step is blended with a pull towards the initial weights."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import torch
from torch import Tensor

from temper.backward.rule import InitialWeightsRule
from temper.models.network import Parameters
from temper.seeding import Streams
from temper.types import Gradients, State, Step

logger = logging.getLogger(__name__)

Anneal = Literal["sigmoid", "linear", "constant"]


@dataclass(frozen=True)
class Recall(InitialWeightsRule):
    """Shift from recalling the pre-trained weights to learning the task, beside Adam's moments.

    Per step t, counted from 1, for every weight but the classifier's::

        w <- w - lr * lambda(t) * adam(g)
        w <- w - lr * (1 - lambda(t)) * gamma * (w - w_start)
        w <- w - lr * weight_decay * w

    The classifier takes the optimiser's plain step. The optimiser's weight decay must be the
    decoupled one (AdamW) or 0: it is taken out of its step and put back undamped.

    Args:
        anneal: ``sigmoid``: ``lambda = 1 / (1 + exp(-k (t - t0)))``; ``linear``:
            ``min(1, t / t0)``; ``constant``: ``share``.
        k: Steepness of the sigmoid.
        t0: Step at which the sigmoid is 1/2, and at which the linear one reaches 1.
        gamma: Strength of the pull.
        share: lambda of ``constant``.

    References:
        RecAdam: Chen et al., EMNLP 2020 (arXiv 2004.12651), Algorithm 1; the released code,
        Sanyuan-Chen/RecAdam, for the order of the three lines and the count of t.
    """

    anneal: Anneal = "sigmoid"
    k: float = 0.5
    t0: int = 250
    gamma: float = 5000.0
    share: float = 0.5

    name = "recall"
    supports_fsdp = True
    conflicts = frozenset({"settling"})
    logged = MappingProxyType({"recall/task_share": "share"})

    def init(self, params: Parameters) -> State:
        """Start with nothing; say so where the classifier cannot be told from the rest."""
        if not params.head:
            logger.warning(
                "The model does not tell which of its parameters are the classifier, so all of "
                "them are pulled to their start, a classifier drawn anew too."
            )
        return super().init(params)

    def task_share(self, number: int) -> float:
        """Return lambda(t), the share of the task.

        Args:
            number: t, from 1.
        """
        if self.anneal == "constant":
            return self.share
        if self.anneal == "linear":
            return min(1.0, number / self.t0)
        exponent = self.k * (number - self.t0)
        # Either way the exponential is at most 1: that of a late t0 would overflow.
        small = math.exp(-abs(exponent))
        return (1.0 if exponent >= 0 else small) / (1.0 + small)

    def transform(
        self, grads: Gradients, params: Parameters, state: State, rng: Streams
    ) -> Gradients:
        """Keep the pre-trained weights as they are before the optimiser moves them."""
        state["before"] = {
            name: params.tensors[name].detach().clone() for name in grads if name not in params.head
        }
        return grads

    def after_step(self, params: Parameters, state: State, step: Step) -> None:
        """Damp the optimiser's step, pull to the start, and decay."""
        before: dict[str, Tensor] = state.pop("before", {})
        if step.skipped:
            return
        share = self.task_share(step.number + 1)
        state["share"] = share
        if step.number == 0 and step.total:
            self._warn_of_an_end_before_the_task(step.total)
        strongest, left = 0.0, params.gradients()
        for name, old in before.items():
            tensor = params.tensors[name]
            # Another rule may have left it out of the step since.
            if name not in left or name not in step.rates:
                continue
            rate, decay = step.rates[name]
            pull = rate * (1 - share) * self.gamma
            strongest = max(strongest, pull)
            with torch.no_grad():
                tensor.mul_(share).add_(old, alpha=1 - share * (1 - rate * decay))
                tensor.lerp_(params.start[name], pull)
                tensor.mul_(1 - rate * decay)
        if strongest >= 1 and not state.get("warned"):
            state["warned"] = True
            logger.warning(
                "gamma=%g at this learning rate pulls by %g of the way to the start in one step: "
                "weights are carried past it, and away for good above 2. Lower gamma or the "
                "learning rate until their product is well below 1 (published: .1).",
                self.gamma,
                strongest,
            )

    def _warn_of_an_end_before_the_task(self, total: int) -> None:
        if self.anneal != "constant" and self.task_share(total) < 0.5:
            logger.warning(
                "Training ends after %d steps, while the task's share of the step is %.2g: the "
                "pre-trained weights hardly move. Set t0 below the number of steps (now %d).",
                total,
                self.task_share(total),
                self.t0,
            )
