"""Predictors: anything that maps examples to logits, probabilities or values, and says which.

`ClassifierPredictor` wraps a model with its tokenizer and lets attacks at its embeddings;
`CallablePredictor` wraps any Python function. Letters: B rows, T tokens, D embedding size, C
classes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from temper.data.batches import ordered_batches
from temper.data.corruptions import Vocabulary
from temper.data.encode import Collator, EncodedExamples, encode
from temper.data.examples import Examples
from temper.errors import ModelError
from temper.evaluation.prediction import Prediction
from temper.functional.resampling import FloatArray
from temper.models.modes import in_mode
from temper.models.network import Network
from temper.models.precision import in_single
from temper.models.states import Trace, lacks_second_derivative
from temper.types import Batch

Gives = Literal["logits", "probabilities", "values"]

# Transformers' placeholder where nobody named the classes: it says nothing.
_UNNAMED = re.compile(r"label[_ ]?\d+", re.IGNORECASE)
# [UNK] and [MASK] stand for words of the text, so they are not counted as special here.
_SPECIAL = ("bos", "eos", "cls", "sep", "pad")


@runtime_checkable
class Predictor(Protocol):
    """What every perspective can ask.

    ``gives`` says what the answers are (``logits``, ``probabilities``, or ``values`` of a
    regression); ``label_names`` are the classes by index, or None where the predictor does not
    know them.
    """

    gives: Gives
    label_names: tuple[str, ...] | None

    def predict(self, examples: Examples, *, batch_size: int | None = None) -> Prediction:
        """Answer examples, in their order."""
        ...


@dataclass(frozen=True)
class Part:
    """Some examples as one batch.

    Args:
        batch: The inputs of B rows, without labels.
        indices: Position of each row in its set.
        rows: Hash of each row's text.
        special: Special tokens, [B, T].
    """

    batch: Batch
    indices: list[int]
    rows: list[str]
    special: Tensor


class Session(Protocol):
    """A predictor opened for perturbing: it is in eval mode, and its weights want no gradient."""

    def parts(self, examples: Examples, *, batch_size: int | None = None) -> Iterator[Part]:
        """Cut examples into batches of like length."""
        ...

    def logits(self, part: Part, *, delta: Tensor | None = None) -> Tensor:
        """Return logits [B, C] in fp32, with ``delta`` [B, T, D] added to the word embeddings."""
        ...

    def embeddings(self, part: Part) -> Tensor:
        """Return the word embeddings [B, T, D], detached."""
        ...

    def traced(self, part: Part) -> Trace:
        """Return hidden states and logits, whose graph may be differentiated twice by the words."""
        ...


@runtime_checkable
class PerturbablePredictor(Predictor, Protocol):
    """A predictor that lets attacks and noise at its embeddings."""

    def session(self, *, single: bool = False) -> AbstractContextManager[Session]:
        """Open it, weights in half precision in single where asked; on leaving, it is as it was."""
        ...

    def lacks_second_derivative(self) -> str:
        """Say why it cannot be differentiated twice and what to do; empty where it can."""
        ...

    def truncated(self, examples: Examples) -> float:
        """Return the share of the examples that are cut to the model's length."""
        ...


@runtime_checkable
class TokenPredictor(Predictor, Protocol):
    """A predictor that reads token ids, which a perspective may change."""

    def vocabulary(self) -> Vocabulary:
        """Return the tokenizer's ids, sorted by what a corruption may do with them."""
        ...

    def encoded(self, examples: Examples) -> EncodedExamples:
        """Return the examples' token ids, unpadded and without labels; not to be changed."""
        ...

    def outputs(
        self,
        encoded: EncodedExamples,
        *,
        batch_size: int | None = None,
        tell: Callable[[int, int], None] | None = None,
    ) -> FloatArray:
        """Return logits [n, C], or values [n, 1] of a regression, in the rows' order."""
        ...


