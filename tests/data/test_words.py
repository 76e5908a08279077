"""Texts as words: nothing is lost, and a word can be changed alone."""

from __future__ import annotations

import re
from unicodedata import category

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from temper.data.words import STOP_WORDS, Words, is_stop_word

HOSTILE = [
    "",
    " ",
    "...?! -- ''",
    "\U0001f44d\U0001f3fd\u2764\ufe0f",
    "word",
    "\u05e9\u05dc\u05d5\u05dd \u0639\u0627\u0644\u0645",
    "tab\tnew\nline\x00 end\u00a0",
    "\u0301starts with a mark",
    "-'- a-'b --x-- it's' rock-'n'-roll",
]


@given(st.text())
@example("\n".join(HOSTILE))
def test_the_pieces_of_any_text_join_to_the_text(text: str) -> None:
    words = Words.of(text)
    assert words.text == text
    assert "".join(a + b for a, b in zip(words.gaps, (*words.words, ""), strict=True)) == text


@given(st.text())
def test_words_contain_all_letters_and_digits_and_gaps_none(text: str) -> None:
    words = Words.of(text)
    assert not any(sign.isalnum() for gap in words.gaps for sign in gap)
    # Code points that no character has yet, Han ones to be, are words too.
    assert all(w[0].isalnum() or w[0] == "_" or category(w[0]) == "Cn" for w in words.words)


@given(st.text(), st.data())
def test_the_span_of_a_word_is_its_position(text: str, data: st.DataObject) -> None:
    words = Words.of(text)
    if len(words):
        index = data.draw(st.integers(0, len(words) - 1))
        start, end = words.span(index)
        assert text[start:end] == words.words[index]
        assert words.replaced(index, "X Y").text == f"{text[:start]}X Y{text[end:]}"
        assert len(words.replaced(index, "X Y")) == len(words)


@given(st.text(st.characters(codec="ascii")))
def test_ascii_words_are_runs_joined_by_single_apostrophes_and_hyphens(text: str) -> None:
    assert list(Words.of(text).words) == re.findall(r"\w+(?:['-]\w+)*", text, re.ASCII)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Don\u2019t, well-made!", ["Don\u2019t", "well-made"]),
        ("\u597d\u7535\u5f71ok", ["\u597d", "\u7535", "\u5f71", "ok"]),
        # Thai and Kana have no spaces between words; letters keep their marks.
        (
            "\u0e14\u0e35\u0e21\u0e32\u0e01 \u0e51\u0e52",
            ["\u0e14\u0e35", "\u0e21", "\u0e32", "\u0e01", "\u0e51\u0e52"],
        ),
        ("\u3053\u308c\u30fc ok", ["\u3053", "\u308c", "\u30fc", "ok"]),
        # Korean has spaces.
        ("\ud55c\uad6d \uc601\ud654", ["\ud55c\uad6d", "\uc601\ud654"]),
        ("cafe\u0301 x", ["cafe\u0301", "x"]),
        # A vowel sign, then a virama: neither is a letter to Python.
        ("\u0939\u093f\u0928\u094d\u0926\u0940", ["\u0939\u093f\u0928\u094d\u0926\u0940"]),
        ("good\u2764\ufe0f\U0001f44d film", ["good", "film"]),
        ("\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645", None),
    ],
)
def test_words_of_many_scripts(text: str, words: list[str] | None) -> None:
    assert list(Words.of(text).words) == ([text] if words is None else words)


@pytest.mark.parametrize(
    ("text", "index", "without"),
    [
        ("a good film", 1, "a film"),
        ("good film", 0, "film"),
        ("good film", 1, "good "),
        ("a (good) film", 1, "a () film"),
        ("a good, film", 1, "a , film"),
        ("good", 0, ""),
    ],
)
def test_removing_a_word_removes_one_adjacent_space(text: str, index: int, without: str) -> None:
    assert Words.of(text).text_without(index) == without


@pytest.mark.parametrize("word", ["not", "NOT", "don\u2019t", "The", "I'm", "yourselves"])
def test_negations_and_other_words_of_grammar_are_stop_words(word: str) -> None:
    assert is_stop_word(word)


def test_stop_words_are_lower_case_single_words_and_no_content() -> None:
    assert all(Words.of(word).words == (word,) and word == word.lower() for word in STOP_WORDS)
    assert not STOP_WORDS & {"good", "bad", "film", "never", "great", "worst"}
