"""The contract of a head: everything that depends on the kind of labels.

A head sees a model's output as units, each with one label and one loss. A classifier of texts has
one unit per row; a tagger has one per word. Methods work on logits [B, U, C] and never look at
labels.

Letters: B rows, U units of a row, C scores of a unit, K passes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

from numpy.typing import ArrayLike

from temper.errors import DataError, ModelError, SettingError
from temper.functional.losses import Divergence
from temper.functional.precision import at_least_single
from temper.functional.resampling import FloatArray
from temper.lazy import torch
from temper.types import UNLABELED as UNLABELED
from temper.types import Batch

if TYPE_CHECKING:
    from torch import Tensor

GivenLoss: TypeAlias = "Callable[[Tensor, Tensor], Tensor]"
"""A user's loss: logits [B, C] and labels [B] to the losses [B] or their mean."""
Gives = Literal["logits", "probabilities", "values", "labels", "tags", "choices", "spans", "texts"]
"""Kinds of output of a predictor."""


class Head(ABC):
    """Losses, divergences and predictions of one kind of labels.

    The layout (`logits`, `unit_mask`, `units`, `unit_labels`) is by default one unit per row.
    Heads with other units override it. All losses and divergences are per unit and divided by
    nothing: the caller sums them with `per_row` and divides by the `units` of the optimizer step.

    Attributes:
        name: The kind of labels.
        labels: The labels in words, for messages.
        gives: Kind of output of a predictor with this head.
        auto_class: Class of Transformers that loads its models.
        problem_type: Entry of the model's config that tells it from others of the same class; None
            if there are none.
        task_type: PEFT's name of the task, None if it has none.
        has_classes: Whether the C scores of a unit compete (softmax). Label smoothing and penalties
            on differences of logits need classes. A method that uses one of them checks this.
        named: Whether labels are classes, labels or tags with names.
        one_unit: Whether a row has one unit.
        not_in_windows: Why texts with such labels are not read in windows; empty if labels belong
            to a text as a whole, and not to words, positions, choices or next tokens.

    Args:
        class_weights: [C] factors on the loss of each class; None for none.
        task_loss: A user's function in place of the head's own loss. It gets logits in the shape in
            which the model returns them, and returns one loss per row, of a head with several units
            per row one per unit, or a mean, which then counts for each of them.
        outputs: Scores per text that the model's config has, for heads that count them.
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
        """Return further arguments of the model's forward; none, unless a head overrides it.

        Arguments that the forward of the model, without wrappers, does not take are dropped.
        """
        return {}

    def logits(self, output: Any, batch: Batch, *, model: str = "the model") -> Tensor:
        """Read the logits [B, U, C], in at least fp32, from a tensor or an output of Transformers.

        Raises:
            ModelError: If the shape is wrong.
        """
        logits: Tensor = at_least_single(
            output if isinstance(output, torch.Tensor) else output.logits
        )
        if logits.dim() not in (1, 2) or len(logits) != batch.size:
            raise ModelError(
                f"Expected one row of logits per text, [{batch.size}, classes], but {model} "
                f"returned {tuple(logits.shape)}. Load the checkpoint with the class that "
                "Transformers has for the task, such as AutoModelForTokenClassification, and the "
                "head is recognized."
            )
        # A custom module may return [B], and a user's loss then expects [B] and not [B, 1].
        self._flat = logits.dim() == 1
        return logits.reshape(len(logits), 1, -1)

    def unit_mask(self, batch: Batch, logits: Tensor) -> Tensor:
        """Return which units count [B, U], boolean; all, unless a head overrides it."""
        return torch.ones(logits.shape[:2], dtype=torch.bool, device=logits.device)

    def units(self, batch: Batch) -> int:
        """Count the units of a batch, which losses are divided by after a sum over the step.

        A label of -100 has no loss, but its row counts.
        """
        return batch.size

    def movable(self, batch: Batch) -> Tensor:
        """Return which tokens an attack may move [B, T], boolean: all real ones."""
        return batch.mask

    def unit_labels(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return one label per unit [B, U].

        Raises:
            DataError: If their number is wrong.
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
        """Compute the task loss of each unit, [B, U] in at least fp32.

        ``smoothing`` is the fraction of each label that is spread over all classes, in [0, 1].

        Raises:
            DataError: If the labels do not fit the logits.
            SettingError: If smoothing or class weights need classes and there are none, a user's
                loss returns another shape, or smoothing is set with a user's loss.
        """
        if self.task_loss is not None:
            return self._given_loss(self.task_loss, logits, labels, smoothing)
        return self.unit_loss(logits, self.unit_labels(logits, labels), smoothing=smoothing)

    def _given_loss(
        self, function: GivenLoss, logits: Tensor, labels: Tensor, smoothing: float
    ) -> Tensor:
        if smoothing:
            raise SettingError(
                "Label smoothing changes the default task loss, but a loss function was given "
                "instead. Leave one of them out."
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
        """Return logits and labels in the shape in which a user's loss expects them.

        Logits are [B, C] or [B], and labels [B]; of a head with several units per row they are
        [B, U, C] and [B, U].
        """
        return logits.flatten() if self._flat else self.by_row(logits), self.by_row(labels)

    def by_row(self, units: Tensor) -> Tensor:
        """Return values of units [B, U, ...], as [B, ...] if a row has one unit."""
        return units.squeeze(1) if self.one_unit else units

    @abstractmethod
    def unit_loss(self, logits: Tensor, labels: Tensor, *, smoothing: float) -> Tensor:
        """Compute the head's own loss [B, U] in at least fp32; labels are [B, U]."""

    @abstractmethod
    def divergence(self, first: Tensor, second: Tensor, *, kind: Divergence) -> Tensor:
        """Compute the divergence of two passes, unit by unit: [B, U] in at least fp32."""

    @abstractmethod
    def distillation(self, student: Tensor, teacher: Tensor, *, temperature: float) -> Tensor:
        """Compute how far a student's predictions are from a teacher's: [B, U] in at least fp32.

        ``teacher`` may be log-probabilities.
        """

    @abstractmethod
    def answers(self, logits: Tensor) -> Tensor:
        """Return what metrics compare with the labels [B, U]: classes, values, or binary logits."""

    @abstractmethod
    def decode(self, logits: ArrayLike) -> FloatArray:
        """Return the predictions in float64: probabilities [..., C], or values [..., 1]."""

    def pairwise(self, logits: Sequence[Tensor], *, kind: Divergence) -> Tensor:
        """Sum the divergence over all pairs of passes: ``sum_{l<k} D(P_l || P_k)``.

        The result is [B, U] in at least fp32; zeros for one pass.

        References:
            UEGR (arXiv 2503.16550), Eq. 4.
        """
        total = logits[0].new_zeros(logits[0].shape[:-1], dtype=torch.float32)
        for later in range(1, len(logits)):
            for earlier in range(later):
                total = total + self.divergence(logits[earlier], logits[later], kind=kind)
        return total


def per_row(values: Tensor, mask: Tensor) -> Tensor:
    """Sum each row's units, [B, U] to [B]; units that do not count may be NaN."""
    return values.masked_fill(~mask, 0.0).sum(1)