class ClassifierPredictor:
    """Predict with a sequence classifier or regression and its tokenizer.

    The model is in eval mode while it answers, and afterwards as it was: training flags, hooks,
    gradients, random states. Batches hold rows of like length; no answer depends on its batch.

    Args:
        model: A Transformers sequence classifier, or a module that takes ``input_ids`` and gives
            logits.
        tokenizer: The model's tokenizer.
        max_length: Tokens a text is cut to, >= 1.
        batch_size: Rows of a forward pass, >= 1, where a call does not say otherwise.
        device: Where to move the model; None leaves it where it is.

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
    ) -> None:
        for name, value in (("max_length", max_length), ("batch_size", batch_size)):
            if value < 1:
                raise ModelError(f"`{name}` must be >= 1, got {value}.")
        self.model = model if device is None else model.to(device)
        self.tokenizer = tokenizer
        self.max_length = max_length
        self.batch_size = batch_size
        config = getattr(model, "config", None)
        outputs = getattr(config, "num_labels", 2)
        regression = outputs == 1 or getattr(config, "problem_type", None) == "regression"
        if regression and outputs != 1:
            raise ModelError(
                f"A regression must have one output, the model has {outputs}. "
                "Set `problem_type` of its config to what it is."
            )
        self.gives: Gives = "values" if regression else "logits"
        self.label_names = None if regression else _label_names(config)
        self._encoded: dict[str, EncodedExamples] = {}

    @property
    def device(self) -> torch.device:
        """Where the model lies."""
        return next(self.model.parameters()).device

    def predict(self, examples: Examples, *, batch_size: int | None = None) -> Prediction:
        """Answer examples, in their order.

        Args:
            examples: Texts; labels are not looked at.
            batch_size: Rows of a forward pass, None for the predictor's own.

        Returns:
            Logits of a classifier, or values of a regression.

        Raises:
            ModelError: An answer is not finite or has the wrong shape.
        """
        if not len(examples):
            raise ModelError(f"Set {examples.name!r} has no rows to predict.")
        encoded = self.encoded(examples)
        answers = self.outputs(encoded, batch_size=batch_size)
        if self.gives == "values":
            return Prediction.of_values(answers[:, 0], truncated=encoded.truncated)
        return Prediction.of_logits(answers, truncated=encoded.truncated)

    def outputs(
        self,
        encoded: EncodedExamples,
        *,
        batch_size: int | None = None,
        tell: Callable[[int, int], None] | None = None,
    ) -> FloatArray:
        """Run the model on token ids.

        Args:
            encoded: At least one row; rows of like length share a batch.
            batch_size: Rows of a forward pass, None for the predictor's own.
            tell: Called after each pass with rows done and rows in all.

        Returns:
            Logits [n, C], or values [n, 1] of a regression, in the rows' order.
        """
        answers: FloatArray | None = None
        done = 0
        with in_mode(self.model, training=False), torch.no_grad():
            for indices, batch in self._batches(encoded, batch_size):
                output = self.model(**batch.inputs)
                logits = output if isinstance(output, Tensor) else output.logits
                if answers is None:
                    answers = np.empty((len(encoded), logits.shape[-1]))
                answers[indices] = logits.double().cpu().numpy()
                done += len(indices)
                if tell is not None:
                    tell(done, len(encoded))
        if answers is None:
            raise ModelError("There are no rows to run the model on.")
        return answers

    def truncated(self, examples: Examples) -> float:
        """Return the share of the examples that are cut to ``max_length``."""
        return float(self.encoded(examples).truncated)

    def parts(self, examples: Examples, *, batch_size: int | None = None) -> Iterator[Part]:
        """Cut examples into batches of like length, on the model's device.

        Args:
            examples: Texts.
            batch_size: Rows of a batch, None for the predictor's own.

        Yields:
            Every row once.
        """
        special = self._special_ids().to(self.device)
        for indices, batch in self._batches(self.encoded(examples), batch_size):
            marks = torch.isin(batch.inputs["input_ids"], special) & batch.mask
            rows = [examples.rows[index] for index in indices]
            yield Part(batch, indices, rows, marks)

    @contextmanager
    def session(self, *, single: bool = False) -> Iterator[Session]:
        """Open the model for perturbing; on leaving it is as it was, hooks included.

        Args:
            single: Whether weights in half precision are held in single until then.

        Yields:
            A session.
        """
        with ExitStack() as stack:
            stack.enter_context(in_mode(self.model, training=False))
            if single:
                stack.enter_context(in_single(self.model))
            # Without this the backward pass would work out weight gradients that nobody reads.
            wanted = [weight for weight in self.model.parameters() if weight.requires_grad]
            network = Network(self.model)
            try:
                for weight in wanted:
                    weight.requires_grad_(False)
                yield _ClassifierSession(self, network)
            finally:
                network.release()
                for weight in wanted:
                    weight.requires_grad_(True)

    def lacks_second_derivative(self) -> str:
        """Say why the model cannot be differentiated twice and what to do; empty where it can."""
        return lacks_second_derivative(self.model)

    def encoded(self, examples: Examples) -> EncodedExamples:
        """Tokenize a set once, however many perspectives ask for it.

        Args:
            examples: Texts; labels are not looked at.

        Returns:
            Its rows, unpadded and without labels; they are kept, so change none of them.
        """
        key = f"{examples.hash}:{len(examples)}"
        if key not in self._encoded:
            bare = replace(examples, labels=None, label_names=None, kind="unlabelled")
            self._encoded[key] = encode(bare, self.tokenizer, max_length=self.max_length)
        return self._encoded[key]

    def vocabulary(self) -> Vocabulary:
        """Return the tokenizer's ids, sorted by what a corruption may do with them."""
        size = getattr(getattr(self.model, "config", None), "vocab_size", None)
        return Vocabulary.of(self.tokenizer, size=size)

    def _batches(
        self, encoded: EncodedExamples, batch_size: int | None
    ) -> Iterator[tuple[list[int], Batch]]:
        """Collate rows of like length, on the model's device."""
        collate = Collator(self.tokenizer)
        size = self.batch_size if batch_size is None else batch_size
        for indices in ordered_batches(encoded.lengths, batch_size=size):
            found = Batch.of(collate([encoded[index] for index in indices]))
            inputs = {name: value.to(self.device) for name, value in found.inputs.items()}
            yield list(indices), Batch(inputs)

    def _special_ids(self) -> Tensor:
        """Return the ids of special tokens."""
        found = [getattr(self.tokenizer, f"{name}_token_id", None) for name in _SPECIAL]
        return torch.tensor(sorted({int(i) for i in found if i is not None}), dtype=torch.int64)


