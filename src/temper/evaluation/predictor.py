"""Protocols of predictors: anything that maps examples to outputs.

Some perspectives need more than predictions: token ids, embeddings or hidden states. Each of these
has a separate protocol, and a predictor implements those that it can. Letters: B rows, T tokens,
D embedding size, C classes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from temper.data.corruptions import Vocabulary
from temper.data.encode import EncodedExamples
from temper.data.examples import Examples, ScoredKind
from temper.data.spans import answer_span
from temper.data.tags import of_words
from temper.data.token_spans import Span
from temper.evaluation.prediction import Prediction
from temper.functional.resampling import FloatArray
from temper.heads import Gives as Gives
from temper.heads import best_spans
from temper.lazy import torch
from temper.types import Batch

if TYPE_CHECKING:
    from torch import Tensor

    from temper.models.pieces import WholeWords
    from temper.models.states import Trace

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
"""Kind of a predictor's output -> kind of labels that it predicts."""
Precision = Literal["fp32", "bf16"]


@runtime_checkable
class Predictor(Protocol):
    """The protocol of every predictor.

    ``gives`` is the kind of output:

    - ``logits`` or ``probabilities`` of classes, or ``values`` of a regression;
    - ``labels``: a logit for each of several labels; ``tags``: logits for each word;
    - ``choices``: a logit for each choice of a question; ``spans``: an answer in a context;
    - ``texts``: losses of given completions.

    ``label_names`` are the class names by index; None if unknown.
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
        batch: The model's inputs for B rows; with labels if these belong to tokens (tags, spans,
            completions).
        indices: Position of each row in its set.
        rows: Hash of each row's text.
        special: Whether a token is special, [B, T].
        truncated: Fraction of truncated rows in this batch, or in the batch it was taken from.
        items: The encoded rows, without padding, as `temper.data.encode.encode` returns them.
        prompt: Whether a token belongs to the prompt, [B, T]; None without completions.
    """

    batch: Batch
    indices: list[int]
    rows: list[str]
    special: Tensor
    truncated: float | None = None
    items: Sequence[Mapping[str, Any]] = ()
    prompt: Tensor | None = None

    @property
    def movable(self) -> Tensor:
        """Whether attacks may perturb a token, [B, T]: in the prompt, else any but padding."""
        return self.batch.mask if self.prompt is None else self.prompt

    def take(self, indices: Tensor) -> RowBatch:
        """Return the rows at ``indices`` as a batch with the same padding."""
        if len(indices) == len(self.rows):
            return self
        chosen = indices.tolist()
        return RowBatch(
            self.batch.take(indices),
            [self.indices[position] for position in chosen],
            [self.rows[position] for position in chosen],
            self.special[indices],
            self.truncated,
            [self.items[position] for position in chosen] if self.items else (),
            None if self.prompt is None else self.prompt[indices],
        )


def predictions_of(
    logits: Tensor,
    *,
    gives: Gives,
    batch: Batch,
    items: Sequence[Mapping[str, Any]],
    truncated: float | None = None,
) -> Prediction:
    """Convert a batch's logits to predictions; ``items`` are those of `RowBatch`.

    Shapes are as in `temper.evaluation.attack`. For completions, whose logits are too large to
    keep, ``logits`` are `Prediction.targets`.
    """
    if gives == "spans":
        ends, chances = best_spans(logits.detach())
        pairs = (ends - batch.begins[:, None]).tolist()
        spans = [answer_span(item, *pair) for item, pair in zip(items, pairs, strict=True)]
        return Prediction.of_spans(np.array(spans), chances.cpu().numpy(), truncated=truncated)
    values = logits.detach().double().cpu().numpy()
    if gives == "texts":
        return Prediction.of_targets(values, truncated=truncated)
    if gives == "tags":
        words = [item["words"] for item in items]
        rows = of_words(values, batch.begins, words, missing=np.nan)
        return Prediction.of_tags(rows, truncated=truncated)
    return predictions_of_texts(values, gives=gives, truncated=truncated)


