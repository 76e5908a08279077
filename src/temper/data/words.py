"""A text as words and what stands between them, so that a word can be changed and no other sign.

A word is a run of letters, digits and the marks on them, with apostrophes and hyphens inside
(``don't``, ``well-made``). In scripts without spaces between words (Chinese characters, Kana, Thai,
Lao, Khmer, Myanmar) each letter with its marks is a word of its own. Emoji and punctuation belong
to the gaps.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from functools import cache

from temper.files import asset

_HAN = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U000323af"
# Blocks of Thai, Lao, Myanmar, Khmer, Kana; their digits and marks are treated as elsewhere.
_UNSPACED_BLOCKS = (
    (0x0E00, 0x0EFF),
    (0x1000, 0x109F),
    (0x1780, 0x17FF),
    (0x3040, 0x30FF),
    (0x31F0, 0x31FF),
    (0xA9E0, 0xA9FF),
    (0xAA60, 0xAA7F),
    (0xFF66, 0xFF9D),
)
# Between two letters these join a word: apostrophes, hyphens, and the joiners of Persian and Hindi.
_JOINERS = "'\u2019\\-\u2010\u2011\u200c\u200d"
# Marks stand below this; above lie variation selectors, which belong to emoji.
_LAST_MARK = 0x1E94B

STOP_WORDS = frozenset(asset("temper.data", "stop_words.txt").split())
"""English words that carry grammar and not content, lower case, with a straight apostrophe."""


@dataclass(frozen=True)
class Words:
    """A text in pieces: ``gaps[0] words[0] gaps[1] ... words[n-1] gaps[n]``.

    Args:
        words: The n words.
        gaps: What stands before, between and after them, n + 1 strings.

    Raises:
        ValueError: There is not one gap more than words.

    Example:
        >>> Words.of("Well, don't!").words
        ('Well', "don't")
        >>> Words.of("Well, don't!").text
        "Well, don't!"
    """

    words: tuple[str, ...]
    gaps: tuple[str, ...]

    def __post_init__(self) -> None:
        if len(self.gaps) != len(self.words) + 1:
            raise ValueError(
                f"{len(self.words)} words need {len(self.words) + 1} gaps, got {len(self.gaps)}."
            )

    @classmethod
    def of(cls, text: str) -> Words:
        """Split a text; joining the pieces gives it back.

        Args:
            text: Any text, the empty one too.
        """
        words, gaps, end = [], [], 0
        for found in _pattern().finditer(text):
            words.append(found.group())
            gaps.append(text[end : found.start()])
            end = found.end()
        return cls(tuple(words), (*gaps, text[end:]))

    def __len__(self) -> int:
        """Return the number of words."""
        return len(self.words)

    @property
    def text(self) -> str:
        """The text that the pieces make."""
        return self.gaps[0] + "".join(
            word + gap for word, gap in zip(self.words, self.gaps[1:], strict=True)
        )

    def span(self, place: int) -> tuple[int, int]:
        """Return where a word starts and ends in `text`, in characters.

        Args:
            place: Of the word, in [0, n).
        """
        start = sum(map(len, self.words[:place])) + sum(map(len, self.gaps[: place + 1]))
        return start, start + len(self.words[place])

    def replaced(self, place: int, word: str) -> Words:
        """Return the same text with another word at one place, which stays one word.

        Args:
            place: Of the word, in [0, n).
            word: What to put there; it may hold spaces.

        Example:
            >>> Words.of("a good film").replaced(1, "bad").text
            'a bad film'
        """
        return Words((*self.words[:place], word, *self.words[place + 1 :]), self.gaps)

    def text_without(self, place: int) -> str:
        """Return the text without one word, and without the space that would stand doubled.

        Args:
            place: Of the word, in [0, n).

        Example:
            >>> Words.of("a good film").text_without(1)
            'a film'
        """
        start, end = self.span(place)
        whole = self.text
        before, after = whole[:start], whole[end:]
        doubled = not before or before[-1].isspace()
        return before + (after[1:] if doubled and after[:1].isspace() else after)


def is_stop_word(word: str) -> bool:
    """Say whether a word is one of `STOP_WORDS`, in any case and with any apostrophe.

    Args:
        word: One word.

    Example:
        >>> is_stop_word("The"), is_stop_word("film")
        (True, False)
    """
    return word.casefold().replace("\u2019", "'") in STOP_WORDS


@cache
def _pattern() -> re.Pattern[str]:
    """Return the expression of a word; ``re`` alone leaves out the marks on letters."""
    marks = "".join(
        re.escape(chr(code))
        for code in range(0x300, _LAST_MARK)
        if unicodedata.category(chr(code))[0] == "M" and not 0xFE00 <= code <= 0xFE0F
    )
    single = _HAN + "".join(
        chr(code)
        for first, last in _UNSPACED_BLOCKS
        for code in range(first, last + 1)
        if unicodedata.category(chr(code))[0] == "L"
    )
    sign = f"(?:[^\\W{single}]|[{marks}])"
    return re.compile(
        f"[{single}][{marks}]*|[^\\W{single}](?:{sign}|[{_JOINERS}](?=[^\\W{single}]))*"
    )
