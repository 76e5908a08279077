"""The mean of several trainings that one run makes from the same weights."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from temper.backward.averaging import take_in, warn_of_running_statistics
from temper.backward.rule import UpdateRule
from temper.models.network import Parameters
from temper.seeding import Streams
from temper.types import State, Step

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Soup(UpdateRule):
    """Train several times from the weights before the first step, and keep the mean.

    The stepper goes back to those weights and forgets the optimiser's moments where a training
    begins; in `RobustTrainer` each has the steps that the arguments ask for and the whole course of
    the learning rate. The heads begin alike too, without which the mean answers at chance.

    One copy of the trainable weights, in at least fp32, from the end of the first training on,
    beside the one of the start.

    Args:
        trainings: How many, at least 1.

    References:
        Wortsman et al., ICML 2022, the uniform soup.
    """

    trainings: int = 3

    name = "soup"
    slots = frozenset({"phases", "finish"})
    last = True
    takes_rows = True
    replaces_weights = True
    wants_start = True
    wants_total = True

    def init(self, params: Parameters) -> State:
        """Start without a finished training."""
        warn_of_running_statistics(params)
        return {"weights": {}, "finished": 0}

    def enter(self, params: Parameters, state: State, step: Step, rng: Streams) -> None:
        """Say at the run's first step where it is too short."""
        if step.number == 0 and step.total < self.trainings:
            logger.warning(
                "The run has %d steps, fewer than the %d trainings that it is to be cut into: each "
                "step is a training.",
                step.total,
                self.trainings,
            )

    def settle(self, params: Parameters, state: State, step: Step) -> None:
        """Take the weights into the mean where a training ends."""
        if step.number + 1 not in {*self.first_steps(step.total), step.total}:
            return
        state["finished"] += 1
        take_in(state["weights"], params, share=1 / state["finished"])

    def finish(self, params: Parameters, state: State) -> None:
        """Set the weights to the mean of the finished trainings."""
        for name, mean in state["weights"].items():
            params.tensors[name].copy_(mean)
