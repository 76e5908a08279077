"""LP-FT: linear probing, then fine-tuning, in one run.

For the first steps the head trains alone on the pre-trained features; then everything does. A head
that fits the features bends them less than one drawn at random.

Source: Kumar et al., ICLR 2022. Differs: one run with one learning rate schedule, where the paper
trains the head to the end, then starts over from it; dropout stays on while the head trains alone.
"""

from __future__ import annotations

from typing import Any, Self

from pydantic import Field, model_validator

from temper.backward.phases import HeadFirst
from temper.backward.rule import chain
from temper.forward.objective import Clean
from temper.methods.method import Method, MethodConfig
from temper.methods.registry import register

RATIO = 0.2


@register(
    "lp_ft",
    summary="The head alone first, then everything",
    cost="F while the head trains alone, then 3F",
    memory="none",
    paper="Kumar et al., ICLR 2022",
)
class LPFT(MethodConfig):
    """Settings of LP-FT.

    Args:
        probe_ratio: Share of all steps that train the head alone, in [0, 1]; 0 is plain
            fine-tuning, 1 is linear probing. The default is ours: the paper has two runs.
        probe_steps: How many steps do, in place of the share.
        head_learning_rate_scale: Factor on the learning rate while the head trains alone, above 0.
    """

    PRETRAINED = "trains the head on pre-trained features first"

    probe_ratio: float | None = Field(default=RATIO, ge=0.0, le=1.0)
    probe_steps: int | None = Field(default=None, ge=0)
    head_learning_rate_scale: float = Field(default=1.0, gt=0.0, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _take_one_of_both(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("probe_steps") is not None:
            return {"probe_ratio": None, **values}
        return values

    @model_validator(mode="after")
    def _check_length(self) -> Self:
        if (self.probe_ratio is None) == (self.probe_steps is None):
            raise ValueError(
                "one of probe_ratio and probe_steps must be given, got "
                f"probe_ratio={self.probe_ratio} and probe_steps={self.probe_steps}"
            )
        return self

    def off(self) -> Self:
        """Train everything from the first step on."""
        return self._with(probe_ratio=0.0, probe_steps=None)

    def build(self) -> Method:
        """Return the method."""
        if not (self.probe_ratio or self.probe_steps):
            return Method("lp_ft", self, Clean(), chain())
        rule = HeadFirst(
            ratio=self.probe_ratio,
            steps=self.probe_steps,
            learning_rate_scale_of_head=self.head_learning_rate_scale,
        )
        return Method("lp_ft", self, Clean(), chain(rule))