class _ClassifierSession:
    """The session of a `ClassifierPredictor`."""

    def __init__(self, predictor: ClassifierPredictor, network: Network) -> None:
        self._predictor = predictor
        self._network = network

    def parts(self, examples: Examples, *, batch_size: int | None = None) -> Iterator[Part]:
        return self._predictor.parts(examples, batch_size=batch_size)

    def logits(self, part: Part, *, delta: Tensor | None = None) -> Tensor:
        # cuDNN's recurrent layers cannot run backward in eval mode.
        with torch.backends.cudnn.flags(enabled=False):
            return self._network.logits(part.batch, delta=delta)

    def embeddings(self, part: Part) -> Tensor:
        return self._network.embeddings(part.batch)

    def traced(self, part: Part) -> Trace:
        tracer = self._network.tracer(part.batch)
        with torch.enable_grad(), tracer.tracing(twice=True) as trace:
            trace.logits = self.logits(part)
        return trace


class CallablePredictor:
    """Predict with a Python function, for instance ``pipeline.predict_proba`` of scikit-learn.

    Args:
        function: From a list of n texts (of pairs ``(text, text_pair)`` for pair tasks) to an
            array: logits or probabilities [n, C], or values [n].
        gives: Which of these it returns.
        label_names: The classes by index, None where unknown.

    Example:
        >>> from temper.data.examples import Examples
        >>> examples = Examples("toy", ["good", "bad"])
        >>> sure = CallablePredictor(lambda texts: [[0.1, 0.9]] * len(texts), gives="probabilities")
        >>> sure.predict(examples).prediction.tolist()
        [1.0, 1.0]
    """

    def __init__(
        self,
        function: Callable[[list[Any]], ArrayLike],
        *,
        gives: Gives,
        label_names: Sequence[str] | None = None,
    ) -> None:
        self.function = function
        self.gives: Gives = gives
        self.label_names = None if label_names is None else tuple(label_names)

    def predict(self, examples: Examples, *, batch_size: int | None = None) -> Prediction:
        """Answer examples, in their order.

        Args:
            examples: Texts; labels are not looked at.
            batch_size: Texts handed over at a time, None for all at once.

        Returns:
            The function's answers.

        Raises:
            ModelError: They are not what ``gives`` promises, or not one a text.
        """
        texts: list[Any] = list(examples.text)
        if examples.text_pair is not None:
            texts = list(zip(examples.text, examples.text_pair, strict=True))
        size = max(1, len(texts)) if batch_size is None else batch_size
        parts = [
            np.asarray(self.function(texts[start : start + size]), dtype=np.float64)
            for start in range(0, len(texts), size)
        ]
        answers = np.concatenate(parts) if parts else np.zeros((0, 0))
        if not len(texts) or len(answers) != len(texts):
            raise ModelError(
                f"The predictor gave {len(answers)} answers for the {len(texts)} texts of set "
                f"{examples.name!r}. It must give one a text, and the set must have texts."
            )
        if self.gives == "logits":
            return Prediction.of_logits(answers)
        if self.gives == "probabilities":
            return Prediction.of_probabilities(answers)
        return Prediction.of_values(answers)


def _label_names(config: Any) -> tuple[str, ...] | None:
    """Return the classes that a model's config names, None for placeholders."""
    names = getattr(config, "id2label", None)
    if not names:
        return None
    ordered = tuple(str(names[index]) for index in sorted(names, key=int))
    return None if all(_UNNAMED.fullmatch(name) for name in ordered) else ordered
