"""Running averages of the weights, used as a teacher or as the final weights."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from temper.backward.rule import Parameters, WeightAverageRule, known_total
from temper.functional.precision import at_least_single
from temper.lazy import Tensor, torch
from temper.seeding import Streams
from temper.types import State, Step

logger = logging.getLogger(__name__)


def warn_of_running_statistics(params: Parameters) -> None:
    """Warn if the model has batch normalization, whose running statistics are not averaged."""
    if params.has_running_statistics:
        logger.warning(
            "The model has batch normalization, whose running statistics belong to the last "
            "weights and not to their average. Update them after training "
            "(torch.optim.swa_utils.update_bn)."
        )


def update_average(average: dict[str, Tensor], params: Parameters, *, fraction: float) -> None:
    """Move an average towards the current weights in place: ``a + fraction * (w - a)``.

    An empty average is set to the weights. It is in at least fp32.
    """
    if not average:
        for name, tensor in params.tensors.items():
            average[name] = at_least_single(tensor.detach()).clone()
        return
    fresh = [params.tensors[name].detach().to(average[name].dtype) for name in average]
    torch._foreach_lerp_(list(average.values()), fresh, fraction)


@dataclass(frozen=True)
class RunningAverage(WeightAverageRule):
    """Keep a running average of the weights, without changing the weights.

    It starts as the weights after the first step that counts. With c steps counted before, a step
    sets it to ``b * average + (1 - b) * weights``, where ``b = min(decay, c / (c + warm_up))``.
    ``warm_up`` 1 yields the mean of all counted steps until b reaches ``decay``. A larger one gives
    later steps more weight (polynomial-decay averaging). With 0 it is an exponential moving
    average.

    It takes a copy of the trainable weights in at least fp32.

    Args:
        decay: Maximum of b, in [0, 1].
        warm_up: How slowly b increases to ``decay``, in steps, >= 0.
        begin: Fraction of the run, from its start, whose steps do not count, in [0, 1).

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
    """Replace the weights by their running average after the last step."""

    conflicts = frozenset({"on_train_end"})

    def on_train_end(self, params: Parameters, state: State) -> None:
        for name, average in state["weights"].items():
            params.tensors[name].copy_(average)
