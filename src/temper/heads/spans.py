"""Extractive question answering: start and end of the answer in a context."""

from __future__ import annotations

from typing import Any, ClassVar

from temper.errors import DataError, ModelError, SettingError
from temper.functional.precision import at_least_single
from temper.heads.classification import Classification, check_classes
from temper.heads.head import UNLABELED, Gives
from temper.lazy import Tensor, torch
from temper.types import Batch


class Spans(Classification):
    """Start and end of an answer, each a softmax over the tokens of the context.

    A row has two units (start and end), whose classes are the tokens, C = T. Labels are token
    positions [B, 2]. A position outside the text, from a truncated answer, does not count, as in
    Transformers. Padding, and the question if the batch has a ``context_mask``, cannot be chosen:
    their logit is the lowest finite number, because -inf would make divergences NaN.
    """

    name: ClassVar[str] = "spans"
    labels: ClassVar[str] = "answers in a context"
    gives: ClassVar[Gives] = "spans"
    auto_class: ClassVar[str] = "AutoModelForQuestionAnswering"
    task_type: ClassVar[str | None] = "QUESTION_ANS"
    named: ClassVar[bool] = False
    one_unit: ClassVar[bool] = False
    not_in_windows: ClassVar[str] = "an answer is in some windows of the context and in others not"

    def logits(self, output: Any, batch: Batch, *, model: str = "the model") -> Tensor:
        """Return the logits of start and end [B, 2, T]."""
        ends = [getattr(output, f"{end}_logits", None) for end in ("start", "end")]
        result = [end for end in ends if end is not None and end.shape == batch.ids.shape]
        if len(result) < 2:
            raise ModelError(
                f"Expected start_logits and end_logits {list(batch.ids.shape)} from {model}. Load "
                "the checkpoint with AutoModelForQuestionAnswering."
            )
        logits = torch.stack([at_least_single(item) for item in result], 1)
        allowed = batch.mask if batch.context is None else batch.mask & batch.context.bool()
        return logits.masked_fill(~allowed.unsqueeze(1), torch.finfo(logits.dtype).min)

    def unit_mask(self, batch: Batch, logits: Tensor) -> Tensor:
        """Return which labels are positions in the text, [B, 2]."""
        if batch.labels is None:
            return super().unit_mask(batch, logits)
        return _inside(batch.labels, logits.shape[-1]) != UNLABELED

    def units(self, batch: Batch) -> int:
        """Return the number of labels in the text; without labels, two per row."""
        if batch.labels is None:
            return 2 * batch.size
        return int((_inside(batch.labels, batch.ids.shape[1]) != UNLABELED).sum())

    def unit_labels(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the positions [B, 2], with -100 for those outside the text."""
        if labels.shape != logits.shape[:2]:
            raise DataError(
                f"Expected start and end per text, [{len(logits)}, 2], got labels of shape "
                f"{tuple(labels.shape)}. Pass start_positions and end_positions."
            )
        return _inside(labels, logits.shape[-1])

    def unit_loss(self, logits: Tensor, labels: Tensor, *, smoothing: float) -> Tensor:
        """Compute the cross-entropy of start and end; smoothing spreads over selectable tokens."""
        if self.class_weights is not None:
            raise SettingError(
                "Start and end positions are not classes, so they cannot have class weights. Leave "
                "the class weights out."
            )
        check_classes(labels, logits.shape[-1])
        allowed = logits > torch.finfo(logits.dtype).min
        scores = at_least_single(logits).log_softmax(-1)
        known = labels != UNLABELED
        at_label = scores.gather(-1, torch.where(known, labels, 0).unsqueeze(-1)).squeeze(-1)
        mean = scores.masked_fill(~allowed, 0.0).sum(-1) / allowed.sum(-1).clamp(min=1)
        losses = -(1 - smoothing) * at_label - smoothing * mean
        return losses.masked_fill(~known, 0.0)


LONGEST = 30
"""Maximum number of tokens of a predicted answer, as in Transformers' examples."""


def best_spans(logits: Tensor, *, longest: int = LONGEST) -> tuple[Tensor, Tensor]:
    """Return the most probable answer of each row, whose end is not before its start.

    The probability of an answer is ``softmax(z_start)[i] softmax(z_end)[j]``, because both
    positions are trained separately. It is maximized over ``i <= j < i + longest``.

    ``logits`` of start and end are [B, 2, T], as `Spans` returns them.

    Returns:
        The positions [B, 2] of the first and the last token, and the probabilities [B] in float64.

    Example:
        >>> positions, _ = best_spans(torch.tensor([[[0.0, 3.0, 0.0], [3.5, 0.0, 1.0]]]))
        >>> positions.tolist()
        [[1, 2]]
    """
    scores = logits.double().log_softmax(-1)
    pairs = scores[:, 0, :, None] + scores[:, 1, None, :]
    tokens = pairs.shape[-1]
    allowed = torch.ones(tokens, tokens, dtype=torch.bool, device=pairs.device)
    allowed = allowed.triu().tril(longest - 1)
    best, indices = pairs.masked_fill(~allowed, -torch.inf).flatten(1).max(-1)
    ends = (torch.div(indices, tokens, rounding_mode="floor"), indices % tokens)
    return torch.stack(ends, 1), best.exp()


def _inside(labels: Tensor, tokens: int) -> Tensor:
    """Replace positions outside the text by -100, which has no loss."""
    return torch.where((labels >= 0) & (labels < tokens), labels, UNLABELED)
