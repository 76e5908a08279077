"""Protocols of predictors (anything that maps examples to outputs), and the type of their outputs.

Some perspectives need more than predictions: token ids, embeddings or hidden states. Each of these
has a separate protocol, and a predictor implements those that it can. Letters: B rows, T tokens,
D embedding size, C classes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from temper.data.corruptions import Vocabulary
from temper.data.encode import EncodedExamples
from temper.data.examples import Examples, ScoredKind
from temper.data.tags import of_words
from temper.data.token_spans import Span
from temper.errors import ModelError
from temper.functional.calibration import negative_log_likelihood, probabilities_of
from temper.functional.resampling import FloatArray, IntegerArray, stretches
from temper.lazy import torch
from temper.types import UNLABELED, Batch

if TYPE_CHECKING:
    from torch import Tensor

    from temper.models.pieces import WholeWords
    from temper.models.states import Trace

BROKEN = "The model is broken or too imprecise. If training diverged, use a lower learning rate."


@dataclass(frozen=True)
class Prediction:
    """Predictions for n examples, made from exactly one of logits, probabilities and values.

    Make one with `of_logits`, `of_probabilities`, `of_values`, `of_labels` or `of_tags`. The kind
    is never guessed from the numbers.

    Args:
        probabilities: [n, C], [n, 0] for a regression.
        prediction: Class index or predicted value, [n].
        logits: [n, C] if the predictor returns them; they keep losses finite.
        truncated: Fraction of the examples that were cut to the model's length, None if unknown.
        applies: Which labels are predicted, [n, L] boolean, if a text may have several;
            ``probabilities`` [n, L] then are those of each label, and ``prediction`` is NaN.
        words: Number of words of each example, [n], if words have tags. The arrays above then have
            a row for each word, [W, C] and [W], NaN for words that the model did not read.
        spans: Start and end (exclusive) of the answer in the context of each question, in
            characters, [n, 2]; -1 if there is none. ``probabilities`` [n, 1] then are those of the
            answers, and ``prediction`` is NaN.
        targets: Sum of the losses of each given completion's tokens, and their number, [n, 2]; the
            arrays above then are NaN.
    """

    probabilities: FloatArray
    prediction: FloatArray
    logits: FloatArray | None = None
    truncated: float | None = None
    applies: NDArray[np.bool_] | None = None
    words: IntegerArray | None = None
    spans: IntegerArray | None = None
    targets: FloatArray | None = None

    @classmethod
    def of_targets(cls, targets: FloatArray, *, truncated: float | None = None) -> Prediction:
        """Make a prediction from the losses of given completions.

        Args:
            targets: Sum of the losses of each completion's tokens, and their number, [n, 2].
            truncated: Fraction of the examples that were cut.

        Raises:
            ModelError: A loss is not finite.
        """
        if not bool(np.isfinite(targets).all()):
            raise ModelError(f"The loss of a completion must be finite. {BROKEN}")
        nothing = np.full(len(targets), np.nan)
        return cls(nothing[:, np.newaxis], nothing, None, truncated, targets=targets)

    @classmethod
    def of_spans(
        cls, indices: IntegerArray, probabilities: FloatArray, *, truncated: float | None = None
    ) -> Prediction:
        """Make a prediction from answers in contexts.

        Args:
            indices: Start and end of each answer in characters, [n, 2]; -1 if there is none.
            probabilities: Probability of each answer, [n].
            truncated: Fraction of the examples that were cut.

        Raises:
            ModelError: A probability is not finite.
        """
        if not bool(np.isfinite(probabilities).all()):
            raise ModelError(f"Probabilities must be finite. {BROKEN}")
        nothing = np.full(len(indices), np.nan)
        return cls(probabilities[:, np.newaxis], nothing, None, truncated, spans=indices)

    @classmethod
    def of_tags(cls, rows: Sequence[FloatArray], *, truncated: float | None = None) -> Prediction:
        """Make a prediction from the logits of the tags of words.

        Args:
            rows: Logits of each example's words, [w, C], C >= 2; NaN for words that the model did
                not read.
            truncated: Fraction of the examples that were cut.

        Raises:
            ModelError: A value is infinite, or NaN for a part of the tags of a word.
        """
        logits = np.concatenate(rows)
        known = ~np.isnan(logits).all(axis=1)
        read = cls.of_logits(logits[known])
        probabilities, prediction = np.full_like(logits, np.nan), np.full(len(logits), np.nan)
        probabilities[known], prediction[known] = read.probabilities, read.prediction
        words = np.array([len(row) for row in rows], dtype=np.int64)
        return cls(probabilities, prediction, logits, truncated, words=words)

    @classmethod
    def of_labels(cls, logits: ArrayLike, *, truncated: float | None = None) -> Prediction:
        """Make a prediction from a logit per label; a label applies if its probability is > 0.5.

        Args:
            logits: [n, L], L >= 2, finite.
            truncated: Fraction of the examples that were cut.

        Raises:
            ModelError: The shape is wrong or a value is not finite.

        Example:
            >>> Prediction.of_labels([[0.0, 2.0]]).applies.tolist()
            [[False, True]]
        """
        array = _classes(logits, "Logits")
        nothing = np.full(len(array), np.nan)
        chances = np.exp(-np.logaddexp(0.0, -array))
        return cls(chances, nothing, array, truncated, array > 0)

    @classmethod
    def of_logits(cls, logits: ArrayLike, *, truncated: float | None = None) -> Prediction:
        """Make a prediction from logits.

        Args:
            logits: [n, C], C >= 2, finite.
            truncated: Fraction of the examples that were cut.

        Raises:
            ModelError: The shape is wrong or a value is not finite.

        Example:
            >>> Prediction.of_logits([[0.0, 2.0]]).prediction.tolist()
            [1.0]
        """
        array = _classes(logits, "Logits")
        # Predicted from the logits: two probabilities may round to the same number.
        return cls(probabilities_of(array), _likeliest(array), array, truncated)

    @classmethod
    def of_probabilities(
        cls, probabilities: ArrayLike, *, truncated: float | None = None
    ) -> Prediction:
        """Make a prediction from class probabilities.

        Args:
            probabilities: [n, C], C >= 2, each row in [0, 1] and summing to 1 within 1e-3.
            truncated: Fraction of the examples that were cut.

        Raises:
            ModelError: The values are not probabilities.

        Example:
            >>> Prediction.of_probabilities([[0.25, 0.75]]).prediction.tolist()
            [1.0]
        """
        array = _classes(probabilities, "Probabilities")
        wrong = (array < 0).any(axis=1) | (np.abs(array.sum(axis=1) - 1.0) > 1e-3)
        if bool(wrong.any()):
            row = int(np.flatnonzero(wrong)[0])
            raise ModelError(
                f"Probabilities must be >= 0 and sum to 1, got {array[row].tolist()} for row "
                f"{row}. If these are logits, set gives='logits'."
            )
        return cls(array, _likeliest(array), None, truncated)

    @classmethod
    def of_values(cls, values: ArrayLike, *, truncated: float | None = None) -> Prediction:
        """Make a prediction from the values of a regression.

        Args:
            values: [n], finite.
            truncated: Fraction of the examples that were cut.

        Raises:
            ModelError: The shape is wrong or a value is not finite.
        """
        array = np.asarray(values, dtype=np.float64)
        if array.ndim != 1:
            raise ModelError(
                f"A regression must return one value per row, got shape {list(array.shape)}."
            )
        broken = np.flatnonzero(~np.isfinite(array))
        if len(broken):
            raise ModelError(
                f"Values must be finite, got {array[broken[0]]} for row {broken[0]}. {BROKEN}"
            )
        return cls(np.zeros((len(array), 0)), array, None, truncated)

    def __len__(self) -> int:
        """Return the number of examples."""
        return len(self.prediction if self.words is None else self.words)

    def by_example(self, values: FloatArray) -> list[FloatArray]:
        """Split values of words by example.

        Args:
            values: Of all words, [W, ...].
        """
        assert self.words is not None
        return np.split(values, np.cumsum(self.words)[:-1])

    @property
    def regression(self) -> bool:
        """Whether the predictions are values instead of classes."""
        return bool(self.probabilities.shape[1] == 0)

    @property
    def decoded(self) -> FloatArray:
        """Probabilities [n, C], or the values [n, 1] of a regression."""
        return self.prediction[:, np.newaxis] if self.regression else self.probabilities

    def take(self, index: IntegerArray | list[int]) -> Prediction:
        """Return the predictions at some positions.

        Args:
            index: Positions, [m].
        """
        if self.words is not None:
            rows = self.by_example(self.logits)  # type: ignore[arg-type]
            return Prediction.of_tags([rows[position] for position in index])
        logits = None if self.logits is None else self.logits[index]
        applies = None if self.applies is None else self.applies[index]
        probabilities, prediction = self.probabilities[index], self.prediction[index]
        return Prediction(probabilities, prediction, logits, applies=applies)

    def replaced(self, index: IntegerArray, others: Prediction) -> Prediction:
        """Return the predictions, replaced at some positions.

        Args:
            index: Positions, [m].
            others: m predictions of the same kind.
        """
        prediction, probabilities = self.prediction.copy(), self.probabilities.copy()
        prediction[index], probabilities[index] = others.prediction, others.probabilities
        logits = None
        if self.logits is not None and others.logits is not None:
            logits = self.logits.copy()
            logits[index] = others.logits
        return Prediction(probabilities, prediction, logits)

    def loss(self, labels: FloatArray) -> FloatArray:
        """Return the NLL (mean over several labels) or squared error; NaN if the label is NaN.

        Args:
            labels: Class indices or targets, [n], NaN if unknown; or which labels apply, [n, L].

        Returns:
            [n]; infinite if the given probability of the label is exactly 0.
        """
        if self.applies is not None:
            assert self.logits is not None
            sign = np.where(labels == 1, -1.0, 1.0)
            return np.asarray(np.logaddexp(0.0, sign * self.logits).mean(axis=1))
        loss = np.full(len(self), np.nan)
        for rows in stretches(len(self), width=max(self.probabilities.shape[1], 1)):
            known = ~np.isnan(labels[rows])
            wanted = labels[rows][known]
            if self.regression:
                result = (self.prediction[rows][known] - wanted) ** 2
            elif self.logits is not None:
                result = negative_log_likelihood(wanted, self.logits[rows][known])
            else:
                with np.errstate(divide="ignore"):
                    result = -np.log(self.probabilities[rows][known, wanted.astype(np.int64)])
            loss[rows][known] = result
        return loss


def _classes(values: ArrayLike, what: str) -> FloatArray:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 2 or array.shape[1] < 2:
        raise ModelError(f"{what} must be [n, C] with C >= 2, got shape {list(array.shape)}.")
    broken = ~np.isfinite(array).all(axis=1)
    if bool(broken.any()):
        row = int(np.flatnonzero(broken)[0])
        raise ModelError(
            f"{what} must be finite, got {array[row].tolist()} for row {row}. {BROKEN}"
        )
    return array


def _likeliest(values: FloatArray) -> FloatArray:
    """Return the column of each row's largest value, the first of equal ones."""
    return np.asarray(values.argmax(axis=1), dtype=np.float64)


