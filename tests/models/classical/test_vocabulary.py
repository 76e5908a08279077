"""Vocabularies of words, or characters of Chinese, from the training texts in any order."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from temper.data.words import Words
from temper.errors import DataError
from temper.models.classical.build import make_tokenizer, mostly_ideographs
from temper.models.classical.registry import SPECIAL

TEXTS = ["A good film, a very good film!", "Not good; I'd say: bad.", "bad film"]
CHINESE = ["这部电影很好看BBC", "不好看", "电影一般"]


def test_words_are_ranked_by_frequency_then_by_name() -> None:
    tokenizer = make_tokenizer(TEXTS, min_frequency=2)
    known = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().__getitem__)
    # good and film come three times, a and bad twice, all else once.
    assert known == [*SPECIAL, "film", "good", "a", "bad"]


def test_the_least_frequency_and_the_size_bound_the_vocabulary() -> None:
    assert len(make_tokenizer(TEXTS, min_frequency=3)) == len(SPECIAL) + 2
    assert len(make_tokenizer(TEXTS, min_frequency=1, size=6)) == 6


@settings(max_examples=25, deadline=None)
@given(st.permutations(TEXTS + CHINESE))
def test_the_vocabulary_does_not_depend_on_the_order_of_the_texts(texts: list[str]) -> None:
    expected = make_tokenizer(TEXTS + CHINESE, min_frequency=1).get_vocab()
    assert make_tokenizer(texts, min_frequency=1).get_vocab() == expected


@settings(max_examples=50, deadline=None)
@given(st.lists(st.text(alphabet="ab .", min_size=1), min_size=1, max_size=6))
def test_the_vocabulary_is_that_of_a_counter_over_words(texts: list[str]) -> None:
    words = Counter(word for text in texts for word in text.replace(".", " . ").split())
    if not words:
        with pytest.raises(DataError, match="no vocabulary"):
            make_tokenizer(texts, min_frequency=1)
        return
    ranked = sorted(words, key=lambda word: (-words[word], word))
    known = make_tokenizer(texts, min_frequency=1).get_vocab()
    assert [known[word] for word in ranked] == list(range(3, 3 + len(ranked)))


def test_case_and_punctuation_are_split_off_and_rows_end() -> None:
    tokenizer = make_tokenizer(TEXTS, min_frequency=1)
    ids = tokenizer("GOOD, awful!")["input_ids"]
    assert tokenizer.convert_ids_to_tokens(ids) == ["good", ",", "[UNK]", "!", "[SEP]"]
    pair = tokenizer("good", "bad")["input_ids"]
    assert tokenizer.convert_ids_to_tokens(pair) == ["good", "[SEP]", "bad", "[SEP]"]
    assert tokenizer("")["input_ids"] == [tokenizer.sep_token_id]


def test_texts_are_padded_on_the_right_and_have_no_types() -> None:
    batch = make_tokenizer(TEXTS, min_frequency=1)(["good", "a good film"], padding=True)
    assert set(batch) == {"input_ids", "attention_mask"}
    assert batch["attention_mask"] == [[1, 1, 0, 0], [1, 1, 1, 1]]
    assert batch["input_ids"][0][2:] == [0, 0]


def test_chinese_is_read_by_characters_of_itself() -> None:
    assert mostly_ideographs(CHINESE)
    assert not mostly_ideographs([*TEXTS, "电"])
    tokenizer = make_tokenizer(CHINESE, min_frequency=1)
    tokens = tokenizer.convert_ids_to_tokens(tokenizer("好 BBC")["input_ids"])
    assert tokens == ["好", "b", "b", "c", "[SEP]"]


def test_the_setting_overrides_the_guessed_splitting() -> None:
    words = make_tokenizer(CHINESE, min_frequency=1, units="words")
    tokens = words.convert_ids_to_tokens(words("好BBC")["input_ids"])
    assert tokens == ["好", "bbc", "[SEP]"]
    letters = make_tokenizer(TEXTS, min_frequency=1, units="characters")
    assert letters.convert_ids_to_tokens(letters("bad")["input_ids"]) == ["b", "a", "d", "[SEP]"]


def test_a_text_without_common_words_raises_an_error() -> None:
    with pytest.raises(DataError, match=r"occurs 2 times or more.*architecture.min_frequency"):
        make_tokenizer(["one two three"], min_frequency=2)


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("\u0e14\u0e35\u0e21\u0e32\u0e01 ok", ["\u0e14\u0e35", "\u0e21", "\u0e32", "\u0e01", "ok"]),
        ("\u0e81\u0ebb \u1797\u17b6\u1796", ["\u0e81\u0ebb", "\u1797\u17b6", "\u1796"]),
        (
            "\u101b\u102f film \u3053\u308c\u30fc",
            ["\u101b\u102f", "film", "\u3053", "\u308c", "\u30fc"],
        ),
        (
            "\u0939\u093f\u0928 \ud55c\uad6d don't",
            ["\u0939\u093f\u0928", "\ud55c\uad6d", "don", "'", "t"],
        ),
    ],
)
def test_scripts_without_spaces_are_cut_by_letter_and_others_by_word(
    text: str, tokens: list[str]
) -> None:
    tokenizer = make_tokenizer([text], units="words", min_frequency=1)
    assert tokenizer.convert_ids_to_tokens(tokenizer(text)["input_ids"]) == [*tokens, "[SEP]"]
    # What word attacks and perturbations take for a word is the same, but for punctuation.
    words = [word for word in tokens if word not in "'"]
    assert [part for word in Words.of(text).words for part in word.split("'")] == words
