"""The types of text attacks.

A **draft** is a row under attack, with all changes so far. A **recipe** has two functions: one
ranks the words of a draft by importance, one proposes words for a position. The search
(`temper.evaluation.text_attack.search`) calls both for many drafts at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal, NamedTuple

from pydantic import Field, model_validator

from temper.data.examples import Examples
from temper.data.words import Words
from temper.evaluation.common_settings import PerspectiveSettings

RecipeName = Literal["characters", "swaps", "masked"]

IN_FLIGHT = 128
"""Maximum number of rows that are attacked at the same time, to bound the memory."""

AttackedField = Literal["text", "text_pair", "both"]


class Position(NamedTuple):
    """Position of a word: its index in a text; ``side`` is 1 for the second text of a pair."""

    side: int
    word: int


@dataclass(frozen=True)
class Draft:
    """A row during an attack; hashable.

    Args:
        row: Hash of the row's unchanged text.
        label: Class index of the row.
        sides: The text, and for a pair task the second text, each split into words.
        target: Class that the attack aims for; None for any wrong class.
    """

    row: str
    label: int
    sides: tuple[Words, ...]
    target: int | None = None

    @property
    def text(self) -> str:
        return self.sides[0].text

    @property
    def text_pair(self) -> str | None:
        """The second text; None for single texts."""
        return self.sides[1].text if len(self.sides) == 2 else None

    def word(self, position: Position) -> str:
        return self.sides[position.side].words[position.word]

    def replaced(self, position: Position, word: str) -> Draft:
        sides = list(self.sides)
        sides[position.side] = sides[position.side].replaced(position.word, word)
        return replace(self, sides=tuple(sides))

    def texts_with(self, position: Position, word: str) -> tuple[str, str | None]:
        """Return the texts with another word at a position; an empty word removes it."""
        side = self.sides[position.side]
        changed = (
            side.replaced(position.word, word).text if word else side.text_without(position.word)
        )
        texts = [
            changed if number == position.side else side.text
            for number, side in enumerate(self.sides)
        ]
        return texts[0], texts[1] if len(texts) == 2 else None


@dataclass(frozen=True)
class Ask:
    """A request for candidate words at one position.

    Args:
        draft: The row with all earlier changes.
        position: Position of the word to change; it still has its original word.
        seed: Seed of the row and recipe. Draw with ``derive_seed(ask.seed, ...)``, so that draws do
            not depend on other requests.
    """

    draft: Draft
    position: Position
    seed: int


Propose = Callable[[Sequence[Ask]], list[list[str]]]
"""Function that proposes words for each of many requests, the best first.

The words for a request must be distinct, not empty, and differ from the present word. They must not
depend on other requests.
"""

RankWords = Callable[[Sequence[Draft], Sequence[Sequence[Position]]], list[list[float]]]
"""Function that returns the importance of each position of each draft, as finite numbers.

The most important word is changed first. Ranking a draft counts as one query, because it takes one
forward and one backward pass.
"""


@dataclass(frozen=True)
class Recipe:
    """A kind of attack.

    Args:
        name: Name of the recipe, and of the condition of its rows.
        propose: Proposes words.
        rank: Ranks words. None ranks by predictions of the text without each word, at one query
            per word: the word whose removal helps the attack most is changed first.
    """

    name: RecipeName
    propose: Propose
    rank: RankWords | None = None


def examples_of(drafts: Sequence[Draft]) -> Examples:
    pairs = [draft.text_pair for draft in drafts if draft.text_pair is not None]
    return Examples("text attack", [draft.text for draft in drafts], pairs or None)


Goal = Literal["untargeted", "targeted"]


class TextAttackSettings(PerspectiveSettings):
    """Settings of the text attack."""

    recipes: tuple[RecipeName, ...] = Field(
        default=("characters",),
        description="`characters` (typos and homoglyphs, for any predictor), `swaps` (words of "
        "the model's vocabulary, by its gradient), `masked` (words of a masked "
        "language model).",
    )
    rows: int = Field(
        default=100,
        ge=1,
        description="Maximum number of validation rows to attack, chosen by hash like "
        "`attack_rows`.",
    )
    goal: Goal = Field(
        default="untargeted",
        description="`untargeted` (any wrong class) or `targeted` (the class `target`).",
    )
    target: int | str | None = Field(
        default=None, description="Index or name of the target class; requires `goal=targeted`."
    )
    max_changed: Annotated[float, Field(gt=0, le=1)] = Field(
        default=0.3,
        description="Maximum fraction of a row's words that is changed; one word may always be "
        "changed.",
    )
    max_queries: int | None = Field(
        default=None, ge=1, description="Maximum number of queries per row. Default: no limit."
    )
    stop_words: bool = Field(default=True, description="Never change English stop words.")
    protected: tuple[str, ...] = Field(
        default=(), description="Words that are never changed, in any case."
    )
    min_similarity: float | None = Field(
        default=None,
        ge=-1,
        le=1,
        description="Minimum cosine similarity between the embeddings of the changed and the "
        "original text; requires `similarity_model`. Default: not checked.",
    )
    similarity_model: str | None = Field(
        default=None, description="Folder, short name (`minilm`) or Hub id of a sentence encoder."
    )
    masked_model: str | None = Field(
        default=None, description="Folder or Hub id of the masked language model for `masked`."
    )
    field: AttackedField = Field(
        default="text", description="Text of a pair to attack: `text`, `text_pair` or `both`."
    )

    @model_validator(mode="after")
    def _together(self) -> TextAttackSettings:
        faults = [
            f"`protected` must have single words, got {word!r}"
            for word in self.protected
            if Words.of(word).words != (word,)
        ]
        if (self.goal == "targeted") != (self.target is not None):
            faults.append("`target` must be given with goal 'targeted', and only then")
        if (self.min_similarity is None) != (self.similarity_model is None):
            faults.append("`min_similarity` and `similarity_model` must be given together")
        if ("masked" in self.recipes) != (self.masked_model is not None):
            faults.append("`masked_model` must be given with the recipe 'masked', and only then")
        if faults:
            raise ValueError("; ".join(faults))
        return self
