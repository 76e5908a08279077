"""Mixout: in each step a random part of the weights is as it was before training.

``w_mix = ((1-M) w + M u - p u) / (1-p)`` with u the start and M ~ Bernoulli(p), so that the mean is
w; backward goes through that equation.

Source: Lee et al., ICLR 2020; released code bloodwass/mixout@6c6a557. Differs: one mask a step,
shared by micro-batches and ranks, where the released layers draw at every call; M is drawn by entry
(the paper's mixconnect) unless ``unit="neuron"``; the released backward leaves out the 1/(1-p) of
its own forward, ours does not; the model keeps its dropout, which the paper sets to 0.
"""

from __future__ import annotations

from typing import Any, ClassVar, Self

from pydantic import Field, FiniteFloat

from temper.backward.mixing import Mixing, Scope, Unit
from temper.backward.rule import UpdateRule
from temper.methods import Method, Published, register


@register(
    "mixout",
    summary="Passes see a random part of the weights as before training",
    cost="3F + mask",
    memory="one copy of the weights, and one of those that are mixed during a step",
    paper="Lee et al., ICLR 2020",
    claims="rule: weights",
)
class Mixout(Method):
    """Settings of mixout.

    Args:
        probability: p, how often an entry is replaced, in [0, 1); 0 is plain
            fine-tuning.
        mix_scope: Matrices of the ``blocks`` (and of a pooler behind them), or ``all``: the head's
            too, whose start is its first draw. Never the embeddings.
        unit: What is replaced at once: an ``entry``, or a ``neuron``'s outgoing weights (the paper
            and its code).
    """

    PUBLISHED: ClassVar[dict[str, Published]] = {
        "probability": Published("0.7 to 0.9", "the paper"),
    }

    PRETRAINED = "mixes the weights with pre-trained ones"

    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        # example_huggingface.py of bloodwass/mixout@480da48: every linear layer.
        "released": {"probability": 0.9, "unit": "neuron", "mix_scope": "all"},
    }

    probability: FiniteFloat = Field(default=0.7, ge=0.0, lt=1.0)
    mix_scope: Scope = "blocks"
    unit: Unit = "entry"

    def off(self) -> Self:
        """Leave the weights as they are."""
        return self._with(probability=0.0)

    def update(self) -> list[UpdateRule]:
        """Return the update rule."""
        if not self.probability:
            return []
        rule = Mixing(probability=self.probability, scope=self.mix_scope, unit=self.unit)
        return [rule]
