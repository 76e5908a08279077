"""Dropout: the same rate in every dropout layer, one pass.

Source: UEGR (arXiv 2503.16550), the "w/" rows of Table IV (0.5 for classical models).
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field, FiniteFloat

from temper.forward import Plan, SubModels
from temper.methods import Method, register
from temper.types import Step


@register(
    "dropout",
    summary="One pass with every dropout layer at a set rate",
    cost="3F",
    memory="none",
    paper="Srivastava et al., JMLR 2014; UEGR Table IV",
)
class Dropout(Method):
    """Settings of dropout at a fixed rate."""

    OFF: ClassVar = {"rate": None}

    rate: FiniteFloat | None = Field(
        default=0.5,
        ge=0.0,
        lt=1.0,
        description="Rate of every dropout layer, attention included if it reads its layer's rate "
        "(the paper: 0.5 for classical models).",
    )

    def plan(self, now: Step) -> Plan:
        """Use the rate in every single pass: the clean one and those of other methods."""
        if self.rate is None:
            return Plan()
        single = SubModels(passes=1, adaptive="fixed", rates=(self.rate,))
        return Plan(submodels=single, conflicts=frozenset({"sub-models"}))
