"""Edits of a word: each is one character's, spares what it says, and is drawn by its key alone."""

from __future__ import annotations

import itertools
import unicodedata
from collections import Counter

from hypothesis import example, given
from hypothesis import strategies as st

from temper.data.perturbations import EDITS, HOMOGLYPHS, KEYBOARD, Edit, drawn_edits, edits, letters

WORDS = st.text(min_size=1, max_size=12) | st.text("abcdeXYZ", min_size=1, max_size=8)
KINDS = st.sampled_from(EDITS)
# Keys that touch on a QWERTY keyboard, read off one.
TOUCHING = {"q": "wa", "g": "fhtyvb", "p": "ol", "z": "xas", "m": "njk", "l": "kop", "h": "gjyubn"}


def distance(one: list[str], two: list[str]) -> int:
    """Return the edit distance with swaps of neighbours, by its recurrence."""
    table = {}
    for i, j in itertools.product(range(-1, len(one)), range(-1, len(two))):
        if min(i, j) < 0:
            table[i, j] = max(i, j) + 1
            continue
        same = one[i] == two[j]
        table[i, j] = min(
            table[i - 1, j] + 1, table[i, j - 1] + 1, table[i - 1, j - 1] + (not same)
        )
        if i and j and one[i] == two[j - 1] and one[i - 1] == two[j]:
            table[i, j] = min(table[i, j], table[i - 2, j - 2] + 1)
    return table[len(one) - 1, len(two) - 1]


@given(WORDS, KINDS)
@example("\u0301\u0301a", "delete")
@example("e\u0301te\u0301", "swap")
def test_every_edit_is_one_step_away_and_keeps_the_first_letter(word: str, kind: Edit) -> None:
    for found in edits(word, kind):
        assert distance(letters(word), letters(found)) == 1
        if kind != "homoglyph":
            assert letters(found)[0] == letters(word)[0]
        if kind in ("swap", "delete"):
            assert letters(found)[-1] == letters(word)[-1]


@given(WORDS, KINDS)
def test_edits_of_a_kind_are_distinct_and_change_the_length_as_the_kind_says(
    word: str, kind: Edit
) -> None:
    every = edits(word, kind)
    longer = {"insert": 1, "delete": -1}.get(kind, 0)
    assert len(set(every)) == len(every)
    assert {len(letters(found)) - len(letters(word)) for found in every} <= {longer}
    if kind == "swap":
        assert all(Counter(letters(found)) == Counter(letters(word)) for found in every)


@given(WORDS, KINDS)
def test_digits_and_signs_that_are_no_letters_stay(word: str, kind: Edit) -> None:
    fixed = [sign for sign in letters(word) if not sign[0].isalpha()]
    for found in edits(word, kind):
        assert [sign for sign in letters(found) if not sign[0].isalpha()] == fixed


@given(st.text())
def test_marks_go_with_their_letter(word: str) -> None:
    signs = letters(word)
    assert "".join(signs) == word
    assert all(unicodedata.category(sign[0])[0] != "M" for sign in signs[1:])


def test_the_edits_of_a_word_by_hand() -> None:
    assert edits("film", "swap") == ["flim"]
    assert edits("Film", "delete") == ["Flm", "Fim"]
    assert edits("book", "swap") == []
    assert edits("book", "delete") == ["bok"]
    assert edits("at", "insert") == ["ast", "aqt", "awt", "azt", "atr", "aty", "atf", "atg"]
    assert edits("AT", "keyboard") == ["AR", "AY", "AF", "AG"]
    assert edits("great", "keyboard")[-1] == "greag"
    assert edits("sex", "homoglyph") == ["\u0455ex", "s\u0435x", "se\u0445"]


def test_words_that_are_too_short_or_no_letters_have_none() -> None:
    for word in ("", "2021", "\u0967", "__"):
        assert [edits(word, kind) for kind in EDITS] == [[]] * len(EDITS)
    assert edits("abc", "swap") == []
    assert edits("ab", "delete") == []


def test_where_no_key_is_known_the_letter_is_doubled() -> None:
    assert edits("\u05e9\u05dc", "insert") == ["\u05e9\u05e9\u05dc", "\u05e9\u05dc\u05dc"]
    assert edits("\u05e9\u05dc", "keyboard") == []


def test_keys_lie_beside_each_other_both_ways() -> None:
    assert {key: set(TOUCHING[key]) for key in TOUCHING} == {
        key: set(KEYBOARD[key]) for key in TOUCHING
    }
    assert len(KEYBOARD) == 26
    assert all(key in KEYBOARD[other] for key in KEYBOARD for other in KEYBOARD[key])


def test_look_alikes_are_letters_of_the_same_case_from_other_alphabets() -> None:
    for latin, other in HOMOGLYPHS.items():
        assert latin.isascii()
        assert not other.isascii()
        assert latin.isupper() == other.isupper()
        # No normal form turns them back.
        assert unicodedata.normalize("NFKC", other) == other


@given(WORDS, st.integers(0, 2**63 - 1))
def test_one_edit_of_each_kind_is_drawn_again_alike(word: str, seed: int) -> None:
    found = drawn_edits(word, seed=seed)
    assert found == drawn_edits(word, seed=seed)
    assert word not in found
    assert len(set(found)) == len(found) <= len(EDITS)
    for kind in EDITS:
        alone = drawn_edits(word, seed=seed, kinds=(kind,))
        assert set(alone) <= set(found) & set(edits(word, kind))
        assert bool(alone) == bool(edits(word, kind))


def test_draws_take_every_edit_about_equally_often() -> None:
    every = edits("wonderful", "delete")
    counts = Counter(drawn_edits("wonderful", seed=s, kinds=("delete",))[0] for s in range(1400))
    assert set(counts) == set(every)
    # 200 expected of each of 7; six standard deviations are 79.
    assert max(abs(count - 200) for count in counts.values()) < 79
