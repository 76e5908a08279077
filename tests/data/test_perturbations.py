"""Label-preserving perturbations of texts and words: effects and limits."""

from __future__ import annotations

import itertools
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from temper.data.examples import Examples
from temper.data.perturbations import (
    EDITS,
    HOMOGLYPHS,
    KEYBOARD,
    LENGTHENED,
    MISSPELLINGS,
    MOST_SPACES,
    NEGATED,
    PERTURBATIONS,
    PRONOUNS,
    SHORTEST,
    TYPO_FRACTION,
    Edit,
    contract,
    drawn_edits,
    drop_punctuation,
    edits,
    expand,
    known_names,
    letters,
    misspell,
    perturb,
    perturbed,
)
from temper.data.words import STOP_WORDS, Words
from temper.errors import SettingError

TEXTS = st.text(max_size=60) | st.text(alphabet="abcDEF n't'ing.,!? \n", max_size=60)


def of(text: str, name: str, *, row: str = "row", seed: int = 0) -> str:
    return perturb(text, name, row=row, seed=seed)


@pytest.mark.parametrize(
    ("change", "text", "expected"),
    [
        (contract, "It is not bad.", "It isn't bad."),
        (contract, "It is  not bad.", "It isn't bad."),
        (contract, "Do not go, we will not.", "Don't go, we won't."),
        (contract, "DO NOT GO", "DON'T GO"),
        (contract, "You cannot, can not or could not.", "You can't, can't or couldn't."),
        (contract, "I am here and I AM LOUD", "I'm here and I'M LOUD"),
        (contract, "They are sure it will work.", "They're sure it'll work."),
        (contract, "as good as they are.", "as good as they are."),
        (contract, "The notes are knotty, he is fine.", "The notes are knotty, he is fine."),
        (expand, "It isn't bad.", "It is not bad."),
        (expand, "it does n't matter , they 're fine", "it does not matter , they are fine"),
        (expand, "I ca n't and wo n't", "I cannot and will not"),
        (expand, "Can\u2019t you see we\u2019ve won?", "Cannot you see we have won?"),
        (expand, "DON'T GO, WE'RE LATE", "DO NOT GO, WE ARE LATE"),
        (expand, "it's the dog's, he'd say let's", "it's the dog's, he'd say let's"),
        (expand, "'less is more', rock 'n roll", "'less is more', rock 'n roll"),
        (drop_punctuation, "Wow!!! So (very) good, isn't it?", "Wow So very good isn't it"),
        (drop_punctuation, "3.5 of 1,000 at 10:30 for $5.", "3.5 of 1,000 at 10:30 for $5"),
        (drop_punctuation, "one,two -- three\u2014four\u2026", "one two -- three four"),
        (drop_punctuation, "fine :) or not ;-(", "fine :) or not ;-("),
        (drop_punctuation, "\u597d\u7684\u3002\u5f88\u597d\uff01", "\u597d\u7684 \u5f88\u597d"),
        (drop_punctuation, "no  marks\nhere", "no  marks\nhere"),
        (
            misspell,
            "BELIEVE me: Definitely believable, friend-like, friend.",
            "BELEIVE me: Definately believable, friend-like, freind.",
        ),
        (lambda text: of(text, "lowercase"), "A GOOD Film", "a good film"),
        *((lambda text: of(text, "punctuation"), text, text) for text in ("?!", "...", "  ", "")),
    ],
)
def test_perturbations_change_a_text_as_expected(
    change: Callable[[str], str], text: str, expected: str
) -> None:
    assert change(text) == expected


def test_every_contraction_is_undone_by_its_expansion() -> None:
    for verb, short in NEGATED.items():
        whole = "It cannot be." if verb == "can" else f"It {verb} not be."
        assert contract(whole) == f"It {short} be."
        assert expand(contract(whole)) == whole
    for verb, pronouns in PRONOUNS.items():
        for pronoun in pronouns:
            whole = f"{pronoun} {verb} here"
            assert contract(whole) != whole
            assert expand(contract(whole)) == whole


def test_the_tables_name_each_word_once_and_no_misspelling_is_a_word_of_them() -> None:
    for word, wrong in MISSPELLINGS.items():
        assert (word, wrong) == (word.lower(), wrong.lower())
        assert word != wrong
        assert wrong not in MISSPELLINGS
        assert wrong not in STOP_WORDS
        # One word stays one word, at most two letters longer or shorter.
        assert len(Words.of(wrong)) == 1
        assert abs(len(word) - len(wrong)) <= 2
    assert set(PRONOUNS) <= set(LENGTHENED.values())


def test_gaps_become_one_to_three_spaces_all_of_them_drawn() -> None:
    text = " ".join(["word"] * 300)
    gaps = [len(gap) for gap in re.findall(" +", of(text, "spaces"))]
    assert len(gaps) == 299
    assert set(gaps) == {1, 2, 3}
    assert max(gaps) == MOST_SPACES
    # Uniform: each count within five standard deviations of its expectation of 100.
    assert all(abs(gaps.count(size) - 299 / 3) < 5 * math.sqrt(299 * 2 / 9) for size in (1, 2, 3))
    assert of("a\n\nb", "spaces") == "a\n\nb"


@pytest.mark.parametrize(("count", "expected"), [(1, 1), (10, 1), (11, 2), (30, 3)])
def test_a_tenth_of_the_words_rounded_up_gets_a_typing_error(count: int, expected: int) -> None:
    text = " ".join(["wonder"] * count)
    for seed in range(5):
        changed = of(text, "typos", seed=seed).split(" ")
        wrong = [word for word in changed if word != "wonder"]
        assert (len(changed), len(wrong)) == (count, expected)
        # One error: a letter more, one less, or as many with one or two in other places.
        assert all(abs(len(word) - 6) <= 1 and word[0] == "w" for word in wrong)
    assert TYPO_FRACTION == 0.1


