"""Soup: several short trainings from the same weights in one run; their mean is kept.

Each of the k trainings has the epochs that the run's settings say. It begins with the weights
before the first step, the same head among them, and a fresh optimiser, and has the whole course of
the learning rate; rows come in another order, and dropout draws anew. In the end
``w = (w_1 + ... + w_k) / k``.

Source: Wortsman et al., ICML 2022 (the uniform soup). Differs: docs/methods/soup.md.
"""

from __future__ import annotations

from typing import Self

from pydantic import Field

from temper.backward.rule import UpdateRule
from temper.backward.soup import Soup
from temper.methods import Method, register


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
