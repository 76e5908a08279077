"""Word diffs: nothing is lost, and what did not change is not marked."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from temper.report.examples import CUT, shorten, word_diff

WORDS = st.lists(st.sampled_from(["a", "good", "g00d", "film", "don't", ",", " ", "\n", "né"]))
TEXTS = st.one_of(st.text(max_size=40), WORDS.map(" ".join))


@given(TEXTS, TEXTS)
def test_the_segments_give_back_both_texts(original: str, changed: str) -> None:
    segments = word_diff(original, changed)
    assert "".join(text for kind, text in segments if kind != "added") == original
    assert "".join(text for kind, text in segments if kind != "removed") == changed
    assert all(text for _, text in segments)


@given(TEXTS)
def test_a_text_does_not_differ_from_itself(text: str) -> None:
    assert word_diff(text, text) == ([("same", text)] if text else [])


@given(TEXTS, TEXTS)
def test_no_two_neighbours_are_of_one_kind(original: str, changed: str) -> None:
    kinds = [kind for kind, _ in word_diff(original, changed)]
    assert all(one != other for one, other in pairwise(kinds))


def test_one_changed_word_is_all_that_is_marked() -> None:
    assert word_diff("It's a good film.", "It's a goood film.") == [
        ("same", "It's a "),
        ("removed", "good"),
        ("added", "goood"),
        ("same", " film."),
    ]


def test_words_changed_side_by_side_read_as_one_change() -> None:
    assert word_diff("a very good film", "a truly fine film") == [
        ("same", "a "),
        ("removed", "very good"),
        ("added", "truly fine"),
        ("same", " film"),
    ]


def test_a_word_that_only_went_or_came_is_marked_alone() -> None:
    assert word_diff("not good", "good") == [("removed", "not "), ("same", "good")]
    assert word_diff("good", "good !") == [("same", "good"), ("added", " !")]


def test_long_stretches_lose_their_middle_and_short_ones_nothing() -> None:
    assert shorten([("same", "a" * 10), ("removed", "abcd")], longest=4) == [
        ("same", f"aa{CUT}aa"),
        ("removed", "abcd"),
    ]
