"""Classification: each unit has one of C classes."""

from __future__ import annotations

from typing import ClassVar

from numpy.typing import ArrayLike

from temper.errors import DataError
from temper.functional.calibration import probabilities_of
from temper.functional.losses import Divergence, distillation, jensen_shannon, symmetric_kl
from temper.functional.precision import at_least_single
from temper.functional.resampling import FloatArray
from temper.heads.head import UNLABELED, Gives, Head
from temper.lazy import Tensor, torch


class Classification(Head):
    """One class per unit: cross-entropy, optionally with class weights, and divergences of softmax.

    With smoothing s the target is ``(1 - s) * onehot(y) + s / C``. Class weights multiply each
    class of this target, as in torch's ``cross_entropy``, and are not normalized.
    """

    name: ClassVar[str] = "classification"
    labels: ClassVar[str] = "classes"
    gives: ClassVar[Gives] = "logits"
    problem_type: ClassVar[str | None] = "single_label_classification"
    has_classes: ClassVar[bool] = True
    named: ClassVar[bool] = True

    _checked = False

    def unit_loss(self, logits: Tensor, labels: Tensor, *, smoothing: float) -> Tensor:
        """Compute the cross-entropy of each unit; it is 0 for the label -100."""
        scores = at_least_single(logits)
        classes = scores.shape[-1]
        if classes == 1:
            raise DataError(
                "The labels are class indices, but the model returns one number per row (a "
                "regression head). Use floating-point labels, or a head with one logit per class."
            )
        # On a GPU the check forces a synchronization, so only the first batch is checked.
        if not self._checked or labels.device.type == "cpu":
            self._checked = True
            check_classes(labels, classes)
        weights = None if self.class_weights is None else self.class_weights.to(scores.dtype)
        losses = torch.nn.functional.cross_entropy(
            scores.flatten(0, 1),
            labels.flatten(),
            weight=weights,
            reduction="none",
            label_smoothing=smoothing,
        )
        return losses.view(labels.shape)

    def divergence(self, first: Tensor, second: Tensor, *, kind: Divergence) -> Tensor:
        """Compute the Jensen-Shannon (``js``) or symmetric KL divergence of each unit."""
        measure = {"js": jensen_shannon, "sym_kl": symmetric_kl}[kind]
        return measure(first, second)

    def distillation(self, student: Tensor, teacher: Tensor, *, temperature: float) -> Tensor:
        """Compute ``T^2 KL(softmax(t / T) || softmax(z / T))`` for teacher t and student z."""
        return distillation(student, teacher, temperature=temperature)

    def predictions(self, logits: Tensor) -> Tensor:
        return logits.argmax(-1)

    def decode(self, logits: ArrayLike) -> FloatArray:
        return probabilities_of(logits)


def check_classes(labels: Tensor, classes: int) -> None:
    """Raise a `DataError` if a class index is out of range; -100 (no label) is allowed."""
    # Without it, torch raises an error that does not name the label.
    wrong = labels[((labels < 0) | (labels >= classes)) & (labels != UNLABELED)]
    if wrong.numel():
        raise DataError(
            f"Label {int(wrong[0])} is out of range: the model has {classes} classes, so labels "
            f"must be in 0 to {classes - 1}. Load the model with num_labels set to the number of "
            "classes, or renumber the labels from 0."
        )
