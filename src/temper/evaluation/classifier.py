"""Predict with a sequence classifier and its tokenizer; attacks can perturb its embeddings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from temper.data.batches import ordered_batches
from temper.data.collator import Collator
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
    Session,
    States,
    answers_of,
    answers_of_texts,
    in_order,
)
from temper.evaluation.session import ModelSession, opened, read_states, special_ids
from temper.functional.label_names import are_named
from temper.models.kinds import check_outputs, head_of, position_limit
from temper.models.modes import in_mode
from temper.models.pieces import WholeWords, whole_words
from temper.models.states import lacks_second_derivative
from temper.models.windows import windows_of
from temper.types import Batch, Windows

OF_TOKENS: tuple[Gives, ...] = ("tags", "spans")
"""Kinds of output whose labels are those of tokens."""
CHUNK = 4096
"""Number of rows that are tokenized at a time."""


class TextPredictor:
    """The tokenizer and the head of a checkpoint.

    Args:
        model: A module, or the configuration of a sequence classifier. Without a configuration it
            has two or more classes without names.
        tokenizer: The model's tokenizer.
        max_length: Tokens a text is cut to, >= 1; at most as many as the model has positions for.
        positions: Number of these positions; None without a limit.

    Raises:
        ModelError: The length is below its bound.
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
        """Tokenize texts, without labels and padding."""
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
        """Return the fraction of the examples that are cut to ``max_length``."""
        chunks = self._chunks(examples)
        cut = sum(self.encoded(chunk).truncated * len(chunk) for chunk in chunks)
        return cut / len(examples)

    def _chunks(self, examples: Examples) -> Iterator[Examples]:
        """Split a long set, because token ids take more memory than the texts."""
        if len(examples) <= CHUNK:
            yield examples
            return
        for start in range(0, len(examples), CHUNK):
            yield examples.select(range(start, min(start + CHUNK, len(examples))))


def label_names_of(config: Any) -> tuple[str, ...] | None:
    """Return the classes' names by index, None for placeholders."""
    names = getattr(config, "id2label", None)
    if not names:
        return None
    ordered = tuple(str(names[index]) for index in sorted(names, key=int))
    return ordered if are_named(ordered) else None


