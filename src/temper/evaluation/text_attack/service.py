"""What the searches of many rows ask for, answered a kind at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from temper.data.examples import Examples
from temper.errors import ModelError
from temper.evaluation.predictor import Predictor
from temper.evaluation.text_attack.answers import Answer, answers_of
from temper.evaluation.text_attack.contract import Ask, Draft, Place, Recipe, Similarity

# Texts handed to the predictor at a time: the texts of a whole round may be gigabytes.
_AT_A_TIME = 2048


class Rank(NamedTuple):
    """Ask the ranker how much places of a row matter."""

    draft: Draft
    places: Sequence[Place]


class Compare(NamedTuple):
    """Ask how near pairs of texts are in meaning."""

    pairs: list[tuple[str, str]]


class Query(NamedTuple):
    """Ask the predictor about a row with each of some words in a place."""

    draft: Draft
    changes: list[tuple[Place, str]]


Request = Rank | Ask | Compare | Query
# The model is asked when nothing else is open: then all rows stand at a question to it.
ORDER = (Rank, Ask, Compare, Query)
"""Kinds of requests in the order in which they are served."""


class Service:
    """Answers the requests of many searches.

    Args:
        predictor: Who is attacked.
        recipe: Who ranks and proposes.
        similarity: Who compares meanings, None where nobody asks.
        batch_size: Texts of a forward pass.
    """

    def __init__(
        self,
        predictor: Predictor,
        recipe: Recipe,
        similarity: Similarity | None,
        batch_size: int | None,
    ) -> None:
        self.predictor = predictor
        self.recipe = recipe
        self.similarity = similarity
        self.batch_size = batch_size

    def serve(self, requests: list[Any]) -> list[Any]:
        """Answer requests of one kind.

        Args:
            requests: At least one.

        Returns:
            One answer a request, in order: importance of each place, words, cosines, or answers.

        Raises:
            ModelError: Ranker, proposer or similarity does not answer every request.
        """
        first = requests[0]
        if isinstance(first, Query):
            return self._asked(requests)
        if isinstance(first, Ask):
            found: list[Any] = self.recipe.proposer.propose(requests)
        elif isinstance(first, Rank):
            assert self.recipe.ranker is not None
            drafts, places = zip(*requests, strict=True)
            found = self.recipe.ranker.rank(drafts, places)
            _check(list(map(len, found)), list(map(len, places)), "Ranker", self.recipe.name)
        else:
            found = self._compared(requests)
        _check([len(found)], [len(requests)], type(first).__name__, self.recipe.name)
        return found

    def _compared(self, requests: list[Compare]) -> list[Any]:
        assert self.similarity is not None
        pairs = [pair for request in requests for pair in request.pairs]
        values = self.similarity.similarities(pairs)
        _check([len(values)], [len(pairs)], "Similarity", self.recipe.name)
        return _split(values, [len(request.pairs) for request in requests])

    def _asked(self, requests: list[Query]) -> list[Any]:
        """Predict the texts of all requests, some thousands at a time."""
        changes = [(request.draft, *change) for request in requests for change in request.changes]
        answers: list[Answer] = []
        for start in range(0, len(changes), _AT_A_TIME):
            some = changes[start : start + _AT_A_TIME]
            texts = [draft.texts_with(place, word) for draft, place, word in some]
            pair = [second for _, second in texts if second is not None]
            examples = Examples("text attack", [text for text, _ in texts], pair or None)
            prediction = self.predictor.predict(examples, batch_size=self.batch_size)
            answers += answers_of(prediction, [draft for draft, _, _ in some])
        return _split(answers, [len(request.changes) for request in requests])


def _split(values: Sequence[Any], lengths: Sequence[int]) -> list[Any]:
    """Cut a list into parts."""
    ends = np.cumsum(lengths).tolist()
    return [list(values[end - length : end]) for end, length in zip(ends, lengths, strict=True)]


def _check(found: list[int], wanted: list[int], who: str, recipe: str) -> None:
    if found != wanted:
        raise ModelError(
            f"{who} of the recipe {recipe!r} must answer every request, expected {wanted[:3]} "
            f"answers, got {found[:3]}."
        )