def test_typing_errors_skip_short_words_and_use_all_kinds_and_positions() -> None:
    text = "it was an odd elephant"
    result = {of(text, "typos", seed=seed) for seed in range(60)}
    assert all(each.startswith("it was an odd e") and each != text for each in result)
    lengths = {len(each) - len(text) for each in result}
    assert lengths == {-1, 0, 1}
    assert len(result) > 20
    assert of("it was an odd one", "typos") == "it was an odd one"
    assert SHORTEST == 4


@pytest.mark.parametrize("name", ["typos", "spaces"])
def test_draws_follow_seed_row_name_and_side_alone(name: str) -> None:
    text = "a long enough text for many different possible draws of any kind that matters here"
    draws = {of(text, name, row=row, seed=seed) for row in "abcdefgh" for seed in range(4)}
    assert len(draws) > 24
    assert of(text, name) == of(text, name)
    pair = Examples("pairs", [text], [text])
    changed = perturbed(pair, name)
    assert changed.text_pair is not None
    assert changed.text != changed.text_pair
    alone = Examples("pairs", [text] * 3, [text] * 3)
    assert perturbed(alone, name).text == changed.text * 3


@pytest.mark.parametrize("name", PERTURBATIONS)
@given(text=TEXTS, seed=st.integers(0, 2**32))
def test_every_perturbation_accepts_any_text_and_never_empties_it(
    name: str, text: str, seed: int
) -> None:
    changed = of(text, name, seed=seed)
    assert changed == of(text, name, seed=seed)
    assert bool(changed.strip()) == bool(text.strip())


@pytest.mark.parametrize("name", ["contractions", "expansions", "misspellings"])
@given(text=st.text(alphabet="\u0430\u0431\u0432\u0433 \u0434.,\u4f60\u597d", max_size=40))
def test_english_perturbations_do_not_change_other_scripts(name: str, text: str) -> None:
    assert of(text, name) == text


def test_a_perturbed_set_changes_only_texts_and_hashes() -> None:
    rows: dict[str, Any] = {"labels": [1, 0], "kind": "classification", "group": ["x", None]}
    toy = Examples("toy", ["Good", "bad"], ["A", "B"], **rows)
    changed = perturbed(toy, "lowercase")
    assert (changed.text, changed.text_pair) == (["good", "bad"], ["a", "b"])
    assert (changed.labels, changed.group, changed.name) == ([1, 0], ["x", None], "toy")
    assert changed.rows == Examples("toy", ["good", "bad"], ["a", "b"]).rows
    assert toy.text == ["Good", "bad"]


def test_unknown_names_and_names_given_twice_raise_an_error() -> None:
    with pytest.raises(ValueError, match="Unknown perturbation 'typo'. Did you mean 'typos'"):
        known_names(("typo",))
    with pytest.raises(ValueError, match="must not name one twice"):
        known_names(("typos", "typos"))
    with pytest.raises(SettingError, match="'typo'. Did you mean 'typos'"):
        perturb("a text", "typo", row="a")


WORDS = st.text(min_size=1, max_size=12) | st.text("abcdeXYZ", min_size=1, max_size=8)
KINDS = st.sampled_from(EDITS)
# Keys that touch on a QWERTY keyboard, read off one.
TOUCHING = {"q": "wa", "g": "fhtyvb", "p": "ol", "z": "xas", "m": "njk", "l": "kop", "h": "gjyubn"}


def distance(one: list[str], two: list[str]) -> int:
    """Return the edit distance with swaps of neighbors, by its recurrence."""
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
    for result in edits(word, kind):
        assert distance(letters(word), letters(result)) == 1
        if kind != "homoglyph":
            assert letters(result)[0] == letters(word)[0]
        if kind in ("swap", "delete"):
            assert letters(result)[-1] == letters(word)[-1]


@given(WORDS, KINDS)
def test_digits_and_signs_that_are_no_letters_stay(word: str, kind: Edit) -> None:
    fixed = [sign for sign in letters(word) if not sign[0].isalpha()]
    for result in edits(word, kind):
        assert [sign for sign in letters(result) if not sign[0].isalpha()] == fixed


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


def test_a_letter_without_a_known_key_is_doubled() -> None:
    assert edits("\u05e9\u05dc", "insert") == ["\u05e9\u05e9\u05dc", "\u05e9\u05dc\u05dc"]
    assert edits("\u05e9\u05dc", "keyboard") == []


def test_neighboring_keys_are_symmetric() -> None:
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
    result = drawn_edits(word, seed=seed)
    assert result == drawn_edits(word, seed=seed)
    assert word not in result
    assert len(set(result)) == len(result) <= len(EDITS)
    for kind in EDITS:
        alone = drawn_edits(word, seed=seed, kinds=(kind,))
        assert set(alone) <= set(result) & set(edits(word, kind))
        assert bool(alone) == bool(edits(word, kind))


def test_edits_are_drawn_uniformly() -> None:
    every = edits("wonderful", "delete")
    counts = Counter(drawn_edits("wonderful", seed=s, kinds=("delete",))[0] for s in range(1400))
    assert set(counts) == set(every)
    # 200 expected of each of 7; six standard deviations are 79.
    assert max(abs(count - 200) for count in counts.values()) < 79
