"""What a predictor is: anything that maps examples to logits, probabilities or values.

Perspectives ask for more of some predictors: token ids, embeddings, hidden states. Each is a
contract of its own, and a predictor keeps those that it can. Letters: B rows, T tokens, D embedding
size, C classes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from torch import Tensor

from temper.data.corruptions import Vocabulary
from temper.data.encode import EncodedExamples, Span
from temper.data.examples import Examples
from temper.evaluation.prediction import Prediction
from temper.functional.resampling import FloatArray
from temper.models.pieces import WholeWords
from temper.models.states import Trace
from temper.types import Batch

Gives = Literal["logits", "probabilities", "values"]


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
class RowBatch:
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

    def take(self, places: Tensor) -> RowBatch:
        """Return some of the rows as a batch of their own, as long as this one.

        Args:
            places: Their positions in this batch, [b].
        """
        if len(places) == len(self.rows):
            return self
        chosen = places.tolist()
        return RowBatch(
            self.batch.take(places),
            [self.indices[place] for place in chosen],
            [self.rows[place] for place in chosen],
            self.special[places],
        )


class Session(Protocol):
    """A predictor opened for perturbing: it is in eval mode, and its weights want no gradient."""

    def parts(self, examples: Examples, *, batch_size: int | None = None) -> Iterator[RowBatch]:
        """Cut examples into batches of like length."""
        ...

    def logits(self, part: RowBatch, *, delta: Tensor | None = None) -> Tensor:
        """Return logits [B, C] in fp32, with ``delta`` [B, T, D] added to the word embeddings."""
        ...

    def embeddings(self, part: RowBatch) -> Tensor:
        """Return the word embeddings [B, T, D], detached."""
        ...

    def vectors(self, part: RowBatch, ids: Tensor) -> Tensor:
        """Return the word embeddings [N, D] of token ids [N], detached.

        Args:
            part: Any batch of this predictor, by which the embeddings are found.
            ids: Token ids.
        """
        ...

    def traced(self, part: RowBatch, *, twice: bool = True) -> Trace:
        """Return hidden states and logits, whose graph may be differentiated by the words.

        Args:
            part: The batch.
            twice: Whether twice, which fused attention cannot.
        """
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
        """Return the examples' token ids, unpadded and without labels."""
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


@runtime_checkable
class WordPredictor(PerturbablePredictor, TokenPredictor, Protocol):
    """A predictor whose tokens are known pieces of its texts: words can be swapped by gradient."""

    def spans(self, examples: Examples) -> list[list[Span | None]]:
        """Return where each token of `encoded` stands in its texts, None for added ones.

        Raises:
            DataError: The tokenizer does not know.
        """
        ...

    def whole_words(self) -> WholeWords:
        """Return the ids of the vocabulary that stand for a whole word."""
        ...

    def lacks_words(self) -> str:
        """Say why words cannot be matched to tokens; empty where they can."""
        ...


@dataclass(frozen=True)
class States:
    """Hidden states of some rows of a set.

    Args:
        indices: Position of each of the B rows in its set.
        rows: Hash of each row's text.
        layers: Each layer's state where the head reads it, [B, D] fp32; the last one is what the
            head classifies.
    """

    indices: list[int]
    rows: list[str]
    layers: list[Tensor]


@runtime_checkable
class StatePredictor(Predictor, Protocol):
    """A predictor whose hidden states can be read."""

    def states(self, examples: Examples, *, batch_size: int | None = None) -> Iterator[States]:
        """Yield the hidden states of every row once, batch by batch.

        Raises:
            ModelError: The model has no layers, or its logits do not depend on the last one.
        """
        ...
