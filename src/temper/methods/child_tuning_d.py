"""Child-Tuning-D: only those weights of the blocks train that the task's gradient asks for most.

One pass over the training rows sums squared gradients of the clean loss, each tensor's gradient
clipped first; the largest ``reserve_p`` of all the blocks' entries are trained from then on.

Source: Xu et al., EMNLP 2021; released code alibaba/AliceMind, ChildTuning@c17b177. As there,
nothing is divided by p, the rest of the model trains freely, and masked weights still move by
momentum and decay. Differs: exactly the share that was asked for is kept (the released code keeps
every entry equal to the percentile), and the network says where its blocks are (there, a
parameter's name does).
"""

from __future__ import annotations

from typing import ClassVar, Self

from pydantic import Field

from temper.backward.child_tuning import ChosenMask
from temper.backward.rule import UpdateRule
from temper.methods import Method, Published, register


@register(
    "child_tuning_d",
    summary="Only the weights with the largest squared gradients train",
    cost="3F + mask, after one epoch of 3F",
    memory="one byte an entry; before training the blocks once more",
    paper="Xu et al., EMNLP 2021",
    claims="rule: mask",
)
class ChildTuningD(Method):
    """Settings of Child-Tuning-D.

    Args:
        reserve_p: Share of the blocks' entries that train, in (0, 1] (the released script: 0.3); 1
            is plain fine-tuning.
        largest_norm: What the gradient of each tensor is clipped to before it is squared, above 0
            (the released code: the training's ``max_grad_norm``, 1).
    """

    PUBLISHED: ClassVar[dict[str, Published]] = {
        "reserve_p": Published("0.3", "released script"),
        "largest_norm": Published("max_grad_norm, 1", "released code"),
    }

    reserve_p: float = Field(default=0.3, gt=0.0, le=1.0)
    largest_norm: float = Field(default=1.0, gt=0.0, allow_inf_nan=False)

    def off(self) -> Self:
        """Train everything."""
        return self._with(reserve_p=1.0)

    def update(self) -> list[UpdateRule]:
        """Return the update rule."""
        if self.reserve_p == 1.0:
            return []
        rule = ChosenMask(keep=self.reserve_p, largest_norm=self.largest_norm)
        return [rule]
