"""R-Drop: two passes with different dropout masks, and the divergence between them.

``L = 1/2 (CE_1 + CE_2) + weight * (KL(1||2) + KL(2||1)) / 2``; a regression uses the squared
difference.

Source: Liang et al., NeurIPS 2021; released code dropreg/R-Drop@9dcc830. It sums the divergence
over the batch but averages CE, so its effective weight grows with the batch size B: 0.25 B for
BERT, 0.7 B for RoBERTa. Differs: both passes are one batched forward.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from pydantic import Field

from temper.forward import Losses, Plan, StepContext, SubModels
from temper.functional.losses import Divergence
from temper.methods import Method, register
from temper.methods.bounds import Nonnegative
from temper.types import Reduction, Step


@register(
    "r_drop",
    summary="Loss of two dropout passes plus the divergence between them",
    cost="6F",
    memory="activations of two passes",
    paper="Liang et al., NeurIPS 2021",
)
class RDrop(Method):
    """Settings of R-Drop."""

    OFF: ClassVar = {"weight": 0.0}

    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        "released_bert": {"weight": 0.25, "reduction": "sum"},
        "released_roberta": {"weight": 0.7, "reduction": "sum"},
    }

    weight: Nonnegative = Field(
        default=1.0,
        description="Weight of the divergence (the paper: 0.5 to 5 for the batch mean); 0 is "
        "plain fine-tuning.",
    )
    divergence: Divergence = Field(
        default="sym_kl", description="Type of divergence: `sym_kl` as published, or `js`."
    )
    reduction: Reduction = Field(
        default="mean",
        description="Reduction of the divergence over the rows: `mean` (the paper's formula) or "
        "`sum` (the released code).",
    )

    def plan(self, now: Step) -> Plan:
        if not self.weight:
            return Plan()
        return Plan(
            clean=True,
            task_weight=1.0,
            submodels=SubModels(passes=2),
            conflicts=frozenset({"sub-models"}),
        )

    def losses(self, step: StepContext) -> Iterator[Losses]:
        """Yield ``1/2 (CE_1 + CE_2)`` and ``weight * (KL(1||2) + KL(2||1)) / 2`` in one total."""
        clean = step.clean  # its logits: 2 x [B, U, C]
        yield [
            clean.task,
            step.divergence(clean.logits, self.divergence, self.reduction, weight=self.weight),
        ]
