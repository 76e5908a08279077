"""SMART: virtual adversarial training, and a pull towards the average network.

``L = CE(x) + weight * max_{||d|| <= epsilon} symKL(f(x), f(x + d)) + proximal_weight * symKL(f(x),
f_ema(x))``, where f_ema is the network at an exponential moving average of its weights, without
gradient and with the same dropout masks.

Source: Jiang et al., ACL 2020 (arXiv 1911.03437). Differs: the ascent maximizes the paper's
divergence, which the released loop does not (docs/methods/vat.md). No released code has the
proximal term; here the average is updated after every optimizer step.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from pydantic import Field

from temper.backward.averaging import update_average
from temper.backward.rule import Parameters, UpdateRule, WeightAverageRule
from temper.forward import Losses, Plan, StepContext
from temper.lazy import Tensor, torch
from temper.methods import register
from temper.methods.bounds import Fraction, Nonnegative, Rate
from temper.methods.vat import VAT
from temper.types import State, Step, Term

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class WeightAverage(WeightAverageRule):
    """Keep an exponential moving average of the weights, without changing the weights.

    After each step ``ema = b * ema + (1 - b) * w``. b is ``decay`` in the first fraction ``early``
    of the steps, then ``final_decay``. If the number of steps is unknown, b stays ``decay``.

    It takes a copy of the trainable weights in at least fp32.

    References:
        SMART (arXiv 1911.03437); Mean Teacher (arXiv 1703.01780) for the two decays.
    """

    decay: float = 0.99
    final_decay: float = 0.999
    early: float = 0.1

    name = "average"
    supports_fsdp = True

    def init(self, params: Parameters) -> State:
        # Unlike `RunningAverage`, this one starts at the weights before the first step.
        weights: dict[str, Tensor] = {}
        update_average(weights, params, fraction=1.0)
        return {"weights": weights}

    def after_step(self, params: Parameters, state: State, step: Step) -> None:
        if step.number == 0 and not step.total and self.decay != self.final_decay:
            logger.warning(
                "The number of steps is unknown, so the average of the weights keeps decay=%g, and "
                "final_decay=%g is never used. Pass Stepper(..., total=STEPS).",
                self.decay,
                self.final_decay,
            )
        if not step.skipped:
            update_average(state["weights"], params, fraction=1 - self.decay_at(step))

    def decay_at(self, step: Step) -> float:
        """Return b for the update after a step."""
        late = step.total and step.number + 1 > self.early * step.total
        return self.final_decay if late else self.decay


@register(
    "smart",
    summary="VAT plus the divergence from an average of the weights",
    cost="9F (+2F per further attack step; without the average 8F)",
    memory="one copy of the weights, activations of two passes",
    paper="Jiang et al., ACL 2020",
)
class SMART(VAT):
    """Settings of SMART, VAT and the attack."""

    OFF: ClassVar = {"weight": 0.0, "proximal_weight": 0.0}

    # The paper's experiments: as VAT's preset, with mu = 1, beta = 0.99 for the first tenth of the
    # steps and 0.999 for the rest.
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        "paper": {**VAT.PRESETS["smart_paper"], "proximal_weight": 2.0},
    }

    proximal_weight: Nonnegative = Field(
        default=2.0,
        description="Weight of the divergence from the average network. The paper's 1 is 2 here, "
        "because its divergence has no factor 1/2. 0 keeps no average and costs 8F.",
    )
    decay: Rate = Field(default=0.99, description="Decay of the average in the early steps.")
    final_decay: Rate = Field(
        default=0.999,
        description="Decay after the early steps. Not used if the number of steps is unknown.",
    )
    early: Fraction = Field(default=0.1, description="Fraction of the steps that use `decay`.")

    def plan(self, now: Step) -> Plan:
        if not self.proximal_weight:
            return super().plan(now)
        base = super().plan(now) if self.weight else Plan(task_weight=1.0)
        return replace(base, clean=True, needs_labels=False)

    def losses(self, step: StepContext) -> Iterator[Losses]:
        terms: list[Term | None] = [step.clean.task]
        if self.weight:
            terms.append(self.smoothness(step))
        if self.proximal_weight:
            terms.append(self._proximal(step))
        yield terms

    def _proximal(self, step: StepContext) -> Term:
        """Return ``proximal_weight * symKL(f(x), f_ema(x))``, without gradient through f_ema."""
        logits, stream = step.single_clean()  # f(x), [B, U, C]
        with torch.no_grad():
            average = step.average(WeightAverage.name)
            teacher = step.logits(stream, weights=average, wrapped=False)  # f_ema(x), [B, U, C]
        return step.divergence(
            (logits, teacher),
            self.divergence,
            self.reduction,
            weight=self.proximal_weight,
            name="proximal",
        )

    def update(self) -> list[UpdateRule]:
        if not self.proximal_weight:
            return []
        return [WeightAverage(self.decay, self.final_decay, self.early)]