Gives = Literal["logits", "probabilities", "values", "labels", "tags", "choices", "spans", "texts"]
KINDS: dict[Gives, ScoredKind] = {
    "logits": "classification",
    "probabilities": "classification",
    "values": "regression",
    "labels": "multi_label",
    "tags": "tokens",
    "choices": "choices",
    "spans": "spans",
    "texts": "completions",
}
"""Required kind of the labels, by the kind of a predictor's output."""
Precision = Literal["fp32", "bf16"]


@runtime_checkable
class Predictor(Protocol):
    """The protocol of every predictor.

    ``gives`` is the kind of output: ``logits``, ``probabilities``, ``values`` of a regression, a
    logit for each of several ``labels``, logits for the ``tags`` of each word or for the
    ``choices`` of a question, ``spans`` of a context, or ``texts``. ``label_names`` are the classes
    by index, or None if the predictor does not know them.
    """

    gives: Gives
    label_names: tuple[str, ...] | None

    def predict(self, examples: Examples, *, batch_size: int | None = None) -> Prediction:
        """Predict examples, in their order."""
        ...


@dataclass(frozen=True)
class RowBatch:
    """Some examples as one batch.

    Args:
        batch: The inputs of B rows, without labels.
        indices: Position of each row in its set.
        rows: Hash of each row's text.
        special: Special tokens, [B, T].
        truncated: Fraction of cut rows in this batch, or in the batch that it is a part of.
        words: Which word begins at each token of each row, without padding, if words have tags.
    """

    batch: Batch
    indices: list[int]
    rows: list[str]
    special: Tensor
    truncated: float | None = None
    words: list[list[int]] | None = None

    def take(self, indices: Tensor) -> RowBatch:
        """Return some of the rows as a separate batch, padded as this one.

        Args:
            indices: Their positions in this batch, [b].
        """
        if len(indices) == len(self.rows):
            return self
        chosen = indices.tolist()
        return RowBatch(
            self.batch.take(indices),
            [self.indices[position] for position in chosen],
            [self.rows[position] for position in chosen],
            self.special[indices],
            self.truncated,
            None if self.words is None else [self.words[position] for position in chosen],
        )

    def of_words(self, values: FloatArray) -> list[FloatArray]:
        """Return the values of the words of each row, NaN for words without tokens.

        Args:
            values: Values of the tokens, [B, T, ...].
        """
        assert self.words is not None
        return of_words(values, self.batch.begins, self.words, missing=np.nan)

    def of_tokens(self, tags: Sequence[Sequence[int]]) -> Tensor:
        """Return the label of each token, -100 where no word begins, [B, T].

        Args:
            tags: The tags of the words of each row.
        """
        assert self.words is not None
        labels = torch.full(self.batch.mask.shape, UNLABELED)
        begins = self.batch.begins.tolist()
        for index, (begin, words, row) in enumerate(zip(begins, self.words, tags, strict=True)):
            for at, word in enumerate(words, begin):
                if word >= 0:
                    labels[index, at] = row[word]
        return labels.to(self.batch.mask.device)


