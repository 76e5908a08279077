"""What the parts of a text attack promise each other.

A **draft** is a row as it stands while it is attacked. A **ranker** says which of its words matter,
a **proposer** offers words for one place, a **similarity** says how near two texts are, and the
search (`temper.evaluation.text_attack.search`) asks all of them for many drafts at a time. A
**recipe** is a ranker with a proposer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, Protocol

from temper.data.examples import Examples
from temper.data.words import Words

RecipeName = str
"""One of `OWN`, or ``textattack:NAME``."""

OWN = ("characters", "swaps", "masked")
"""The recipes that need no other package."""

OUTSIDE = "textattack:"
"""What the names of TextAttack's recipes begin with."""

IN_FLIGHT = 128
"""Rows that are attacked side by side at most: what is held of a row is held of so many."""

Field = Literal["text", "text_pair", "both"]


class Place(NamedTuple):
    """Where a word of a draft stands.

    Args:
        side: 0 in the text, 1 in the second text of a pair task.
        word: Which word of it, from 0.
    """

    side: int
    word: int


@dataclass(frozen=True)
class Draft:
    """A row as it stands under attack; hashable, equal where the texts are.

    Args:
        row: Hash of the row's unchanged text.
        label: Class index of the row.
        sides: The text, and of a pair task the second text.
        target: Class that the attack wants predicted; None where any but the label will do.
    """

    row: str
    label: int
    sides: tuple[Words, ...]
    target: int | None = None

    @property
    def text(self) -> str:
        """The text."""
        return self.sides[0].text

    @property
    def text_pair(self) -> str | None:
        """The second text, None of a task without pairs."""
        return self.sides[1].text if len(self.sides) == 2 else None

    def word(self, place: Place) -> str:
        """Return the word at a place."""
        return self.sides[place.side].words[place.word]

    def replaced(self, place: Place, word: str) -> Draft:
        """Return the draft with another word at a place."""
        sides = list(self.sides)
        sides[place.side] = sides[place.side].replaced(place.word, word)
        return replace(self, sides=tuple(sides))

    def texts_with(self, place: Place, word: str) -> tuple[str, str | None]:
        """Return the texts with another word at a place, or without it where it is empty."""
        side = self.sides[place.side]
        changed = side.replaced(place.word, word).text if word else side.text_without(place.word)
        texts = [changed if at == place.side else each.text for at, each in enumerate(self.sides)]
        return texts[0], texts[1] if len(texts) == 2 else None


@dataclass(frozen=True)
class Ask:
    """A request for words to put in one place.

    Args:
        draft: The row as it stands now, earlier changes included.
        place: Of the word to change, which the search has not changed yet.
        seed: Of this row's draws, derived from the evaluation's seed, the row and the recipe. Draw
            with ``derive_seed(ask.seed, ...)`` and nothing that depends on the other requests.
    """

    draft: Draft
    place: Place
    seed: int


class Proposer(Protocol):
    """Offers words."""

    def propose(self, asked: Sequence[Ask]) -> list[list[str]]:
        """Answer many requests, of any rows, at a time.

        Args:
            asked: At least one request.

        Returns:
            For each, in order, words other than the one that stands there: distinct, not empty, the
            best first; an empty list where there is none. No answer may depend on the others.
        """
        ...


class Ranker(Protocol):
    """Says which words matter, without asking the predictor about texts.

    ``queries`` is what ranking one row counts for: 1 for a forward and a backward pass.
    """

    queries: int

    def rank(self, drafts: Sequence[Draft], places: Sequence[Sequence[Place]]) -> list[list[float]]:
        """Return how much each place matters to the goal; the largest is changed first.

        Args:
            drafts: n unchanged rows, at least one.
            places: The words of each that may be changed, at least one each.

        Returns:
            One finite number for each place of each draft.
        """
        ...


class Similarity(Protocol):
    """Says how near two texts are in meaning."""

    def similarities(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        """Return the cosine of the embeddings of each pair's texts, in [-1, 1].

        Args:
            pairs: At least one pair of an unchanged and a changed text; the same unchanged text
                comes many times.
        """
        ...


@dataclass(frozen=True)
class Recipe:
    """One way to attack.

    Args:
        name: Its name, the condition of its rows.
        proposer: Who offers words.
        ranker: Who ranks them. None asks the predictor about the text without each word, one query
            a word: what most favours the goal is changed first.
    """

    name: RecipeName
    proposer: Proposer
    ranker: Ranker | None = None


def examples_of(drafts: Sequence[Draft]) -> Examples:
    """Return the texts of drafts.

    Args:
        drafts: At least one.
    """
    pairs = [draft.text_pair for draft in drafts if draft.text_pair is not None]
    return Examples("text attack", [draft.text for draft in drafts], pairs or None)
