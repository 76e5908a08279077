"""Which head a model and its labels have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from temper.errors import ModelError
from temper.heads.choices import Choices
from temper.heads.classification import Classification
from temper.heads.completions import Completions, Seq2Seq
from temper.heads.head import GivenLoss, Head
from temper.heads.multi_label import MultiLabel
from temper.heads.regression import Regression
from temper.heads.spans import Spans
from temper.heads.tokens import Tokens
from temper.types import Batch

if TYPE_CHECKING:
    from torch import Tensor

HEADS: dict[str, type[Head]] = {
    head.name: head
    for head in (
        Classification,
        Regression,
        MultiLabel,
        Tokens,
        Spans,
        Choices,
        Completions,
        Seq2Seq,
    )
}


class Heads:
    """The heads of one model: the one that its class decides, or that of each batch's labels.

    A sequence classifier of several tasks has batches with classes and batches with numbers, so its
    head is chosen for each batch and not once for a run.

    A ``name`` is for models with only one head; the other arguments are those of `Head`.
    """

    def __init__(
        self,
        name: str | None = None,
        *,
        class_weights: Tensor | None = None,
        task_loss: GivenLoss | None = None,
        outputs: int = 1,
    ) -> None:
        self.name = name
        names = (Classification.name, Regression.name) if name is None else (name,)
        self._by_name = {
            each: HEADS[each](class_weights=class_weights, task_loss=task_loss, outputs=outputs)
            for each in names
        }

    def of(self, labels: Tensor | None, logits: Tensor | None = None) -> Head:
        """Return the head of a batch; without labels, of its logits: one output is a regression."""
        if self.name is not None:
            return self._by_name[self.name]
        if labels is not None:
            regression = labels.is_floating_point()
        else:
            regression = logits is not None and logits.shape[-1] == 1
        return self._by_name[Regression.name if regression else Classification.name]

    def units(self, batch: Batch) -> int:
        return self.of(batch.labels).units(batch)


def head_of(config: Any, *, model: str = "the model") -> type[Head]:
    """Return the head of a trained sequence classifier by its config.

    No config, or one without ``num_labels``, is a classifier.

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
    if getattr(config, "problem_type", None) == "multi_label_classification":
        return MultiLabel
    return Regression if regression or outputs == 1 else Classification
