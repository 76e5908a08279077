"""Soup: train several members from the same weights in one run, and average them.

Each of the k members is trained for all epochs of the settings, with a new optimizer and a full
learning rate schedule. It starts from the initial weights, including the same head. The order of
rows and the dropout masks differ. At the end ``w = (w_1 + ... + w_k) / k``.

Source: Wortsman et al., ICML 2022 (the uniform soup). Differs: docs/methods/soup.md.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import ClassVar

from pydantic import Field

from temper.backward.averaging import update_average, warn_of_running_statistics
from temper.backward.rule import (
    InitialWeightsRule,
    Parameters,
    UpdateRule,
    WeightAverageRule,
    known_total,
    rules_of,
)
from temper.methods import Method, register
from temper.methods.bounds import Count
from temper.seeding import Streams
from temper.types import State, Step

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Soup(InitialWeightsRule, WeightAverageRule):
    """Train several times from the initial weights, and set the final weights to the mean.

    Before each training the initial weights are restored, and the stepper clears the optimizer's
    state. In `RobustTrainer` each training has the configured number of steps and a full learning
    rate schedule. All start from the same head, because an average over different heads predicts at
    chance level.

    Memory: the initial weights, and the mean of the trained ones in at least fp32.

    References:
        Wortsman et al., ICML 2022, the uniform soup.
    """

    members: int = 3

    name = "soup"
    conflicts = frozenset({"phases", "on_train_end"})
    supports_fsdp = True

    def first_steps(self, total: int) -> list[int]:
        """Return the first step of each training after the first one.

        The ``total`` steps are divided equally. With fewer steps than members, each step is one.

        Example:
            >>> Soup(members=3).first_steps(10)
            [3, 6]
        """
        members = min(self.members, total)
        return [index * total // members for index in range(1, members)]

    def init(self, params: Parameters) -> State:
        warn_of_running_statistics(params)
        return {**super().init(params), "weights": {}, "finished": 0}

    def before_forward(self, params: Parameters, state: State, step: Step, rng: Streams) -> None:
        total = known_total(self, step)
        if step.number == 0 and total < self.members:
            logger.warning(
                "The run has %d steps, fewer than its %d members, so each step trains one.",
                total,
                self.members,
            )

    def after_step(self, params: Parameters, state: State, step: Step) -> None:
        if step.number + 1 not in {*self.first_steps(step.total), step.total}:
            return
        state["finished"] += 1
        update_average(state["weights"], params, fraction=1 / state["finished"])

    def on_train_end(self, params: Parameters, state: State) -> None:
        for name, mean in state["weights"].items():
            params.tensors[name].copy_(mean)


def members_of(rule: UpdateRule) -> int:
    """Return the number of members of a run with this rule or chain: 1 without a soup."""
    return max((soup.members for soup in rules_of(rule) if isinstance(soup, Soup)), default=1)


def first_steps_of(rule: UpdateRule, total: int) -> list[int]:
    """Return the first step of each training except the first, in a run of ``total`` steps."""
    soups = [soup for soup in rules_of(rule) if isinstance(soup, Soup)]
    return soups[0].first_steps(total) if soups else []


@register(
    "soup",
    summary="Mean of the weights of several members, trained from the same initial weights",
    cost="3F, for `members` times as many steps",
    memory="two copies of the weights",
    paper="Wortsman et al., ICML 2022",
)
class SoupConfig(Method):
    """Settings of soups within a run."""

    OFF: ClassVar = {"members": 1}

    PRETRAINED = (
        "averages members, which stay in one basin only if they start from pre-trained weights"
    )

    members: Count = Field(
        default=3,
        description="Number k of members, each trained for `train.epochs` epochs; 1 is plain "
        "fine-tuning.",
    )

    def update(self) -> list[UpdateRule]:
        return [Soup(self.members)] if self.members > 1 else []
