"""Label smoothing: spread a fraction of every label over all classes.

``L = CE(z, (1 - s) * onehot(y) + s / C)``, in every task loss of a composition.

Source: Szegedy et al., CVPR 2016, section 7.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field, FiniteFloat

from temper.errors import SettingError
from temper.forward import Plan
from temper.heads import Head
from temper.heads.regression import SMOOTHING_NEEDS_CLASSES
from temper.methods import Method, register
from temper.types import Step


@register(
    "label_smoothing",
    summary="A fraction of every label spread over all classes",
    cost="3F",
    memory="none",
    paper="Szegedy et al., CVPR 2016",
)
class LabelSmoothing(Method):
    """Settings of label smoothing."""

    OFF: ClassVar = {"smoothing": 0.0}

    smoothing: FiniteFloat = Field(
        default=0.1,
        ge=0.0,
        lt=1.0,
        description="Fraction s of each label that is spread over all classes (the paper: 0.1); 0 "
        "is plain fine-tuning.",
    )

    def plan(self, now: Step) -> Plan:
        conflicts = {"label smoothing"} if self.smoothing else set()
        return Plan(smoothing=self.smoothing, conflicts=frozenset(conflicts))

    def check_head(self, head: type[Head]) -> None:
        if self.smoothing and not head.has_classes:
            raise SettingError(SMOOTHING_NEEDS_CLASSES)
