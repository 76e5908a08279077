"""Training rows that are perturbed again each epoch."""

from __future__ import annotations

import math
from typing import Any

import pytest

from temper.data.augmentation import AugmentedExamples, augmented
from temper.data.encode import LazilyEncoded, encode
from temper.data.examples import Examples
from temper.data.perturbations import perturbed
from temper.data.settings import DataSettings
from temper.errors import SettingError
from temper.settings import section
from tests.evaluation.conftest import make_tokenizer

ROWS = 400
TEXTS = [f"WORD1 word2 word{number % 90}, and Some more" for number in range(ROWS)]


class Letters:
    """A tokenizer whose tokens are signs, so that every change of a text shows."""

    pad_token_id = 0
    padding_side = "right"
    model_max_length = 64

    def __call__(self, text: Any, text_pair: Any = None, **options: Any) -> Any:
        length = options.get("max_length") if options.get("truncation") else None
        pairs = text_pair or [""] * len(text)
        ids = [[ord(sign) for sign in one + two][:length] for one, two in zip(text, pairs)]  # noqa: B905
        return {"input_ids": ids}


def examples(count: int = ROWS) -> Examples:
    # Numbers make all texts differ, so that every row draws for itself.
    texts = [f"{number} {text}" for number, text in enumerate(TEXTS[:count])]
    return Examples("train", texts, labels=[n % 2 for n in range(count)], kind="classification")


def settings_of(*names: str, fraction: float, length: int = 64) -> DataSettings:
    settings = DataSettings(source="demo", max_length=length)
    return settings.model_copy(update={"augment": names, "augment_fraction": fraction})


def rows_of(
    source: Examples, *names: str, fraction: float = 0.5, seed: int = 0, length: int = 64
) -> AugmentedExamples:
    tokenizer = Letters()
    clean = LazilyEncoded(source, tokenizer, max_length=length)
    settings = settings_of(*names, fraction=fraction, length=length)
    return AugmentedExamples(source, clean, tokenizer, settings, seed=seed)


def text(item: dict[str, Any]) -> str:
    return "".join(map(chr, item["input_ids"]))


def test_half_of_the_rows_are_perturbed_per_epoch_and_reproducibly() -> None:
    source = examples()
    rows = rows_of(source, "lowercase")
    epochs = []
    for epoch in range(3):
        rows.set_epoch(epoch)
        texts = [text(rows[index]) for index in range(ROWS)]
        assert [text(rows[index]) for index in reversed(range(ROWS))] == texts[::-1]
        assert {new in (old, old.lower()) for new, old in zip(texts, source.text, strict=True)} == {
            True
        }
        epochs.append([new != old for new, old in zip(texts, source.text, strict=True)])
        # Within five standard deviations of a half.
        assert abs(sum(epochs[-1]) - ROWS / 2) < 5 * math.sqrt(ROWS / 4)
    agree = sum(first == second for first, second in zip(epochs[0], epochs[1], strict=True))
    assert abs(agree - ROWS / 2) < 5 * math.sqrt(ROWS / 4)


def test_augmentations_are_equally_likely_and_equal_the_perturbations_of_sets() -> None:
    source = examples()
    rows = rows_of(source, "lowercase", "punctuation", "contractions", fraction=1.0)
    chosen = [rows.chosen(index) for index in range(ROWS)]
    for name in rows.settings.augment:
        expected = ROWS / 3
        assert abs(chosen.count(name) - expected) < 5 * math.sqrt(expected * 2 / 3)
        changed = perturbed(source, name).text
        indices = [index for index in range(ROWS) if chosen[index] == name]
        assert [text(rows[index]) for index in indices] == [changed[index] for index in indices]


def test_typing_errors_of_a_row_differ_by_epoch_and_seed() -> None:
    source = examples(1)
    result = set()
    for seed in range(3):
        rows = rows_of(source, "typos", fraction=1.0, seed=seed)
        for epoch in range(8):
            rows.set_epoch(epoch)
            result.add(text(rows[0]))
    assert source.text[0] not in result
    assert len(result) > 12


def test_draws_do_not_depend_on_the_other_rows() -> None:
    source = examples()
    whole, part = rows_of(source, "typos"), rows_of(source.select([70, 3, 11]), "typos")
    assert [part[index] for index in range(3)] == [whole[index] for index in (70, 3, 11)]


def test_labels_lengths_and_truncation_are_those_of_the_unperturbed_rows() -> None:
    source = examples(40)
    clean = LazilyEncoded(source, Letters(), max_length=28)
    rows = rows_of(source, "spaces", fraction=1.0, length=28)
    assert list(rows.lengths) == list(clean.lengths)
    assert (rows.truncated, len(rows)) == (clean.truncated, 40)
    assert 0 < rows.truncated <= 1
    for index in range(40):
        item = rows[index]
        assert item["labels"] == index % 2
        assert item.keys() == clean[index].keys()
        assert len(item["input_ids"]) == len(item["attention_mask"]) <= 28
    assert source.text == examples(40).text


def test_both_texts_of_a_pair_are_perturbed_and_keep_their_segments() -> None:
    source = Examples("train", ["word1 ."], ["word2 !"], labels=[1], kind="classification")
    tokenizer = make_tokenizer()
    tokenizer.model_input_names = [*tokenizer.model_input_names, "token_type_ids"]
    clean = LazilyEncoded(source, tokenizer, max_length=16)
    settings = settings_of("punctuation", fraction=1.0, length=16)
    rows = AugmentedExamples(source, clean, tokenizer, settings, seed=0)
    alone = Examples("alone", ["word1"], ["word2"])
    expected = encode(alone, tokenizer, max_length=16)[0]
    assert rows[0] == {**expected, "labels": 1}
    assert "token_type_ids" in rows[0]


def test_without_names_the_rows_are_the_very_same() -> None:
    source = examples(3)
    clean = LazilyEncoded(source, Letters(), max_length=64)
    settings = DataSettings(source="demo", max_length=64)
    assert augmented(clean, source, Letters(), settings, seed=0) is clean
    on = settings.model_copy(update={"augment": ("typos",)})
    made = augmented(clean, source, Letters(), on, seed=4)
    assert isinstance(made, AugmentedExamples)
    assert (made.settings, made.seed) == (on, 4)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"augment": ["typo"]}, "Unknown perturbation 'typo'. Did you mean 'typos'"),
        ({"augment": ["typos", "typos"]}, "`data.augment` must not name one twice"),
        ({"augment": "typos", "augment_fraction": 0.0}, "`data.augment_fraction` must be > 0"),
        ({"augment": "typos", "augment_fraction": 1.1}, "`data.augment_fraction` must be <= 1"),
        ({"augment_fraction": 0.2}, "pass augment too, or leave augment_fraction out"),
    ],
)
def test_wrong_settings_raise_an_error(given: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingError, match=said):
        section(DataSettings, "data", {"source": "demo", **given})


def test_a_single_name_is_a_list_of_one_and_settings_round_trip() -> None:
    checked = section(DataSettings, "data", {"source": "demo", "augment": "typos"})
    assert (checked.augment, checked.augment_fraction) == (("typos",), 0.5)
    for each in (checked, DataSettings(source="demo")):
        assert DataSettings.model_validate(each.model_dump(mode="json")) == each
