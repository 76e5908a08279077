"""Weight averaging: the final weights are a running average over the steps.

After each step ``average = b * average + (1 - b) * w`` with ``b = min(decay, c / (c + warm_up))``,
c the number of averaged steps so far. So it is an exponential moving average whose decay warms up.
With ``decay`` and ``warm_up`` of 1 it is the mean (preset ``mean``). ``begin`` excludes the first
part of the run.

Source: Polyak and Juditsky (1992); the mean of the last part: SWA, Izmailov et al., UAI 2018; the
warm-up: polynomial-decay averaging, Shamir and Zhang, ICML 2013. Differs: docs/methods/ema.md.
"""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field

from temper.backward.averaging import FinalAverage
from temper.backward.rule import UpdateRule
from temper.methods import Method, register
from temper.methods.bounds import Fraction, Nonnegative, Rate


@register(
    "ema",
    summary="Keeps the average of the weights over the steps",
    cost="3F",
    memory="one copy of the weights",
    paper="Izmailov et al., UAI 2018",
)
class EMA(Method):
    """Settings of weight averaging."""

    OFF: ClassVar = {"decay": 0.0}

    # SWA: the mean over the last quarter of the run.
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        "mean": {"decay": 1.0, "warm_up": 1.0, "begin": 0.75},
    }

    decay: Fraction = Field(
        default=0.999,
        description="Maximum weight b of the previous average. 0 is plain fine-tuning; with 1 "
        "only the warm-up limits b.",
    )
    warm_up: Nonnegative = Field(
        default=9.0,
        description="How slowly b rises to `decay`: 0 has no warm-up, 1 averages all steps so far "
        "equally, 9 about the last tenth of them.",
    )
    begin: Rate = Field(
        default=0.0, description="Fraction of the run, from its start, that is not averaged."
    )

    def check(self) -> None:
        super().check()
        if self.decay == 1 and not self.warm_up:
            raise ValueError(
                "decay=1 with warm_up=0 would keep the weights of the first step. Set warm_up=1 "
                "for the mean, or a smaller decay"
            )

    def update(self) -> list[UpdateRule]:
        return [FinalAverage(self.decay, self.warm_up, self.begin)] if self.decay else []
