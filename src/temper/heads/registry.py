"""Which head a model and its labels have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from temper.errors import ModelError
from temper.heads.classification import Classification
from temper.heads.head import GivenLoss, Head
from temper.heads.regression import Regression
from temper.types import Batch

if TYPE_CHECKING:
    from torch import Tensor

HEADS: dict[str, type[Head]] = {head.name: head for head in (Classification, Regression)}


class Heads:
    """The heads of one model. The labels of each batch decide which one applies.

    A model of several tasks has batches with classes and batches with numbers, so the head is
    chosen for each batch and not once for a run.

    Args:
        class_weights: As `Head` takes them.
        task_loss: As `Head` takes it.
    """

    def __init__(
        self, *, class_weights: Tensor | None = None, task_loss: GivenLoss | None = None
    ) -> None:
        self._by_name = {
            name: head(class_weights=class_weights, task_loss=task_loss)
            for name, head in HEADS.items()
        }

    def of(self, labels: Tensor | None, logits: Tensor | None = None) -> Head:
        """Return the head of a batch.

        Args:
            labels: The labels of the batch; floating-point labels are a regression.
            logits: [..., C], which decide if there are no labels: one output is a regression.
        """
        if labels is not None:
            regression = labels.is_floating_point()
        else:
            regression = logits is not None and logits.shape[-1] == 1
        return self._by_name[Regression.name if regression else Classification.name]

    def units(self, batch: Batch) -> int:
        """Count the units of a batch; see `Head.units`."""
        return self.of(batch.labels).units(batch)


def head_of(config: Any, *, model: str = "the model") -> type[Head]:
    """Return the head of a trained sequence classifier by its config.

    Args:
        config: The model's config; None, or one without ``num_labels``, is a classifier.
        model: The model's name, for the error.

    Raises:
        ModelError: If it is a regression with several outputs.
    """
    outputs = getattr(config, "num_labels", 2)
    regression = getattr(config, "problem_type", None) == "regression"
    if regression and outputs != 1:
        raise ModelError(
            f"A regression must have one output, {model} has {outputs}. "
            "Set `problem_type` of its config to what it is."
        )
    return Regression if regression or outputs == 1 else Classification