def predictions_of_texts(
    values: FloatArray, *, gives: Gives, truncated: float | None = None
) -> Prediction:
    """Convert logits [n, C], or [n, L, 2] of several labels, or values [n, 1] to predictions."""
    if gives == "labels":
        return Prediction.of_labels(values[..., 1], truncated=truncated)
    if gives == "values":
        return Prediction.of_values(values[:, 0], truncated=truncated)
    return Prediction.of_logits(values, truncated=truncated)


def in_order(indices: Sequence[int], parts: Sequence[Tensor]) -> FloatArray:
    """Concatenate outputs [b, ...] of batches in fp64, sorted by the rows' ``indices``."""
    joined = torch.cat([part.detach().double().cpu() for part in parts]).numpy()
    ordered = np.empty_like(joined)
    ordered[list(indices)] = joined
    return ordered


class Session(Protocol):
    """A predictor opened for perturbation: in eval mode, without gradients of the weights."""

    def parts(self, examples: Examples, *, batch_size: int | None = None) -> Iterator[RowBatch]:
        """Split examples into batches of rows of similar length."""
        ...

    def logits(self, part: RowBatch, *, delta: Tensor | None = None) -> Tensor:
        """Return logits in fp32, as for `predictions_of`; ``delta`` is added to the embeddings."""
        ...

    def embeddings(self, part: RowBatch) -> Tensor:
        """Return the word embeddings [B, T, D], detached."""
        ...

    def vectors(self, part: RowBatch, ids: Tensor) -> Tensor:
        """Return the word embeddings [N, D] of token ids [N], detached.

        Any batch will do as ``part``: a forward pass locates the embedding table.
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
        """Open the predictor for perturbation, in fp32 if ``single``, until the context exits."""
        ...

    def lacks_second_derivative(self) -> str:
        """Return why the model cannot be differentiated twice and what to do; empty if it can."""
        ...

    def truncated(self, examples: Examples) -> float:
        """Return the fraction of examples that are truncated."""
        ...


@runtime_checkable
class TokenPredictor(Predictor, Protocol):
    """A predictor that reads token ids, which a perspective may change."""

    def vocabulary(self) -> Vocabulary:
        """Return which token ids are words, special or [MASK], for corruptions."""
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
        """Predict rows of token ids, in their order.

        ``tell`` is called with the number of finished rows and of all rows.
        """
        ...


@runtime_checkable
class WordPredictor(PerturbablePredictor, TokenPredictor, Protocol):
    """A predictor whose tokens have known positions in the text, for gradient-based word swaps."""

    def spans(self, examples: Examples) -> list[list[Span | None]]:
        """Return, for each row, each token's position in the text; None for special tokens."""
        ...

    def whole_words(self) -> WholeWords: ...

    def lacks_words(self) -> str:
        """Return why words cannot be matched to tokens; empty if they can."""
        ...


@dataclass(frozen=True)
class States:
    """Hidden states of some rows of a set.

    Args:
        indices: Position of each of the B rows in its set.
        layers: State of each layer at the position that the head reads, [B, D] fp32; that of the
            last layer is the head's input.
    """

    indices: list[int]
    layers: list[Tensor]


@runtime_checkable
class StatePredictor(Predictor, Protocol):
    """A predictor whose hidden states at the position of the head can be read."""

    def states(self, examples: Examples, *, batch_size: int | None = None) -> Iterator[States]:
        """Yield the hidden states of every row once, batch by batch.

        Raises:
            ModelError: The model has no layers, or its logits do not depend on the last layer.
        """
        ...


@runtime_checkable
class StateReader(Predictor, Protocol):
    """A predictor that also returns the mean state of each layer, in the same pass."""

    def predict_with_states(
        self, examples: Examples, *, batch_size: int | None = None
    ) -> tuple[Prediction, NDArray[np.float32]]:
        """Predict examples in their order, and return their states of L layers, [n, L, D].

        Raises:
            ModelError: The model does not return its states.
        """
        ...