def in_order(indices: Sequence[int], parts: Sequence[Tensor]) -> FloatArray:
    """Join the outputs of batches, in the rows' order.

    Args:
        indices: Position of each row, batch by batch; all of 0..n-1.
        parts: Outputs of each batch, [b, ...].

    Returns:
        [n, ...] fp64.
    """
    joined = torch.cat([part.detach().double().cpu() for part in parts]).numpy()
    ordered = np.empty_like(joined)
    ordered[list(indices)] = joined
    return ordered


class Session(Protocol):
    """A predictor opened for perturbation: in eval mode, without gradients of the weights."""

    def parts(self, examples: Examples, *, batch_size: int | None = None) -> Iterator[RowBatch]:
        """Cut examples into batches of similar length."""
        ...

    def logits(self, part: RowBatch, *, delta: Tensor | None = None) -> Tensor:
        """Return logits in fp32: [B, C], [B, L, 2] of several labels, or [B, T, C] of tags.

        Args:
            part: The batch.
            delta: Added to the word embeddings, [B, T, D].
        """
        ...

    def embeddings(self, part: RowBatch) -> Tensor:
        """Return the word embeddings [B, T, D], detached."""
        ...

    def vectors(self, part: RowBatch, ids: Tensor) -> Tensor:
        """Return the word embeddings [N, D] of token ids [N], detached.

        Args:
            part: Any batch of this predictor; it is used to locate the embeddings.
            ids: Token ids.
        """
        ...

    def traced(self, part: RowBatch) -> Trace:
        """Return hidden states and logits, twice differentiable by the word embeddings."""
        ...

    def read(self, part: RowBatch) -> Trace:
        """Return hidden states and logits; only the head has an autograd graph."""
        ...


