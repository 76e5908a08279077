"""Multi-label classification: each of L labels applies to a text or not."""

from __future__ import annotations

from typing import Any, ClassVar

from temper.errors import DataError
from temper.functional.precision import at_least_single
from temper.heads.classification import Classification
from temper.heads.head import UNLABELED, Gives
from temper.lazy import Tensor, torch
from temper.types import Batch


class MultiLabel(Classification):
    """L binary labels per text with sigmoid outputs: binary cross-entropy of each label.

    A unit is one label of one text, U = L. It has two classes with the logits ``(0, z)``, whose
    softmax is the sigmoid of z, so divergences are those of `Classification`. Labels [B, L] are in
    [0, 1], or -100 if unknown. ``class_weights`` [L] are factors on the loss of the labels that
    apply (torch's ``pos_weight``).

    The loss is the mean over the known labels of the optimizer step; Transformers averages each
    micro-batch.
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
        """Return the number of known labels; without labels, L for each text."""
        if batch.labels is None:
            return batch.size * self.outputs
        return int((batch.labels != UNLABELED).sum())

    def unit_labels(self, logits: Tensor, labels: Tensor) -> Tensor:
        if labels.shape != logits.shape[:2]:
            raise DataError(
                f"Expected {logits.shape[1]} labels per text, one per output of the model, got "
                f"labels of shape {tuple(labels.shape)}. Give each text a list of 0 and 1."
            )
        return labels

    def as_returned(self, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return the model's logits and the labels, both [B, L]."""
        return logits[..., 1], labels

    def predictions(self, logits: Tensor) -> Tensor:
        return logits[..., 1]

    def unit_loss(self, logits: Tensor, labels: Tensor, *, smoothing: float) -> Tensor:
        """Compute the binary cross-entropy of each label, [B, L].

        Smoothing s replaces the label y by ``(1 - s) y + s / 2``.
        """
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
