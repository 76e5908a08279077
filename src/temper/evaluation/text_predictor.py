"""What predictors of checkpoints share: a tokenizer, class names, and answers from logits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from temper.data.encode import EncodedExamples, encode
from temper.data.examples import Examples
from temper.errors import ModelError
from temper.evaluation.predictor import KINDS, Gives, Prediction
from temper.functional.label_names import are_named
from temper.functional.resampling import FloatArray
from temper.heads import MultiLabel, head_of

WINDOW = 4096
"""Rows that are tokenized at a time."""


class TextPredictor:
    """The tokenizer and the head of a checkpoint.

    Args:
        config: The configuration of a Transformers model; None or another object has two classes
            or more without names.
        tokenizer: The model's tokenizer.
        max_length: Tokens a text is cut to, >= 1; at most as many as the model has positions for.
        positions: How many these are; None without a limit.

    Raises:
        ModelError: The length is below its bound.
    """

    def __init__(
        self, config: Any, tokenizer: Any, *, max_length: int, positions: int | None
    ) -> None:
        if max_length < 1:
            raise ModelError(f"`max_length` must be >= 1, got {max_length}.")
        self.config = config
        self.tokenizer = tokenizer
        self.positions = positions
        # More tokens than the model has positions for would fail in the middle of its forward pass.
        self.max_length = max_length if positions is None else min(max_length, positions)
        head = head_of(config)
        self.gives: Gives = "logits" if head.has_classes else "values"
        if head is MultiLabel:
            self.gives = "labels"
        self.label_names = label_names_of(config) if head.has_classes else None

    def encoded(self, examples: Examples) -> EncodedExamples:
        """Tokenize a set.

        Args:
            examples: Texts; labels are not looked at.

        Returns:
            Its rows, unpadded and without labels.
        """
        bare = replace(examples, labels=None, label_names=None, kind="unlabelled")
        return encode(bare, self.tokenizer, max_length=self.max_length, kind=KINDS.get(self.gives))

    def truncated(self, examples: Examples) -> float:
        """Return the share of the examples that are cut to ``max_length``."""
        windows = self._windows(examples)
        cut = sum(self.encoded(window).truncated * len(window) for window in windows)
        return cut / len(examples)

    def _windows(self, examples: Examples) -> Iterator[Examples]:
        """Cut a set where it is long: token ids weigh more than the texts, so few are held."""
        if len(examples) <= WINDOW:
            yield examples
            return
        for start in range(0, len(examples), WINDOW):
            yield examples.select(range(start, min(start + WINDOW, len(examples))))

    def _read(self, answers: FloatArray, truncated: float | None) -> Prediction:
        if self.gives == "values":
            return Prediction.of_values(answers[:, 0], truncated=truncated)
        if self.gives == "labels":
            return Prediction.of_labels(answers, truncated=truncated)
        return Prediction.of_logits(answers, truncated=truncated)


def label_names_of(config: Any) -> tuple[str, ...] | None:
    """Return the classes that a model's config names by index, None for placeholders."""
    names = getattr(config, "id2label", None)
    if not names:
        return None
    ordered = tuple(str(names[index]) for index in sorted(names, key=int))
    return ordered if are_named(ordered) else None
