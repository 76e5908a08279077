"""Averages of the weights over steps: a teacher, or the final weights."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from temper.backward.rule import WeightAverageRule, known_total
from temper.functional.precision import at_least_single
from temper.lazy import torch
from temper.seeding import Streams
from temper.types import State, Step

if TYPE_CHECKING:
    from torch import Tensor

    from temper.models.network import Parameters

logger = logging.getLogger(__name__)


def warn_of_running_statistics(params: Parameters) -> None:
    """Warn that the running statistics of batch normalization are not averaged."""
    if params.has_running_statistics:
        logger.warning(
            "The model has batch normalization, whose running statistics belong to the last "
            "weights and not to their average. Update them after training "
            "(torch.optim.swa_utils.update_bn)."
        )


def update_average(average: dict[str, Tensor], params: Parameters, *, fraction: float) -> None:
    """Move an average towards the current weights; an empty average is set to them.

    The average, in at least fp32, is changed in place; ``fraction`` is that of the distance.
    """
    if not average:
        for name, tensor in params.tensors.items():
            average[name] = at_least_single(tensor.detach()).clone()
        return
    fresh = [params.tensors[name].detach().to(average[name].dtype) for name in average]
    torch._foreach_lerp_(list(average.values()), fresh, fraction)


@dataclass(frozen=True)
class RunningAverage(WeightAverageRule):
    """Average the weights after each step; the weights themselves are not changed.

    The average starts at the weights after the first step that counts. After c such steps it
    becomes ``b * average + (1 - b) * weights``, ``b = min(decay, c / (c + warm_up))``. With a
    warm-up of 1 it is the mean of all these steps until b reaches ``decay``; a larger warm-up gives
    late steps more weight (polynomial-decay averaging); 0 is the plain exponential average.

    The average is a copy of the trainable weights in at least fp32.

    Args:
        decay: Largest b, in [0, 1].
        begin: Fraction of the run whose steps do not count, in [0, 1).

    References:
        Polyak and Juditsky (1992); Izmailov et al., UAI 2018; Shamir and Zhang, ICML 2013,
        polynomial-decay averaging (its eta is ``warm_up - 1``).
    """

    decay: float = 0.999
    warm_up: float = 9.0
    begin: float = 0.0
    name: str = "final_average"

    supports_fsdp = True

    def init(self, params: Parameters) -> State:
        warn_of_running_statistics(params)
        return {"weights": {}, "counted": 0}

    def before_forward(self, params: Parameters, state: State, step: Step, rng: Streams) -> None:
        # The excluded steps are a fraction of the total, so it must be known.
        if self.begin:
            known_total(self, step)

    def after_step(self, params: Parameters, state: State, step: Step) -> None:
        if step.skipped or step.number + 1 <= self.begin * step.total:
            return
        counted = state["counted"]
        kept = min(self.decay, counted / (counted + self.warm_up)) if counted else 0.0
        update_average(state["weights"], params, fraction=1 - kept)
        state["counted"] = counted + 1


@dataclass(frozen=True)
class FinalAverage(RunningAverage):
    """Set the final weights to the running average."""

    conflicts = frozenset({"on_train_end"})

    def on_train_end(self, params: Parameters, state: State) -> None:
        for name, average in state["weights"].items():
            params.tensors[name].copy_(average)
