"""Child-Tuning-F: every entry of the gradient is kept with one probability.

``g * m / p`` with m ~ Bernoulli(p), every parameter, every step; the mean over draws is g.

Source: Xu et al., EMNLP 2021; released code alibaba/AliceMind, ChildTuning@c17b177. As there the
mask comes after clipping and before the moments, so that masked weights still move by momentum and
decay.
"""

from __future__ import annotations

from typing import ClassVar, Self

from pydantic import Field, FiniteFloat

from temper.backward.child_tuning import RandomMask
from temper.backward.rule import UpdateRule
from temper.methods import Method, Published, register


@register(
    "child_tuning_f",
    summary="Random part of the gradient, drawn anew every step",
    cost="3F + mask",
    memory="none",
    paper="Xu et al., EMNLP 2021",
    claims="rule: mask",
)
class ChildTuningF(Method):
    """Settings of Child-Tuning-F.

    Args:
        reserve_p: Probability that an entry is kept, in (0, 1] (the released script: 0.3); 1 is
            plain fine-tuning.
    """

    PUBLISHED: ClassVar[dict[str, Published]] = {
        "reserve_p": Published("0.3", "released script"),
    }

    reserve_p: FiniteFloat = Field(default=0.3, gt=0.0, le=1.0)

    def off(self) -> Self:
        """Keep everything."""
        return self._with(reserve_p=1.0)

    def update(self) -> list[UpdateRule]:
        """Return the update rule."""
        if self.reserve_p == 1.0:
            return []
        return [RandomMask(keep=self.reserve_p)]
