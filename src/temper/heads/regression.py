"""Regression: each unit has one number as its label."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from temper.errors import DataError, SettingError
from temper.functional.losses import Divergence, squared_difference
from temper.functional.precision import at_least_single
from temper.functional.resampling import FloatArray
from temper.heads.head import Gives, Head
from temper.lazy import Tensor

SMOOTHING_NEEDS_CLASSES = (
    "Label smoothing needs classes, but the labels are numbers (a regression). Leave it out, or "
    "pass integer labels."
)


class Regression(Head):
    """One number per unit: squared error as loss, squared difference as divergence."""

    name: ClassVar[str] = "regression"
    labels: ClassVar[str] = "numbers"
    gives: ClassVar[Gives] = "values"
    problem_type: ClassVar[str | None] = "regression"
    has_classes: ClassVar[bool] = False

    def unit_loss(self, logits: Tensor, labels: Tensor, *, smoothing: float) -> Tensor:
        """Compute the squared error of each unit."""
        if self.class_weights is not None:
            raise SettingError(
                "Class weights were given, but the labels are numbers (a regression) and have no "
                "classes. Leave the weights out, or pass integer labels."
            )
        if smoothing:
            raise SettingError(SMOOTHING_NEEDS_CLASSES)
        if logits.numel() != labels.numel():
            raise DataError(
                f"The labels are numbers (a regression), but the model returns logits of shape "
                f"{tuple(logits.squeeze(1).shape)} for {labels.numel()} rows. Use integer labels, "
                "or a head with one output."
            )
        values = at_least_single(logits).reshape(labels.shape)
        return (values - labels.to(values.dtype)).square()

    def divergence(self, first: Tensor, second: Tensor, *, kind: Divergence) -> Tensor:
        """Compute the squared difference; ``kind`` is ignored."""
        return squared_difference(first, second)

    def distillation(self, student: Tensor, teacher: Tensor, *, temperature: float) -> Tensor:
        """Compute the squared difference; ``temperature`` is ignored."""
        return squared_difference(student, teacher)

    def predictions(self, logits: Tensor) -> Tensor:
        return logits[..., 0]

    def decode(self, logits: ArrayLike) -> FloatArray:
        return np.asarray(logits, dtype=np.float64)
