"""Predict with a sequence classifier and its tokenizer; attacks can perturb its embeddings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from temper.data.corruptions import Vocabulary
from temper.data.encode import EncodedExamples, encode
from temper.data.examples import Examples
from temper.data.token_spans import Span, lacks_spans, token_spans
from temper.errors import ModelError
from temper.evaluation.prediction import Prediction, joined
from temper.evaluation.predictor import (
    KINDS,
    Gives,
    Precision,
    RowBatch,
    States,
    in_order,
    predictions_of,
    predictions_of_texts,
)
from temper.evaluation.session import ModelPredictor, special_ids
from temper.functional.label_names import are_named
from temper.models.kinds import check_outputs, head_of, position_limit
from temper.models.modes import in_mode
from temper.models.pieces import WholeWords, whole_words
from temper.models.windows import windows_of
from temper.types import Windows

OF_TOKENS: tuple[Gives, ...] = ("tags", "spans")
"""Kinds of output whose labels belong to tokens."""
CHUNK = 4096
"""Number of rows that are tokenized at a time."""


class TextPredictor:
    """Base of predictors with a tokenizer: tokenizes texts, and knows classes and output type.

    Args:
        model: A module, or the configuration of a sequence classifier. A module without a
            configuration counts as a classifier with unnamed classes.
        tokenizer: The model's tokenizer.
        max_length: Maximum number of tokens of a text, >= 1; limited to ``positions``.
        positions: Number of the model's position embeddings; None without a limit.

    Raises:
        ModelError: ``max_length`` is below 1.
    """

    def __init__(
        self, model: Any, tokenizer: Any, *, max_length: int, positions: int | None
    ) -> None:
        if max_length < 1:
            raise ModelError(f"`max_length` must be >= 1, got {max_length}.")
        module = isinstance(model, nn.Module)
        self.config: Any = getattr(model, "config", None) if module else model
        self.tokenizer = tokenizer
        self.positions = positions
        # More tokens than the model has positions for would fail in the middle of its forward pass.
        self.max_length = max_length if positions is None else min(max_length, positions)
        self.windows: Windows | None = None
        check_outputs(self.config)
        self.head = head_of(model)()
        self.gives: Gives = self.head.gives
        self.label_names = label_names_of(self.config) if self.head.named else None

    def encoded(self, examples: Examples) -> EncodedExamples:
        """Return the token ids of texts, without labels and padding."""
        return self._encoded(replace(examples, labels=None, label_names=None, kind="unlabeled"))

    def _encoded(self, examples: Examples) -> EncodedExamples:
        return encode(
            examples,
            self.tokenizer,
            max_length=self.max_length,
            kind=KINDS.get(self.gives),
            windows=self.windows,
        )

    def truncated(self, examples: Examples) -> float:
        """Return the fraction of examples that are longer than ``max_length`` and truncated."""
        chunks = self._chunks(examples)
        cut = sum(self.encoded(chunk).truncated * len(chunk) for chunk in chunks)
        return cut / len(examples)

    def _chunks(self, examples: Examples) -> Iterator[Examples]:
        if len(examples) <= CHUNK:
            yield examples
            return
        for start in range(0, len(examples), CHUNK):
            yield examples.select(range(start, min(start + CHUNK, len(examples))))


def label_names_of(config: Any) -> tuple[str, ...] | None:
    """Return the class names by index; None if they are placeholders such as ``LABEL_0``."""
    names = getattr(config, "id2label", None)
    if not names:
        return None
    ordered = tuple(str(names[index]) for index in sorted(names, key=int))
    return ordered if are_named(ordered) else None


class ClassifierPredictor(ModelPredictor, TextPredictor):
    """Predict with a sequence classifier or regression and its tokenizer.

    The model predicts in eval mode. Its training flags, hooks, gradients and random states are
    restored afterwards. Batches contain rows of similar length and do not affect predictions.

    Args:
        model: A Transformers sequence classifier, or a module that takes ``input_ids`` and returns
            logits.
        tokenizer: The model's tokenizer.
        max_length: Maximum number of tokens of a text, >= 1; limited to the model's positions.
        batch_size: Default number of rows of a forward pass, >= 1.
        device: Device to move the model to; None does not move it.
        precision: ``fp32`` computes in the dtype of the weights, ``bf16`` in mixed precision.

    Raises:
        ModelError: ``max_length`` or ``batch_size`` is below 1.
    """

    def __init__(
        self,
        model: nn.Module,
        tokenizer: Any,
        *,
        max_length: int = 128,
        batch_size: int = 32,
        device: torch.device | str | None = None,
        precision: Precision = "fp32",
    ) -> None:
        if batch_size < 1:
            raise ModelError(f"`batch_size` must be >= 1, got {batch_size}.")
        positions = position_limit(model)
        super().__init__(model, tokenizer, max_length=max_length, positions=positions)
        self.model = model if device is None else model.to(device)
        self.batch_size = batch_size
        self.precision = precision
        # A model that was trained on windows of texts also predicts from windows.
        self.windows = None if (result := windows_of(model)) is None else result.windows
        self._words: WholeWords | None = None

    def mixed(self) -> AbstractContextManager[Any]:
        if self.precision == "fp32":
            return nullcontext()
        return torch.autocast(self.device.type, dtype=torch.bfloat16)

    def predict(self, examples: Examples, *, batch_size: int | None = None) -> Prediction:
        """Predict examples, in their order.

        Raises:
            ModelError: An output is not finite or has the wrong shape.
        """
        if not len(examples):
            raise ModelError(f"Set {examples.name!r} has no rows to predict.")
        predictions = [
            self.predict_encoded(self.encoded(chunk), batch_size=batch_size)
            for chunk in self._chunks(examples)
        ]
        return joined(range(len(examples)), predictions)

    def _run(self, part: RowBatch, **asked: bool) -> tuple[Any, Prediction]:
        with self.mixed():
            output = self.model(**part.batch.inputs, **asked)
        predictions = predictions_of(
            self.head.by_row(self.head.logits(output, part.batch)),
            gives=self.gives,
            batch=part.batch,
            items=part.items,
            truncated=part.truncated,
        )
        return output, predictions

    def predict_encoded(
        self,
        encoded: EncodedExamples,
        *,
        batch_size: int | None = None,
        tell: Callable[[int, int], None] | None = None,
    ) -> Prediction:
        """Predict at least one row of token ids, in their order.

        ``tell`` is called after each batch with the number of finished rows and of all rows.
        """
        if not len(encoded):
            raise ModelError("There are no rows to predict. Pass at least one.")
        indices: list[int] = []
        outputs: list[Tensor] = []
        predictions: list[Prediction] = []
        with in_mode(self.model, training=False), torch.no_grad(), self.mixed():
            for positions, batch in self.batches(encoded, batch_size):
                logits = self.head.by_row(self.head.logits(self.model(**batch.inputs), batch))
                if self.gives in OF_TOKENS:
                    items = [encoded[index] for index in positions]
                    predictions.append(
                        predictions_of(logits, gives=self.gives, batch=batch, items=items)
                    )
                else:
                    outputs.append(logits)
                indices += positions
                if tell is not None:
                    tell(len(indices), len(encoded))
        if predictions:
            return replace(joined(indices, predictions), truncated=encoded.truncated)
        values = in_order(indices, outputs)
        return predictions_of_texts(values, gives=self.gives, truncated=encoded.truncated)

    def parts(self, examples: Examples, *, batch_size: int | None = None) -> Iterator[RowBatch]:
        """Split examples into batches of rows of similar length, on the model's device."""
        special = special_ids(self.tokenizer).to(self.device)
        start = 0
        for chunk in self._chunks(examples):
            if self.gives in OF_TOKENS and chunk.kind == KINDS[self.gives]:
                # Labels of tokens are padded with their batch.
                encoded = self._encoded(chunk)
            else:
                encoded = self.encoded(chunk)
            for indices, batch in self.batches(encoded, batch_size):
                marks = torch.isin(batch.ids, special) & batch.mask
                rows = [chunk.rows[index] for index in indices]
                positions = [start + index for index in indices]
                items = [encoded[index] for index in indices]
                yield RowBatch(batch, positions, rows, marks, encoded.truncated, items)
            start += len(chunk)

    def outputs(self, part: RowBatch, logits: Tensor) -> Tensor:
        return self.head.by_row(logits)

    def states(self, examples: Examples, *, batch_size: int | None = None) -> Iterator[States]:
        """Yield every row's hidden states at the position that the head reads, on the CPU.

        It takes one forward pass per batch.

        Raises:
            ModelError: The model has no repeated blocks, or the logits do not depend on the last
                block.
        """
        with self.session() as session:
            for part in session.parts(examples, batch_size=batch_size):
                trace = session.read(part)
                layers = [layer.detach().float().cpu() for layer in trace.at_head()]
                yield States(part.indices, layers)

    def vocabulary(self) -> Vocabulary:
        """Return which token ids are words, special or [MASK], for corruptions."""
        return Vocabulary.of(self.tokenizer, size=self._vocabulary_size)

    def spans(self, examples: Examples) -> list[list[Span | None]]:
        """Return, for each row, each token's position in the text; None for special tokens."""
        return token_spans(examples, self.tokenizer, max_length=self.max_length)

    def whole_words(self) -> WholeWords:
        if self._words is None:
            self._words = whole_words(self.tokenizer, size=self._vocabulary_size)
        return self._words

    def lacks_words(self) -> str:
        """Return why words cannot be matched to tokens; empty if they can."""
        if self.windows is not None:
            return "the model reads a text in windows that share words"
        return lacks_spans(self.tokenizer)

    @property
    def _vocabulary_size(self) -> int | None:
        """Size of the model's vocabulary, None if its config does not have it."""
        size: int | None = getattr(self.config, "vocab_size", None)
        return size