@runtime_checkable
class PerturbablePredictor(Predictor, Protocol):
    """A predictor whose embeddings can be perturbed by attacks and noise."""

    def session(self, *, single: bool = False) -> AbstractContextManager[Session]:
        """Open the predictor, in fp32 if ``single``; its state is restored on exit."""
        ...

    def lacks_second_derivative(self) -> str:
        """Return why the model cannot be differentiated twice and what to do; empty if it can."""
        ...

    def truncated(self, examples: Examples) -> float:
        """Return the fraction of the examples that are cut to the model's length."""
        ...


@runtime_checkable
class TokenPredictor(Predictor, Protocol):
    """A predictor that reads token ids, which a perspective may change."""

    def vocabulary(self) -> Vocabulary:
        """Return the tokenizer's ids, grouped by how a corruption may use them."""
        ...

    def encoded(self, examples: Examples) -> EncodedExamples:
        """Return the examples' token ids, unpadded and without labels."""
        ...

    def predict_encoded(
        self,
        encoded: EncodedExamples,
        *,
        batch_size: int | None = None,
        tell: Callable[[int, int], None] | None = None,
    ) -> Prediction:
        """Predict rows of token ids, in their order, and report the progress."""
        ...


@runtime_checkable
class WordPredictor(PerturbablePredictor, TokenPredictor, Protocol):
    """A predictor whose tokens have known positions in the text, for gradient-based word swaps."""

    def spans(self, examples: Examples) -> list[list[Span | None]]:
        """Return the position of each token of `encoded` in its texts, None for added ones.

        Raises:
            DataError: The tokenizer does not return the positions.
        """
        ...

    def whole_words(self) -> WholeWords:
        """Return the ids of the vocabulary that are whole words."""
        ...

    def lacks_words(self) -> str:
        """Return why words cannot be matched to tokens; empty if they can."""
        ...


