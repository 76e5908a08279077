"""Find the tokens of a vocabulary that are whole words."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

# Any short word; only the space after it matters.
_ANCHOR = "a"


@dataclass(frozen=True)
class WholeWords:
    """The tokens that are whole words, by what precedes them.

    Byte-level and SentencePiece vocabularies have two tokens for a word: one after a space, and one
    at the start of a text or after a bracket. WordPiece has one token for both.

    Args:
        inside: Id -> word, after a space, ascending.
        leading: Id -> word, at the start of a text or after another character, ascending.
    """

    inside: Mapping[int, str] = field(repr=False)
    leading: Mapping[int, str] = field(repr=False)

    @property
    def cased(self) -> bool:
        """Whether words with and without a capital letter are different tokens."""
        every = (*self.inside.values(), *self.leading.values())
        return any(word != word.lower() for word in every)

    def after(self, before: str) -> Mapping[int, str]:
        """Return id -> word for the tokens that can follow a text.

        Example:
            >>> words = WholeWords({7: "good"}, {8: "good"})
            >>> words.after("a "), words.after("(")
            ({7: 'good'}, {8: 'good'})
        """
        return self.inside if before[-1:].isspace() else self.leading


def whole_words(tokenizer: Any, *, size: int | None = None) -> WholeWords:
    """Find the whole words in a tokenizer's vocabulary; none if it does not list one.

    A word is two or more letters or digits, or one letter of a script without capitals (Chinese).
    The tokenizer must encode it as this one token. ``size`` is the number of the model's
    embeddings, if the tokenizer has more ids.
    """
    listed = getattr(tokenizer, "get_vocab", None)
    special = set(getattr(tokenizer, "all_special_ids", None) or ())
    ids = sorted(set(listed().values()) if listed is not None else set())
    result = {
        number: word
        for number in ids
        if number not in special and (size is None or number < size)
        if _is_word(word := str(tokenizer.decode([number])).strip())
    }
    if not result:
        return WholeWords({}, {})
    options = {
        "add_special_tokens": False,
        "return_attention_mask": False,
        "return_token_type_ids": False,
        "verbose": False,
    }
    before = list(tokenizer([_ANCHOR], **options)["input_ids"][0])
    behind = tokenizer([f"{_ANCHOR} {word}" for word in result.values()], **options)["input_ids"]
    alone = tokenizer(list(result.values()), **options)["input_ids"]

    def single(reads: list[list[int]], before: list[int]) -> dict[int, str]:
        rows = zip(result.items(), reads, strict=True)
        return {number: word for (number, word), ids in rows if list(ids) == [*before, number]}

    return WholeWords(single(behind, before), single(alone, []))


def script_of(word: str) -> str:
    """Return the Unicode script of a word's first letter; empty if it has no letter.

    Example:
        >>> script_of("film"), script_of("电"), script_of("42")
        ('LATIN', 'CJK', '')
    """
    letter = next((sign for sign in word if sign.isalpha()), "")
    return unicodedata.name(letter, "").split(" ")[0].split("-")[0] if letter else ""


def in_case_of(word: str, other: str) -> str:
    """Return a word in the case of ``other``: upper case, capitalized, or unchanged.

    Example:
        >>> in_case_of("great", "Good"), in_case_of("great", "GOOD"), in_case_of("great", "good")
        ('Great', 'GREAT', 'great')
    """
    if len(other) > 1 and other.isupper():
        return word.upper()
    return word[:1].upper() + word[1:] if other[:1].isupper() else word


def _is_word(text: str) -> bool:
    if len(text) == 1:
        return unicodedata.category(text) == "Lo"
    return text.isalnum() and any(letter.isalpha() for letter in text)
