"""Soup: several short trainings from the same weights in one run; their mean is kept.

Each of the k trainings has the epochs that the run's settings say. It begins with the weights
before the first step, the same head among them, and a fresh optimiser, and has the whole course of
the learning rate; rows come in another order, and dropout draws anew. In the end
``w = (w_1 + ... + w_k) / k``.

Source: Wortsman et al., ICML 2022 (the uniform soup). Differs: docs/methods/soup.md.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Self

from pydantic import Field

from temper.backward.averaging import update_average, warn_of_running_statistics
from temper.backward.rule import (
    InitialWeightsRule,
    UpdateRule,
    WeightAverageRule,
    known_total,
    rules_of,
)
from temper.methods import Method, register
from temper.models.network import Parameters
from temper.seeding import Streams
from temper.types import State, Step

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Soup(InitialWeightsRule, WeightAverageRule):
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
    conflicts = frozenset({"phases", "finish"})
    supports_fsdp = True

    def first_steps(self, total: int) -> list[int]:
        """Return the first step of each training after the first one.

        Args:
            total: Steps of the run, which is divided equally; a run with fewer steps than trainings
                has one training per step.

        Example:
            >>> Soup(trainings=3).first_steps(10)
            [3, 6]
        """
        trainings = min(self.trainings, total)
        return [index * total // trainings for index in range(1, trainings)]

    def init(self, params: Parameters) -> State:
        """Start without a finished training."""
        warn_of_running_statistics(params)
        return {**super().init(params), "weights": {}, "finished": 0}

    def before_forward(self, params: Parameters, state: State, step: Step, rng: Streams) -> None:
        """Say at the run's first step where it is too short."""
        total = known_total(self, step)
        if step.number == 0 and total < self.trainings:
            logger.warning(
                "The run has %d steps, fewer than the %d trainings that it is to be cut into: each "
                "step is a training.",
                total,
                self.trainings,
            )

    def after_step(self, params: Parameters, state: State, step: Step) -> None:
        """Take the weights into the mean where a training ends."""
        if step.number + 1 not in {*self.first_steps(step.total), step.total}:
            return
        state["finished"] += 1
        update_average(state["weights"], params, share=1 / state["finished"])

    def on_train_end(self, params: Parameters, state: State) -> None:
        """Set the weights to the mean of the finished trainings."""
        for name, mean in state["weights"].items():
            params.tensors[name].copy_(mean)


def trainings_of(rule: UpdateRule) -> int:
    """Return how many trainings a run with this rule consists of: 1 without a soup.

    Args:
        rule: A rule or a chain.
    """
    return max((each.trainings for each in rules_of(rule) if isinstance(each, Soup)), default=1)


def first_steps_of(rule: UpdateRule, total: int) -> list[int]:
    """Return the first step of each training of a run after the first training.

    Args:
        rule: A rule or a chain.
        total: Steps of the run.
    """
    soups = [each for each in rules_of(rule) if isinstance(each, Soup)]
    return soups[0].first_steps(total) if soups else []


@register(
    "soup",
    summary="The mean of several trainings of one run that begin at the same weights",
    cost="3F, for k times as many steps",
    memory="two copies of the weights",
    paper="Wortsman et al., ICML 2022",
    claims="rule: finish, phases",
)
class SoupConfig(Method):
    """Settings of soups within a run.

    Args:
        members: Number k of trainings, at least 1, each of ``train.epochs``; 1 is plain
            fine-tuning.
    """

    PRETRAINED = (
        "averages trainings, which lie in one basin where they begin at pre-trained weights"
    )

    members: int = Field(default=3, ge=1)

    def off(self) -> Self:
        """Train once."""
        return self._with(members=1)

    def update(self) -> list[UpdateRule]:
        """Return the update rule."""
        if self.members == 1:
            return []
        return [Soup(self.members)]
