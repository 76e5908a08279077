"""All heads by name, and the heads of one model."""

from __future__ import annotations

import pkgutil
from importlib import import_module
from pathlib import Path

from temper.heads.classification import Classification
from temper.heads.head import GivenLoss, Head
from temper.heads.regression import Regression
from temper.lazy import Tensor
from temper.types import Batch

# Collected from all modules of the package, so a new head only needs a new file.
HEADS: dict[str, type[Head]] = {
    head.name: head
    for module in pkgutil.iter_modules([str(Path(__file__).parent)])
    for head in vars(import_module(f"temper.heads.{module.name}")).values()
    if isinstance(head, type) and issubclass(head, Head) and hasattr(head, "name")
}
"""Name -> head; a subclass comes after its base class, because its module imports that."""


class Heads:
    """The head, or the heads, of one model.

    A sequence classifier may train on several tasks, with class labels in one batch and numbers in
    another. So it chooses between `Classification` and `Regression` for each batch. ``head`` is
    that of the model's class and config; the other arguments are those of `Head`.
    """

    def __init__(
        self,
        head: type[Head] = Classification,
        *,
        class_weights: Tensor | None = None,
        task_loss: GivenLoss | None = None,
        outputs: int = 1,
    ) -> None:
        def made(kind: type[Head]) -> Head:
            return kind(class_weights=class_weights, task_loss=task_loss, outputs=outputs)

        by_labels = head in (Classification, Regression)
        self._head = made(Classification if by_labels else head)
        self._regression = made(Regression) if by_labels else self._head

    def of(self, labels: Tensor | None, logits: Tensor | None = None) -> Head:
        """Return the head for a batch's labels, or for its logits (one output: regression)."""
        if labels is not None:
            is_regression = labels.is_floating_point()
        else:
            is_regression = logits is not None and logits.shape[-1] == 1
        return self._regression if is_regression else self._head

    def units(self, batch: Batch) -> int:
        return self.of(batch.labels).units(batch)
