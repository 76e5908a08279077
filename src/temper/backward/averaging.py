"""An exponential moving average of the weights, for terms that look back at it."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import torch

from temper.backward.rule import UpdateRule
from temper.functional.precision import at_least_single
from temper.models.network import Parameters
from temper.types import State, Step

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class WeightAverage(UpdateRule):
    """Average the trainable weights after each step; the weights themselves are left alone.

    ``ema = b * ema + (1 - b) * w``, with ``b = decay`` in the first ``early`` share of the steps
    and ``b = final_decay`` after it. Where the number of steps is not known, b stays ``decay``.

    One copy of the trainable weights, in at least fp32: a step of 1 - .999 is below what bf16
    resolves. The average takes the weights as the rules before it in a chain have left them.

    Args:
        decay: b of the early steps, in [0, 1).
        final_decay: b of the others, in [0, 1).
        early: Share of the steps, in [0, 1].

    References:
        SMART (arXiv 1911.03437); Mean Teacher (arXiv 1703.01780) for the two decays.
    """

    decay: float = 0.99
    final_decay: float = 0.999
    early: float = 0.1

    name = "average"

    def init(self, params: Parameters) -> State:
        """Start at the weights as they are."""
        copies = {
            name: at_least_single(tensor.detach()).clone()
            for name, tensor in params.tensors.items()
        }
        return {"weights": copies}

    def settle(self, params: Parameters, state: State, step: Step) -> None:
        """Take in the weights that the step has made."""
        if step.number == 0 and not step.total and self.decay != self.final_decay:
            logger.warning(
                "How many steps there will be is not known, so the average of the weights keeps "
                "decay=%g and final_decay=%g is never used. Give Stepper(..., total=STEPS).",
                self.decay,
                self.final_decay,
            )
        if step.skipped:
            return
        held = state["weights"]
        averages = list(held.values())
        fresh = [params.tensors[name].detach().to(held[name].dtype) for name in held]
        with torch.no_grad():
            torch._foreach_lerp_(averages, fresh, 1 - self.decay_at(step))

    def decay_at(self, step: Step) -> float:
        """Return b for the average that follows a step; the paper counts steps from 1.

        Args:
            step: Where training stands.
        """
        late = step.total and step.number + 1 > self.early * step.total
        return self.final_decay if late else self.decay
