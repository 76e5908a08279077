"""Several labels per text: each of L labels applies or does not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from temper.errors import DataError
from temper.functional.precision import at_least_single
from temper.heads.classification import Classification
from temper.heads.head import UNLABELED, Gives
from temper.lazy import torch
from temper.types import Batch

if TYPE_CHECKING:
    from torch import Tensor


class MultiLabel(Classification):
    """L yes-or-no labels by sigmoid: binary cross-entropy of each label.

    A unit is one label of one text, U = L. Its two classes have the logits ``(0, z)``, whose
    softmax is the sigmoid of z, so divergences are those of `Classification`. Labels [B, L] are
    from 0 to 1; -100 is an unknown label, which is ignored. ``class_weights`` [L] are factors on
    the loss of the labels that apply (torch's ``pos_weight``).

    Transformers takes the mean over all labels of a micro-batch, ours is that over the step.
    """

    name: ClassVar[str] = "multi_label"
    labels: ClassVar[str] = "several labels per text"
    gives: ClassVar[Gives] = "labels"
    problem_type: ClassVar[str | None] = "multi_label_classification"
    one_unit: ClassVar[bool] = False

    def logits(self, output: Any, batch: Batch, *, model: str = "the model") -> Tensor:
        """Return ``(0, z)`` for each label [B, L, 2]."""
        by_row = super().logits(output, batch, model=model).squeeze(1)
        return torch.stack([torch.zeros_like(by_row), by_row], -1)

    def unit_mask(self, batch: Batch, logits: Tensor) -> Tensor:
        """Return which labels are known [B, L]."""
        if batch.labels is None:
            return super().unit_mask(batch, logits)
        return batch.labels != UNLABELED

    def units(self, batch: Batch) -> int:
        """Count the known labels; of a batch without labels, all that the model has."""
        if batch.labels is None:
            return batch.size * self.outputs
        return int((batch.labels != UNLABELED).sum())

    def unit_labels(self, logits: Tensor, labels: Tensor) -> Tensor:
        if labels.shape != logits.shape[:2]:
            raise DataError(
                f"Expected {logits.shape[1]} labels per text, as the model has outputs, got labels "
                f"of shape {tuple(labels.shape)}. Give each text a list of 0 and 1, one per label."
            )
        return labels

    def as_returned(self, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return the model's logits and the labels, both [B, L]."""
        return logits[..., 1], labels

    def answers(self, logits: Tensor) -> Tensor:
        return logits[..., 1]

    def unit_loss(self, logits: Tensor, labels: Tensor, *, smoothing: float) -> Tensor:
        """Compute the binary cross-entropy of each label [B, L]; smoothing s moves it to s / 2."""
        scores = at_least_single(logits)[..., 1]
        known = labels != UNLABELED
        targets = torch.where(known, labels, 0).to(scores.dtype)
        if not self._checked or labels.device.type == "cpu":
            self._checked = True
            if bool(((targets < 0) | (targets > 1)).any()):
                raise DataError(
                    "A label of a text with several labels must be in [0, 1]; -100 is an unknown "
                    "label. Give each text a list of 0 and 1, one per label."
                )
        if smoothing:
            targets = (1 - smoothing) * targets + smoothing / 2
        weights = None if self.class_weights is None else self.class_weights.to(scores.dtype)
        losses = torch.nn.functional.binary_cross_entropy_with_logits(
            scores, targets, pos_weight=weights, reduction="none"
        )
        return losses.masked_fill(~known, 0.0)
