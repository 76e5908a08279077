"""Corrupted rows: number of changed tokens, protected tokens, and the seeds of draws."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from temper.data.corruptions import Corruption, Vocabulary, corrupt

KINDS: tuple[Corruption, ...] = ("random", "mask", "drop")
PAD, UNKNOWN, CLS, SEP, MASK = range(5)
IDS = Vocabulary(np.arange(5, 40), frozenset({PAD, CLS, SEP, MASK}), mask=MASK)
TOKENS = st.lists(st.integers(0, 39), min_size=1, max_size=30)
RATES = st.floats(0, 1)
ROWS = st.text("0123456789abcdef", min_size=16, max_size=16)


def item_of(ids: list[int]) -> dict[str, Any]:
    """Return a row whose segment ids are positions, so that a dropped token shows."""
    return {
        "input_ids": ids,
        "attention_mask": [1] * len(ids),
        "token_type_ids": list(range(len(ids))),
    }


def hits(ids: list[int], kind: Corruption, rate: float, row: str, **more: Any) -> set[int]:
    """Return the places of the tokens that a corruption hit."""
    result = corrupt(item_of(ids), kind=kind, rate=rate, row=row, vocabulary=IDS, **more)
    if kind == "drop":
        return set(range(len(ids))) - set(result["token_type_ids"])
    pairs = zip(ids, result["input_ids"], strict=True)
    return {index for index, (before, after) in enumerate(pairs) if before != after}


@pytest.mark.parametrize("kind", KINDS)
@given(ids=TOKENS, rates=st.tuples(RATES, RATES), row=ROWS)
def test_a_higher_rate_hits_all_that_a_lower_one_hits(
    kind: Corruption, ids: list[int], rates: tuple[float, float], row: str
) -> None:
    low, high = sorted(rates)
    assert hits(ids, kind, low, row) <= hits(ids, kind, high, row)


@pytest.mark.parametrize("kind", KINDS)
@given(ids=TOKENS, rate=RATES, row=ROWS)
def test_special_tokens_stay_in_their_order(
    kind: Corruption, ids: list[int], rate: float, row: str
) -> None:
    result = corrupt(item_of(ids), kind=kind, rate=rate, row=row, vocabulary=IDS)
    fixed = {PAD, CLS, SEP}
    assert [i for i in result["input_ids"] if i in fixed] == [i for i in ids if i in fixed]
    assert all(ids[index] not in {PAD, CLS, SEP, MASK} for index in hits(ids, kind, rate, row))


@given(ids=TOKENS, row=ROWS)
def test_a_swapped_token_is_another_ordinary_token_and_equal_at_every_rate(
    ids: list[int], row: str
) -> None:
    low, high = (
        corrupt(item_of(ids), kind="random", rate=rate, row=row, vocabulary=IDS)["input_ids"]
        for rate in (0.4, 1.0)
    )
    for before, some, every in zip(ids, low, high, strict=True):
        if before in IDS.spared:
            assert some == every == before
        else:
            assert some in (before, every)
            assert every != before
            assert every >= 5


@given(ids=TOKENS, rate=RATES, row=ROWS)
def test_a_dropped_token_takes_its_mask_and_segment_with_it(
    ids: list[int], rate: float, row: str
) -> None:
    result = corrupt(item_of(ids), kind="drop", rate=rate, row=row, vocabulary=IDS)
    assert result["input_ids"] == [ids[index] for index in result["token_type_ids"]]
    assert result["attention_mask"] == [1] * len(result["input_ids"])
    item = {**item_of(ids), "labels": 1, "row_index": 7}
    whole = corrupt(item, kind="drop", rate=rate, row=row, vocabulary=IDS)
    assert (whole["labels"], whole["row_index"], item["input_ids"]) == (1, 7, ids)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("tokens", "rate"), [(10, 0.05), (10, 0.2), (40, 0.1)])
def test_the_fraction_of_corrupted_tokens_is_the_rate_even_in_short_texts(
    kind: Corruption, tokens: int, rate: float
) -> None:
    ids = [CLS, *range(10, 10 + tokens // 2), *range(15, 15 + (tokens + 1) // 2), SEP]
    counts = [len(hits(ids, kind, rate, str(row))) for row in range(1500)]
    # Independent draws are binomial: the sum over all tokens, and how often a row is left whole.
    assert stats.binomtest(sum(counts), 1500 * tokens, rate).pvalue > 1e-3
    whole = sum(count == 0 for count in counts)
    assert stats.binomtest(whole, 1500, (1 - rate) ** tokens).pvalue > 1e-3


def test_all_other_ordinary_tokens_are_equally_likely() -> None:
    few = Vocabulary(np.asarray([5, 7, 8, 11]), frozenset({CLS}))
    result = corrupt(
        item_of([7] * 3000 + [UNKNOWN] * 4000), kind="random", rate=1.0, row="a", vocabulary=few
    )["input_ids"]
    own, unknown = (
        np.bincount(result[:3000], minlength=12),
        np.bincount(result[3000:], minlength=12),
    )
    assert set(np.flatnonzero(own)) == {5, 8, 11}
    assert set(np.flatnonzero(unknown)) == {5, 7, 8, 11}
    assert stats.chisquare(own[[5, 8, 11]]).pvalue > 1e-3
    assert stats.chisquare(unknown[[5, 7, 8, 11]]).pvalue > 1e-3


def test_a_draw_depends_on_seed_row_and_kind() -> None:
    ids = list(range(5, 35))
    base = hits(ids, "mask", 0.5, "a")
    assert hits(ids, "mask", 0.5, "a") == base
    assert hits(ids, "mask", 0.5, "b") != base
    assert hits(ids, "mask", 0.5, "a", seed=1) != base
    assert hits(ids, "drop", 0.5, "a") != base


@pytest.mark.parametrize("row", ["a", "b", "c", "d"])
def test_at_least_one_ordinary_token_is_kept(row: str) -> None:
    result = corrupt(item_of([CLS, 5, 6, 7, SEP]), kind="drop", rate=1.0, row=row, vocabulary=IDS)
    assert result["input_ids"] in ([CLS, 5, SEP], [CLS, 6, SEP], [CLS, 7, SEP])
    # It is the one that a growing rate hits last.
    left = {result["token_type_ids"][1]}
    rates = np.linspace(0, 1, 400)
    sizes = [hits([CLS, 5, 6, 7, SEP], "drop", rate, row) for rate in rates]
    assert max(map(len, sizes)) == 2
    assert all(not size & left for size in sizes)


def test_a_row_of_special_tokens_is_not_changed() -> None:
    for kind in KINDS:
        item = item_of([CLS, SEP])
        assert corrupt(item, kind=kind, rate=1.0, row="a", vocabulary=IDS) == item


def tokenizer_of(**given: Any) -> Any:
    """Return what `Vocabulary.of` reads of a tokenizer whose ids run from 0 to 9."""
    roles = {f"{name}_token_id": None for name in ("bos", "eos", "cls", "sep", "pad", "mask")}
    vocabulary = {f"token{number}": number for number in range(10)}
    usual = {"unk_token_id": None, "all_special_ids": [], "added_tokens_decoder": {}}
    return SimpleNamespace(**{**roles, **usual, "get_vocab": lambda: vocabulary, **given})


def test_unknown_tokens_are_corrupted_and_special_tokens_are_not() -> None:
    added = {8: SimpleNamespace(special=True), 9: SimpleNamespace(special=False)}
    result = Vocabulary.of(
        tokenizer_of(
            pad_token_id=0,
            unk_token_id=1,
            cls_token_id=2,
            sep_token_id=3,
            mask_token_id=4,
            all_special_ids=[0, 1, 2, 3, 4],
            added_tokens_decoder=added,
        )
    )
    assert result.spared == {0, 2, 3, 4, 8}
    assert result.ordinary.tolist() == [5, 6, 7, 9]
    assert result.mask == 4


def test_an_unknown_token_that_also_ends_texts_is_spared() -> None:
    same = {"unk_token_id": 0, "bos_token_id": 0, "eos_token_id": 0, "all_special_ids": [0]}
    result = Vocabulary.of(tokenizer_of(**same), size=6)
    assert result.spared == {0}
    assert result.ordinary.tolist() == [1, 2, 3, 4, 5]
    assert result.lacks("random") == result.lacks("drop") == ""
    assert "no mask token" in result.lacks("mask")


def test_tokens_of_a_tokenizer_without_a_vocabulary_can_only_be_dropped() -> None:
    bare = Vocabulary.of(SimpleNamespace(pad_token_id=0))
    assert bare.spared == {0}
    assert "fewer than two ordinary tokens" in bare.lacks("random")
    assert "no mask token" in bare.lacks("mask")
    assert bare.lacks("drop") == ""
