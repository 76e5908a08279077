"""Split a text into words and the gaps between them, so that single words can be replaced.

A word is a run of letters, digits and combining marks, with apostrophes and hyphens inside
(``don't``, ``well-made``). In scripts without spaces (Chinese characters, Kana, Thai, Lao, Khmer,
Myanmar) each letter with its marks is a word. Emoji and punctuation belong to the gaps.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import regex

from temper.files import asset

# Letters of scripts without spaces between words: Chinese characters, and the letters in the blocks
# of Thai, Lao, Myanmar, Khmer and Kana.
_SINGLE = (
    r"[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U000323af[[\u0e00-\u0eff\u1000-\u109f"
    r"\u1780-\u17ff\u3040-\u30ff\u31f0-\u31ff\ua9e0-\ua9ff\uaa60-\uaa7f\uff66-\uff9d]&&\p{L}]]"
)
# Variation selectors belong to emoji.
_MARK = r"[\p{M}--[\ufe00-\ufe0f\U000e0100-\U000e01ef]]"
# Characters that join two letters: apostrophes, hyphens, and the joiners of Persian and Hindi.
_JOINER = r"['\u2019\-\u2010\u2011\u200c\u200d]"

STOP_WORDS = frozenset(asset("temper.data", "stop_words.txt").split())
"""English stop words in lower case, with a straight apostrophe."""


@dataclass(frozen=True)
class Words:
    """The words and gaps of a text: ``gaps[0] words[0] gaps[1] ... words[n-1] gaps[n]``.

    Example:
        >>> Words.of("Well, don't!").words
        ('Well', "don't")
        >>> Words.of("Well, don't!").text
        "Well, don't!"
    """

    words: tuple[str, ...]
    gaps: tuple[str, ...]

    @classmethod
    def of(cls, text: str) -> Words:
        """Split a text; `text` joins the pieces again without any change."""
        words, gaps, end = [], [], 0
        for result in _pattern().finditer(text):
            words.append(result.group())
            gaps.append(text[end : result.start()])
            end = result.end()
        return cls(tuple(words), (*gaps, text[end:]))

    def __len__(self) -> int:
        return len(self.words)

    @property
    def text(self) -> str:
        return self.gaps[0] + "".join(
            word + gap for word, gap in zip(self.words, self.gaps[1:], strict=True)
        )

    def span(self, index: int) -> tuple[int, int]:
        """Return start and end (exclusive) of a word in the text, in characters."""
        start = sum(map(len, self.words[:index])) + sum(map(len, self.gaps[: index + 1]))
        return start, start + len(self.words[index])

    def replaced(self, index: int, word: str) -> Words:
        """Return a copy with another word at an index; ``word`` is not split again.

        Example:
            >>> Words.of("a good film").replaced(1, "bad").text
            'a bad film'
        """
        return Words((*self.words[:index], word, *self.words[index + 1 :]), self.gaps)

    def text_without(self, index: int) -> str:
        """Return the text without one word and the doubled space that this leaves.

        Example:
            >>> Words.of("a good film").text_without(1)
            'a film'
        """
        start, end = self.span(index)
        whole = self.text
        before, after = whole[:start], whole[end:]
        doubled = not before or before[-1].isspace()
        return before + (after[1:] if doubled and after[:1].isspace() else after)


def is_stop_word(word: str) -> bool:
    """Return whether a word is one of `STOP_WORDS`, in any case and with any apostrophe.

    Example:
        >>> is_stop_word("The"), is_stop_word("film")
        (True, False)
    """
    return word.casefold().replace("\u2019", "'") in STOP_WORDS


@cache
def _pattern() -> Any:
    # `re` does not have these character classes.
    letter = rf"[[\p{{L}}\p{{N}}_]--{_SINGLE}]"
    return regex.compile(
        f"{_SINGLE}{_MARK}*|{letter}(?:{letter}|{_MARK}|{_JOINER}(?={letter}))*", regex.V1
    )