class ClassifierPredictor(TextPredictor):
    """Predict with a sequence classifier or regression and its tokenizer.

    The model is in eval mode while it predicts. Its training flags, hooks, gradients and random
    states are restored afterwards. Batches have rows of similar length; no prediction depends on
    its batch.

    Args:
        model: A Transformers sequence classifier, or a module that takes ``input_ids`` and returns
            logits.
        tokenizer: The model's tokenizer.
        max_length: Tokens a text is cut to, >= 1; at most as many as the model has positions for.
        batch_size: Default number of rows of a forward pass, >= 1.
        device: Device to move the model to; None does not move it.
        precision: ``fp32`` for the dtype of the weights, or mixed precision in ``bf16``.

    Raises:
        ModelError: A number is below its bound.
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

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    def mixed(self) -> AbstractContextManager[Any]:
        if self.precision == "fp32":
            return nullcontext()
        return torch.autocast(self.device.type, dtype=torch.bfloat16)

    def predict(self, examples: Examples, *, batch_size: int | None = None) -> Prediction:
        """Predict logits of a classifier, or values of a regression, in the examples' order.

        Raises:
            ModelError: An output is not finite or has the wrong shape.
        """
        if not len(examples):
            raise ModelError(f"Set {examples.name!r} has no rows to predict.")
        answers = [
            self.predict_encoded(self.encoded(chunk), batch_size=batch_size)
            for chunk in self._chunks(examples)
        ]
        return joined(range(len(examples)), answers)

    def predict_with_states(
        self, examples: Examples, *, batch_size: int | None = None
    ) -> tuple[Prediction, NDArray[np.float32]]:
        """Predict examples and return their hidden states, in one forward pass per batch.

        A row's state at a layer is the mean over its tokens of the layer's output.

        The states of all layers, the embeddings first, are [n, L, D] fp32; those of an
        encoder-decoder model are the encoder's.

        Raises:
            ModelError: The model does not return its hidden states, or an output or a state is not
                finite.
        """
        parts = self.parts(examples, batch_size=batch_size)
        return read_states(self.model, parts, self._run, name=examples.name)

    def _run(self, part: RowBatch, **asked: bool) -> tuple[Any, Prediction]:
        with self.mixed():
            output = self.model(**part.batch.inputs, **asked)
        answers = answers_of(
            self.head.by_row(self.head.logits(output, part.batch)),
            gives=self.gives,
            batch=part.batch,
            items=part.items,
            truncated=part.truncated,
        )
        return output, answers

    def predict_encoded(
        self,
        encoded: EncodedExamples,
        *,
        batch_size: int | None = None,
        tell: Callable[[int, int], None] | None = None,
    ) -> Prediction:
        """Predict rows of token ids, at least one, in their order.

        Rows of similar length share a batch. ``tell`` is called after each pass with the number of
        finished rows and of all rows.
        """
        if not len(encoded):
            raise ModelError("There are no rows to run the model on.")
        indices: list[int] = []
        outputs: list[Tensor] = []
        answers: list[Prediction] = []
        with in_mode(self.model, training=False), torch.no_grad(), self.mixed():
            for positions, batch in self._batches(encoded, batch_size):
                logits = self.head.by_row(self.head.logits(self.model(**batch.inputs), batch))
                if self.gives in OF_TOKENS:
                    items = [encoded[index] for index in positions]
                    answers.append(answers_of(logits, gives=self.gives, batch=batch, items=items))
                else:
                    outputs.append(logits)
                indices += positions
                if tell is not None:
                    tell(len(indices), len(encoded))
        if answers:
            return replace(joined(indices, answers), truncated=encoded.truncated)
        values = in_order(indices, outputs)
        return answers_of_texts(values, gives=self.gives, truncated=encoded.truncated)

    def parts(self, examples: Examples, *, batch_size: int | None = None) -> Iterator[RowBatch]:
        """Cut examples into batches of similar length, every row once, on the model's device."""
        special = special_ids(self.tokenizer).to(self.device)
        start = 0
        for chunk in self._chunks(examples):
            if self.gives in OF_TOKENS and chunk.kind == KINDS[self.gives]:
                # Labels of tokens have the positions of their batch.
                encoded = self._encoded(chunk)
            else:
                encoded = self.encoded(chunk)
            for indices, batch in self._batches(encoded, batch_size):
                marks = torch.isin(batch.ids, special) & batch.mask
                rows = [chunk.rows[index] for index in indices]
                positions = [start + index for index in indices]
                items = [encoded[index] for index in indices]
                yield RowBatch(batch, positions, rows, marks, encoded.truncated, items)
            start += len(chunk)

    @contextmanager
    def session(self, *, single: bool = False) -> Iterator[Session]:
        """Open the model for perturbation; its state and hooks are restored on exit.

        With ``single`` everything is computed in fp32.
        """
        with opened(self.model, single=single) as network:
            yield ModelSession(
                network,
                self.parts,
                lambda _, units: self.head.by_row(units),
                mixed=nullcontext if single else self.mixed,
                windows=self.windows,
            )

    def states(self, examples: Examples, *, batch_size: int | None = None) -> Iterator[States]:
        """Yield every row's hidden states where the head reads them.

        They are on the CPU. It takes one forward pass per batch. Only the head has an autograd
        graph.

        Raises:
            ModelError: The model has no repeated blocks, or the logits do not depend on the last.
        """
        with self.session() as session:
            for part in session.parts(examples, batch_size=batch_size):
                trace = session.read(part)
                layers = [layer.detach().float().cpu() for layer in trace.at_head()]
                yield States(part.indices, layers)

    def lacks_second_derivative(self) -> str:
        """Return why the model cannot be differentiated twice and what to do; empty if it can."""
        return lacks_second_derivative(self.model)

    def vocabulary(self) -> Vocabulary:
        """Return the tokenizer's ids, grouped by how a corruption may use them."""
        return Vocabulary.of(self.tokenizer, size=self._vocabulary_size)

    def spans(self, examples: Examples) -> list[list[Span | None]]:
        """Return the position of each token of `encoded` in its texts, None for added ones."""
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
        """Rows of the model's embedding table, None if its config does not have them."""
        size: int | None = getattr(self.config, "vocab_size", None)
        return size

    def _batches(
        self, encoded: EncodedExamples, batch_size: int | None
    ) -> Iterator[tuple[list[int], Batch]]:
        collate = Collator(self.tokenizer)
        size = self.batch_size if batch_size is None else batch_size
        for indices in ordered_batches(encoded.lengths, batch_size=size):
            batch = Batch.of(collate([encoded[index] for index in indices]))
            yield list(indices), batch.to(self.device)
