"""Predict with a sequence classifier and its tokenizer; attacks can perturb its embeddings."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
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
from temper.data.spans import answer_place
from temper.data.tags import of_words
from temper.data.token_spans import Span, lacks_spans, token_spans
from temper.errors import ModelError
from temper.evaluation.predictor import (
    BROKEN,
    KINDS,
    Gives,
    Precision,
    Prediction,
    RowBatch,
    Session,
    States,
    in_order,
    joined,
)
from temper.functional.label_names import are_named
from temper.functional.resampling import FloatArray
from temper.heads import Choices, MultiLabel, Spans, Tokens, best_spans, head_of
from temper.models.kinds import head_name, position_limit
from temper.models.modes import in_mode, in_single
from temper.models.network import Network
from temper.models.pieces import WholeWords, whole_words
from temper.models.probing import innermost
from temper.models.states import Trace, lacks_second_derivative, layer_means
from temper.models.windows import windows_of
from temper.types import Batch, Windows

CHUNK = 4096
"""Number of rows that are tokenized at a time."""


class TextPredictor:
    """The tokenizer and the head of a checkpoint.

    Args:
        config: The configuration of a Transformers model. With None or another object the model
            has two or more classes without names.
        tokenizer: The model's tokenizer.
        max_length: Tokens a text is cut to, >= 1; at most as many as the model has positions for.
        positions: Number of these positions; None without a limit.

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
        self.windows: Windows | None = None
        head = head_of(config)
        self.gives: Gives = "logits" if head.has_classes else "values"
        if head is MultiLabel:
            self.gives = "labels"
        self.label_names = label_names_of(config) if head.has_classes else None

    def encoded(self, examples: Examples) -> EncodedExamples:
        """Tokenize a set.

        Args:
            examples: Texts; labels are ignored.

        Returns:
            The set's rows, unpadded and without labels.
        """
        bare = replace(examples, labels=None, label_names=None, kind="unlabeled")
        return encode(
            bare,
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


# [UNK] and [MASK] replace words of the text, so they do not count as special here.
_SPECIAL = ("bos", "eos", "cls", "sep", "pad")


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
        super().__init__(
            getattr(model, "config", None),
            tokenizer,
            max_length=max_length,
            positions=position_limit(model),
        )
        self.model = model if device is None else model.to(device)
        self.batch_size = batch_size
        self.precision = precision
        of_head: dict[str | None, Gives] = {
            Tokens.name: "tags",
            Choices.name: "choices",
            Spans.name: "spans",
        }
        self.gives = of_head.get(head_name(model), self.gives)
        if self.gives in ("choices", "spans"):
            self.label_names = None
        # A model that was trained on windows of texts also predicts from windows.
        self.windows = None if (result := windows_of(model)) is None else result.windows
        self._words: WholeWords | None = None

    @property
    def device(self) -> torch.device:
        """Device of the model."""
        return next(self.model.parameters()).device

    def mixed(self) -> AbstractContextManager[Any]:
        """Return the context of a forward pass: autocast if the precision is mixed."""
        if self.precision == "fp32":
            return nullcontext()
        return torch.autocast(self.device.type, dtype=torch.bfloat16)

    def predict(self, examples: Examples, *, batch_size: int | None = None) -> Prediction:
        """Predict examples, in their order.

        Args:
            examples: Texts; labels are ignored.
            batch_size: Rows of a forward pass, None for the predictor's own.

        Returns:
            Logits of a classifier, or values of a regression.

        Raises:
            ModelError: An output is not finite or has the wrong shape.
        """
        if not len(examples):
            raise ModelError(f"Set {examples.name!r} has no rows to predict.")
        if self.gives == "spans":
            return self._spans(examples, batch_size)
        answers = [
            self.predict_encoded(self.encoded(chunk), batch_size=batch_size)
            for chunk in self._chunks(examples)
        ]
        return joined(range(len(examples)), answers)

    def _spans(self, examples: Examples, batch_size: int | None) -> Prediction:
        positions = np.full((len(examples), 2), -1)
        chances, cut, first = np.zeros(len(examples)), 0.0, 0
        with in_mode(self.model, training=False), torch.no_grad(), self.mixed():
            for chunk in self._chunks(examples):
                encoded = self.encoded(chunk)
                for indices, batch in self._batches(encoded, batch_size):
                    logits = Spans().logits(self.model(**batch.inputs), batch)
                    ends, likely = best_spans(logits)
                    ends = ends - batch.begins[:, None]
                    for index, pair, chance in zip(
                        indices, ends.tolist(), likely.tolist(), strict=True
                    ):
                        positions[first + index] = answer_place(encoded[index], *pair)
                        chances[first + index] = chance
                cut += encoded.truncated * len(encoded)
                first += len(chunk)
        return Prediction.of_spans(positions, chances, truncated=cut / len(examples))

    def predict_with_states(
        self, examples: Examples, *, batch_size: int | None = None
    ) -> tuple[Prediction, NDArray[np.float32]]:
        """Predict examples and return their hidden states, in one forward pass per batch.

        A row's state at a layer is the mean over its tokens of the layer's output.

        Args:
            examples: Texts, n >= 1; labels are ignored.
            batch_size: Rows of a forward pass, None for the predictor's own.

        Returns:
            The output of `predict`, and the states of all layers, the embeddings first, [n, L, D]
            fp32. For an encoder-decoder model they are the encoder's states.

        Raises:
            ModelError: The model does not return its hidden states, or an output or a state is not
                finite.
        """
        indices: list[int] = []
        states, answers = [], []
        asking = self._with_states()
        with in_mode(self.model, training=False), torch.no_grad(), self.mixed():
            for part in self.parts(examples, batch_size=batch_size):
                given = self.model(**part.batch.inputs, **asking)
                states.append(layer_means(given, part.batch.mask).cpu().numpy())
                logits = given.logits.double().cpu().numpy()
                if part.words is None:
                    answers.append(self._read(logits, part.truncated))
                else:
                    rows = part.of_words(logits)
                    answers.append(Prediction.of_tags(rows, truncated=part.truncated))
                indices += part.indices
        if not indices:
            raise ModelError(f"Set {examples.name!r} has no rows to predict.")
        # fp32 saves memory (L * D numbers per row), and the states were computed in fp32.
        read = np.concatenate(states)[np.argsort(indices)]
        if not bool(np.isfinite(read).all()):
            raise ModelError(f"A hidden state of set {examples.name!r} is not finite. {BROKEN}")
        return joined(indices, answers), read

    def _with_states(self) -> dict[str, bool]:
        """Return the argument that makes the model return its hidden states.

        Raises:
            ModelError: The model has no such argument.
        """
        taken = inspect.signature(innermost(self.model).forward).parameters
        if "output_hidden_states" not in taken and "kwargs" not in taken:
            raise ModelError(f"{type(self.model).__name__} does not give its hidden states.")
        return {"output_hidden_states": True}

    def predict_encoded(
        self,
        encoded: EncodedExamples,
        *,
        batch_size: int | None = None,
        tell: Callable[[int, int], None] | None = None,
    ) -> Prediction:
        """Predict rows of token ids, in their order.

        Args:
            encoded: At least one row; rows of similar length share a batch.
            batch_size: Rows of a forward pass, None for the predictor's own.
            tell: Called after each pass with the number of finished rows and of all rows.
        """
        if not len(encoded):
            raise ModelError("There are no rows to run the model on.")
        indices: list[int] = []
        answers: list[Any] = []
        with in_mode(self.model, training=False), torch.no_grad(), self.mixed():
            for positions, batch in self._batches(encoded, batch_size):
                output = self.model(**batch.inputs)
                logits = output if isinstance(output, Tensor) else output.logits
                indices += positions
                if self.gives == "tags":
                    words = [encoded[index]["words"] for index in positions]
                    values = logits.double().cpu().numpy()
                    answers += of_words(values, batch.begins, words, missing=np.nan)
                else:
                    answers.append(logits)
                if tell is not None:
                    tell(len(indices), len(encoded))
        if self.gives == "tags":
            rows = [answers[position] for position in np.argsort(indices)]
            return Prediction.of_tags(rows, truncated=encoded.truncated)
        return self._read(in_order(indices, answers), encoded.truncated)

    def parts(self, examples: Examples, *, batch_size: int | None = None) -> Iterator[RowBatch]:
        """Cut examples into batches of similar length, on the model's device.

        Args:
            examples: Texts.
            batch_size: Rows of a batch, None for the predictor's own.

        Yields:
            Every row once.
        """
        ids = {getattr(self.tokenizer, f"{name}_token_id", None) for name in _SPECIAL} - {None}
        special = torch.tensor(sorted(ids), dtype=torch.int64, device=self.device)
        start = 0
        for chunk in self._chunks(examples):
            encoded = self.encoded(chunk)
            for indices, batch in self._batches(encoded, batch_size):
                marks = torch.isin(batch.ids, special) & batch.mask
                rows = [chunk.rows[index] for index in indices]
                positions = [start + index for index in indices]
                words = None
                if self.gives == "tags":
                    words = [encoded[index]["words"] for index in indices]
                yield RowBatch(batch, positions, rows, marks, encoded.truncated, words)
            start += len(chunk)

    @contextmanager
    def session(self, *, single: bool = False) -> Iterator[Session]:
        """Open the model for perturbation; its state and hooks are restored on exit.

        Args:
            single: Whether to compute everything in fp32 until the exit.

        Yields:
            A session.
        """
        with ExitStack() as stack:
            stack.enter_context(in_mode(self.model, training=False))
            if single:
                stack.enter_context(in_single(self.model))
            # Without this the backward pass would compute weight gradients that nothing reads.
            wanted = [weight for weight in self.model.parameters() if weight.requires_grad]
            network = Network(self.model)
            try:
                for weight in wanted:
                    weight.requires_grad_(False)
                yield _ClassifierSession(self, network, nullcontext if single else self.mixed)
            finally:
                network.remove_hooks()
                for weight in wanted:
                    weight.requires_grad_(True)

    def states(self, examples: Examples, *, batch_size: int | None = None) -> Iterator[States]:
        """Yield every row's hidden states where the head reads them, and the predictions.

        It takes one forward pass per batch. Only the head has an autograd graph.

        Args:
            examples: Texts.
            batch_size: Rows of a forward pass, None for the predictor's own.

        Yields:
            Every row once, on the CPU.

        Raises:
            ModelError: The model has no repeated blocks, or the logits do not depend on the last.
        """
        with self.session() as session:
            for part in session.parts(examples, batch_size=batch_size):
                trace = session.read(part)
                layers = [layer.detach().float().cpu() for layer in trace.at_head()]
                assert trace.logits is not None
                answers = self._read(trace.logits.detach().double().cpu().numpy(), part.truncated)
                yield States(part.indices, part.rows, layers, answers)

    def lacks_second_derivative(self) -> str:
        """Return why the model cannot be differentiated twice and what to do; empty if it can."""
        return lacks_second_derivative(self.model)

    def vocabulary(self) -> Vocabulary:
        """Return the tokenizer's ids, grouped by how a corruption may use them."""
        return Vocabulary.of(self.tokenizer, size=self._vocabulary_size)

    def spans(self, examples: Examples) -> list[list[Span | None]]:
        """Return the position of each token of `encoded` in its texts, None for added ones.

        Args:
            examples: Texts.

        Raises:
            DataError: The tokenizer does not return the positions.
        """
        return token_spans(examples, self.tokenizer, max_length=self.max_length)

    def whole_words(self) -> WholeWords:
        """Return the ids of the tokenizer that are whole words."""
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
        size: int | None = getattr(getattr(self.model, "config", None), "vocab_size", None)
        return size

    def _batches(
        self, encoded: EncodedExamples, batch_size: int | None
    ) -> Iterator[tuple[list[int], Batch]]:
        collate = Collator(self.tokenizer)
        size = self.batch_size if batch_size is None else batch_size
        for indices in ordered_batches(encoded.lengths, batch_size=size):
            result = Batch.of(collate([encoded[index] for index in indices]))
            inputs = {name: value.to(self.device) for name, value in result.inputs.items()}
            context = None if result.context is None else result.context.to(self.device)
            yield list(indices), Batch(inputs, context=context)


class _ClassifierSession:
    """The session of a `ClassifierPredictor`."""

    def __init__(
        self,
        predictor: ClassifierPredictor,
        network: Network,
        mixed: Callable[[], AbstractContextManager[Any]],
    ) -> None:
        self._predictor = predictor
        self._network = network
        self._mixed = mixed

    def parts(self, examples: Examples, *, batch_size: int | None = None) -> Iterator[RowBatch]:
        return self._predictor.parts(examples, batch_size=batch_size)

    def logits(self, part: RowBatch, *, delta: Tensor | None = None) -> Tensor:
        # cuDNN's recurrent layers cannot run backward in eval mode.
        with torch.backends.cudnn.flags(enabled=False), self._mixed():
            units = self._network.logits(part.batch, delta=delta)
            return units if self._predictor.gives in ("labels", "tags") else units[:, 0]

    def embeddings(self, part: RowBatch) -> Tensor:
        return self._network.embeddings(part.batch)

    def vectors(self, part: RowBatch, ids: Tensor) -> Tensor:
        self._network.probe(part.batch)
        rows = Batch({"input_ids": ids.to(part.batch.device).unsqueeze(0)})
        return self._network.embeddings(rows).squeeze(0)

    def traced(self, part: RowBatch) -> Trace:
        tracer = self._network.tracer(part.batch)
        texts = None if self._predictor.windows is None else part.batch.size
        with torch.enable_grad(), tracer.tracing(twice=True, texts=texts) as trace:
            trace.logits = self.logits(part)
        return trace

    def read(self, part: RowBatch) -> Trace:
        with self._network.tracer(part.batch).reading() as trace:
            trace.logits = self.logits(part)
        return trace
