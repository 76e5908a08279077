"""Token classification: tags of words, such as named entities."""

from __future__ import annotations

from typing import Any, ClassVar

from temper.errors import DataError, ModelError
from temper.functional.precision import at_least_single
from temper.heads.classification import Classification
from temper.heads.head import UNLABELED, Gives
from temper.lazy import Tensor
from temper.types import Batch


class Tokens(Classification):
    """One class per labeled token (named entities, parts of speech).

    A unit is a token, U = T. Labels are [B, T], and -100 for padding, special tokens and all
    sub-words of a word except the first. Without labels, all tokens except padding count.

    The loss is the mean over the labeled tokens of the optimizer step; Transformers averages each
    micro-batch.
    """

    name: ClassVar[str] = "tokens"
    labels: ClassVar[str] = "tags of words"
    gives: ClassVar[Gives] = "tags"
    auto_class: ClassVar[str] = "AutoModelForTokenClassification"
    problem_type: ClassVar[str | None] = None
    task_type: ClassVar[str | None] = "TOKEN_CLS"
    one_unit: ClassVar[bool] = False
    not_in_windows: ClassVar[str] = "a word in two windows would have two predictions"

    def logits(self, output: Any, batch: Batch, *, model: str = "the model") -> Tensor:
        """Return the logits of each token [B, T, C]."""
        logits: Tensor = at_least_single(getattr(output, "logits", output))
        if logits.dim() != 3 or logits.shape[:2] != batch.ids.shape:
            raise ModelError(
                f"Expected one row of logits per token, {[*batch.ids.shape, 'classes']}, but "
                f"{model} returned {tuple(logits.shape)}. Load the checkpoint with "
                "AutoModelForTokenClassification."
            )
        return logits

    def unit_mask(self, batch: Batch, logits: Tensor) -> Tensor:
        """Return which tokens are labeled [B, T]."""
        return batch.mask if batch.labels is None else batch.labels != UNLABELED

    def units(self, batch: Batch) -> int:
        return int((batch.mask if batch.labels is None else batch.labels != UNLABELED).sum())

    def unit_labels(self, logits: Tensor, labels: Tensor) -> Tensor:
        if labels.shape != logits.shape[:2]:
            raise DataError(
                f"Expected one label per token, {list(logits.shape[:2])}, got labels of shape "
                f"{tuple(labels.shape)}. Pad them with -100 as the texts are padded: "
                "DataCollatorForTokenClassification."
            )
        return labels