@dataclass(frozen=True)
class States:
    """Hidden states of some rows of a set.

    Args:
        indices: Position of each of the B rows in its set.
        rows: Hash of each row's text.
        layers: Each layer's state at the position that the head reads, [B, D] fp32; the last one
            is the head's input.
        answers: Outputs of the same pass for these rows, if the predictor returns them.
    """

    indices: list[int]
    rows: list[str]
    layers: list[Tensor]
    answers: Prediction | None = None


def joined(indices: Sequence[int], parts: Sequence[Prediction]) -> Prediction:
    """Join the predictions of batches, in the rows' order.

    Args:
        indices: Position of each row, batch by batch; all of 0..n-1.
        parts: The predictions of each batch, all of one kind.
    """
    positions = np.argsort(np.asarray(indices, dtype=np.int64))

    def whole(given: Sequence[FloatArray]) -> FloatArray:
        return np.concatenate(given)[positions]

    logits = [part.logits for part in parts if part.logits is not None]
    applies = [part.applies for part in parts if part.applies is not None]
    cut = [part.truncated * len(part) for part in parts if part.truncated is not None]
    truncated = sum(cut) / len(positions) if len(cut) == len(parts) else None
    if parts[0].words is not None:
        rows = [row for part in parts for row in part.by_example(part.logits)]  # type: ignore[arg-type]
        return Prediction.of_tags([rows[index] for index in positions], truncated=truncated)
    spans = [part.spans for part in parts if part.spans is not None]
    return Prediction(
        whole([part.probabilities for part in parts]),
        whole([part.prediction for part in parts]),
        whole(logits) if len(logits) == len(parts) else None,
        truncated,
        np.concatenate(applies)[positions] if applies else None,
        spans=np.concatenate(spans)[positions] if spans else None,
    )


@runtime_checkable
class StatePredictor(Predictor, Protocol):
    """A predictor whose hidden states can be read."""

    def states(self, examples: Examples, *, batch_size: int | None = None) -> Iterator[States]:
        """Yield the hidden states of every row once, batch by batch.

        Raises:
            ModelError: The model has no layers, or its logits do not depend on the last one.
        """
        ...


@runtime_checkable
class StateReader(Predictor, Protocol):
    """A predictor that returns every layer's states in the same pass as the predictions."""

    def predict_with_states(
        self, examples: Examples, *, batch_size: int | None = None
    ) -> tuple[Prediction, NDArray[np.float32]]:
        """Predict examples in their order, and return their states, [n, L, D].

        Raises:
            ModelError: The model does not return its states.
        """
        ...
