"""The average of the weights over steps: a teacher, or what takes their place at the end."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import torch
from torch import Tensor

from temper.backward.rule import UpdateRule
from temper.functional.precision import at_least_single
from temper.models.network import Parameters
from temper.types import State, Step

logger = logging.getLogger(__name__)


def warn_of_running_statistics(params: Parameters) -> None:
    """Say that an average of weights leaves batch normalisation's statistics behind.

    Args:
        params: The trainable parameters.
    """
    if params.has_running_statistics:
        logger.warning(
            "The model has batch normalisation, whose running statistics belong to the last "
            "weights and not to their average. Measure them anew after training "
            "(torch.optim.swa_utils.update_bn)."
        )


def take_in(average: dict[str, Tensor], params: Parameters, *, share: float) -> None:
    """Move an average of the weights to the present ones by a share; an empty one becomes them.

    Args:
        average: By name, in at least fp32; changed in place.
        params: The trainable parameters.
        share: In [0, 1].
    """
    if not average:
        for name, tensor in params.tensors.items():
            average[name] = at_least_single(tensor.detach()).clone()
        return
    fresh = [params.tensors[name].detach().to(average[name].dtype) for name in average]
    torch._foreach_lerp_(list(average.values()), fresh, share)


@dataclass(frozen=True)
class RunningAverage(UpdateRule):
    """Average the weights after each step, and at the end set them to the average, if asked to.

    The average starts as the weights after the first step that counts. After c such steps it
    becomes ``b * average + (1 - b) * weights``, ``b = min(decay, c / (c + warm_up))``. A warm-up of
    1 makes it the mean of all of them until ``decay`` is reached, a larger one weighs late steps
    more (polynomial-decay averaging), 0 is the plain exponential average.

    One copy of the trainable weights, in at least fp32, from the first step that counts on.

    Args:
        decay: Largest b, in [0, 1].
        warm_up: At least 0.
        begin: Share of the run whose steps do not count, in [0, 1).
        kept: Whether the average takes the place of the weights at the end.
        name: Where its state lies.

    References:
        Polyak and Juditsky (1992); Izmailov et al., UAI 2018; Shamir and Zhang, ICML 2013,
        polynomial-decay averaging (its eta is ``warm_up - 1``).
    """

    decay: float = 0.999
    warm_up: float = 9.0
    begin: float = 0.0
    kept: bool = True
    name: str = "final_average"

    last = True
    # Weight and average are read, the average is written.
    moved = 3.0
    takes_rows = True

    @property
    def slots(self) -> frozenset[str]:  # type: ignore[override]
        """The end of training, where the average is kept."""
        return frozenset({"finish"} if self.kept else ())

    @property
    def replaces_weights(self) -> bool:  # type: ignore[override]
        """Whether the average is kept."""
        return self.kept

    @property
    def wants_total(self) -> bool:  # type: ignore[override]
        """Whether it must know where the share ends."""
        return self.begin > 0

    def init(self, params: Parameters) -> State:
        """Start without an average."""
        warn_of_running_statistics(params)
        return {"weights": {}, "counted": 0}

    def settle(self, params: Parameters, state: State, step: Step) -> None:
        """Take in the weights that the step has made."""
        if step.skipped or step.number + 1 <= self.begin * step.total:
            return
        counted = state["counted"]
        kept = min(self.decay, counted / (counted + self.warm_up)) if counted else 0.0
        take_in(state["weights"], params, share=1 - kept)
        state["counted"] = counted + 1

    def finish(self, params: Parameters, state: State) -> None:
        """Set the weights to their average."""
        for name, average in state["weights"].items() if self.kept else ():
            params.tensors[name].copy_(average)
