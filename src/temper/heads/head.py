"""The interface of a head: everything that depends on the kind of labels.

A *unit* is a part of a row with one label and one loss. Text classification has one unit per row;
tagging has one per word. Methods work on logits [B, U, C] and never read labels.

Letters: B rows, U units of a row, C logits of a unit, K passes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal, TypeAlias

from numpy.typing import ArrayLike

from temper.errors import DataError, ModelError, SettingError
from temper.functional.losses import Divergence
from temper.functional.precision import at_least_single
from temper.functional.resampling import FloatArray
from temper.lazy import Tensor, torch
from temper.types import UNLABELED as UNLABELED
from temper.types import Batch

GivenLoss: TypeAlias = "Callable[[Tensor, Tensor], Tensor]"
"""A user's loss function: logits [B, C] and labels [B] to losses [B] or their mean."""
Gives = Literal["logits", "probabilities", "values", "labels", "tags", "choices", "spans", "texts"]
"""Kinds of output that a predictor may return."""


class Head(ABC):
    """Losses, divergences and predictions for one kind of labels.

    By default there is one unit per row; other heads override `logits`, `unit_mask`, `units` and
    `unit_labels`. Losses and divergences are per unit. The caller sums them with `per_row` and
    divides by the number of `units` in the optimizer step.

    Attributes:
        name: The kind of labels.
        labels: Description of the labels, for messages.
        gives: Output of a predictor with this head.
        auto_class: Transformers class that loads models with this head.
        problem_type: Value in the model's config by which Transformers selects this head; None if
            the class decides.
        task_type: PEFT's name of the task; None without one.
        has_classes: Whether the C logits of a unit are classes (softmax). Label smoothing and
            penalties on differences of logits need classes.
        named: Whether labels have names.
        one_unit: Whether each row has exactly one unit.
        not_in_windows: Why long texts cannot be split into windows with such labels; empty if they
            can, because a label belongs to the whole text.

    Args:
        class_weights: Factors [C] on the loss of each class, or None.
        task_loss: A user's loss, instead of the head's. It gets logits in the shape that the model
            returns. It returns one loss per row (per unit, if a row has several), or their mean.
        outputs: Number of outputs in the model's config (``num_labels``).
    """

    name: ClassVar[str]
    labels: ClassVar[str]
    gives: ClassVar[Gives]
    auto_class: ClassVar[str] = "AutoModelForSequenceClassification"
    problem_type: ClassVar[str | None] = None
    task_type: ClassVar[str | None] = "SEQ_CLS"
    has_classes: ClassVar[bool]
    named: ClassVar[bool] = False
    one_unit: ClassVar[bool] = True
    not_in_windows: ClassVar[str] = ""

    def __init__(
        self,
        *,
        class_weights: Tensor | None = None,
        task_loss: GivenLoss | None = None,
        outputs: int = 1,
    ) -> None:
        self.class_weights = class_weights
        self.task_loss = task_loss
        self.outputs = outputs
        self._flat = False

    def inputs(self, batch: Batch, model: Any) -> dict[str, Any]:
        """Return additional arguments for the model's forward; by default none.

        Arguments that the model's forward does not accept are dropped.
        """
        return {}

    def logits(self, output: Any, batch: Batch, *, model: str = "the model") -> Tensor:
        """Return the logits [B, U, C] in at least fp32 from the output of a model.

        Raises:
            ModelError: If the shape does not fit the head.
        """
        logits: Tensor = at_least_single(
            output if isinstance(output, torch.Tensor) else output.logits
        )
        if logits.dim() not in (1, 2) or len(logits) != batch.size:
            raise ModelError(
                f"Expected one row of logits per text, [{batch.size}, classes], but {model} "
                f"returned {tuple(logits.shape)}. For other kinds of labels, load the checkpoint "
                "with the Transformers class of the task, such as AutoModelForTokenClassification."
            )
        # If a model returns [B], the user's loss expects [B] too, not [B, 1].
        self._flat = logits.dim() == 1
        return logits.reshape(len(logits), 1, -1)

    def unit_mask(self, batch: Batch, logits: Tensor) -> Tensor:
        """Return which units count, [B, U] boolean; by default all."""
        return torch.ones(logits.shape[:2], dtype=torch.bool, device=logits.device)

    def units(self, batch: Batch) -> int:
        """Return the number of units in a batch, by which the sum of losses is divided.

        In this default a row with the label -100 counts, with a loss of 0.
        """
        return batch.size

    def movable(self, batch: Batch) -> Tensor:
        """Return which tokens an attack may move, [B, T] boolean; by default all except padding."""
        return batch.mask

    def unit_labels(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return one label per unit, [B, U].

        Raises:
            DataError: If the number of labels does not fit the logits.
        """
        if labels.numel() != len(logits):
            raise DataError(
                f"Expected one label per row, [{len(logits)}], got labels of shape "
                f"{tuple(labels.shape)}. For several labels per text set "
                "model.config.problem_type='multi_label_classification'; for labels of words load "
                "the model with AutoModelForTokenClassification."
            )
        return labels.reshape(-1, 1)

    def loss(self, logits: Tensor, labels: Tensor, *, smoothing: float = 0.0) -> Tensor:
        """Compute the task loss of each unit, by the head or by the user's function, [B, U].

        ``smoothing`` is the fraction of each label that is spread over all classes, in [0, 1].

        Raises:
            DataError: If the labels do not fit the logits.
            SettingError: If smoothing or class weights are set but the labels are not classes. With
                a user's loss: if smoothing is set, or the loss has a wrong shape.
        """
        if self.task_loss is not None:
            return self._given_loss(self.task_loss, logits, labels, smoothing)
        return self.unit_loss(logits, self.unit_labels(logits, labels), smoothing=smoothing)

    def _given_loss(
        self, function: GivenLoss, logits: Tensor, labels: Tensor, smoothing: float
    ) -> Tensor:
        if smoothing:
            raise SettingError(
                "Label smoothing changes the default task loss, which your loss function replaces. "
                "Leave one of them out."
            )
        by_unit = self.unit_labels(logits, labels)
        outputs, targets = self.as_returned(logits, by_unit)
        value = function(outputs, targets)
        if not isinstance(value, torch.Tensor) or value.shape not in ((), targets.shape):
            got = tuple(value.shape) if isinstance(value, torch.Tensor) else type(value).__name__
            raise SettingError(
                "The loss function must return a scalar or one loss per row "
                f"{list(targets.shape)}, got {got}."
            )
        return at_least_single(value).expand(targets.shape).reshape(by_unit.shape)

    def as_returned(self, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits and labels in the shapes for a user's loss function.

        With one unit per row they are [B, C] (or [B], as the model returns them) and [B]. With
        several units they are [B, U, C] and [B, U].
        """
        return logits.flatten() if self._flat else self.by_row(logits), self.by_row(labels)

    def by_row(self, units: Tensor) -> Tensor:
        """Return [B, U, ...] as [B, ...] if each row has one unit; else unchanged."""
        return units.squeeze(1) if self.one_unit else units

    @abstractmethod
    def unit_loss(self, logits: Tensor, labels: Tensor, *, smoothing: float) -> Tensor:
        """Compute the head's own loss of each unit, [B, U] in at least fp32."""

    @abstractmethod
    def divergence(self, first: Tensor, second: Tensor, *, kind: Divergence) -> Tensor:
        """Compute the divergence of two passes for each unit, [B, U] in at least fp32."""

    @abstractmethod
    def distillation(self, student: Tensor, teacher: Tensor, *, temperature: float) -> Tensor:
        """Compute the distillation loss of each unit, [B, U] in at least fp32.

        Both arguments are logits [B, U, C]; the teacher's may be log-probabilities.
        """

    @abstractmethod
    def predictions(self, logits: Tensor) -> Tensor:
        """Return the predictions for metrics, [B, U]: classes, values or binary logits."""

    @abstractmethod
    def decode(self, logits: ArrayLike) -> FloatArray:
        """Return the predictions in float64: probabilities [..., C], or values [..., 1]."""

    def pairwise(self, logits: Sequence[Tensor], *, kind: Divergence) -> Tensor:
        """Sum the divergence over all pairs of passes, ``sum_{l<k} D(P_l || P_k)``, [B, U].

        With one pass it is 0.

        References:
            UEGR (arXiv 2503.16550), Eq. 4.
        """
        total = logits[0].new_zeros(logits[0].shape[:-1], dtype=torch.float32)
        for later in range(1, len(logits)):
            for earlier in range(later):
                total = total + self.divergence(logits[earlier], logits[later], kind=kind)
        return total


def per_row(values: Tensor, mask: Tensor) -> Tensor:
    """Sum the units of each row, [B, U] to [B]; values of masked units may be NaN."""
    return values.masked_fill(~mask, 0.0).sum(1)
