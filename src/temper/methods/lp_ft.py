"""LP-FT: linear probing, then fine-tuning, in one run.

For the first steps the head trains alone on the pre-trained features; then everything does. A head
that fits the features bends them less than one drawn at random.

Source: Kumar et al., ICLR 2022. Differs: one run with one learning rate schedule, where the paper
trains the head to the end, then starts over from it; dropout stays on while the head trains alone.
"""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field

from temper.backward.phases import HeadFirst
from temper.backward.rule import UpdateRule
from temper.methods import Method, register
from temper.methods.variants import Variant


class ByShare(Variant):
    """A share of all steps.

    Args:
        share: In [0, 1]; 0 is plain fine-tuning, 1 is linear probing. The default is ours: the
            paper has two runs.
    """

    kind: Literal["share"] = "share"
    share: float = Field(default=0.2, ge=0.0, le=1.0)


class BySteps(Variant):
    """A number of steps.

    Args:
        steps: How many, at least 0.
    """

    kind: Literal["steps"] = "steps"
    steps: int = Field(ge=0)


@register(
    "lp_ft",
    summary="The head alone first, then everything",
    cost="F while the head trains alone, then 3F",
    memory="none",
    paper="Kumar et al., ICLR 2022",
    claims="rule: phases",
)
class LPFT(Method):
    """Settings of LP-FT.

    Args:
        probe: How long the head trains alone: a ``share`` of all steps, or so many ``steps``.
        head_learning_rate_scale: Factor on the learning rate while the head trains alone, above 0.
    """

    PRETRAINED = "trains the head on pre-trained features first"

    probe: ByShare | BySteps = Field(default=ByShare(), discriminator="kind")
    head_learning_rate_scale: float = Field(default=1.0, gt=0.0, allow_inf_nan=False)

    def off(self) -> Self:
        """Train everything from the first step on."""
        return self._with(probe={"share": 0.0})

    def update(self) -> list[UpdateRule]:
        """Return the update rule."""
        share = self.probe.share if isinstance(self.probe, ByShare) else None
        steps = self.probe.steps if isinstance(self.probe, BySteps) else None
        if not (share or steps):
            return []
        scale = self.head_learning_rate_scale
        rule = HeadFirst(ratio=share, steps=steps, learning_rate_scale_of_head=scale)
        return [rule]
