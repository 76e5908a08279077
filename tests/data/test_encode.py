"""Encoding and padding, with a tokenizer of eight words, and batches of similar length."""

from __future__ import annotations

import csv
import tracemalloc
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from temper.data import encode as encoding
from temper.data.batches import POOL, LengthBucketSampler, ordered_batches
from temper.data.collator import Collator
from temper.data.encode import LazilyEncoded, cut_notices, encode, unknown_notices
from temper.data.examples import Examples
from temper.data.settings import DataSettings
from temper.data.sources import load_splits
from temper.errors import DataError, SettingError
from temper.seeding import derive_seed, generator

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "soup", "is", "good"]


def tokenizer(*, special: bool = True, **options: Any) -> PreTrainedTokenizerFast:
    words = {word: index for index, word in enumerate(WORDS)}
    core = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    if special:
        core.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]",
            pair="[CLS] $A [SEP] $B:1 [SEP]:1",
            special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
        )
    given = {"pad_token": "[PAD]", "unk_token": "[UNK]", "model_max_length": 64, **options}
    return PreTrainedTokenizerFast(tokenizer_object=core, **given)


def reviews(*texts: str, labels: list[Any] | None = None) -> Examples:
    kind = "unlabeled"
    if labels is not None:
        kind = "regression" if isinstance(labels[0], float) else "classification"
    return Examples("toy", list(texts), labels=labels, kind=kind)  # type: ignore[arg-type]


def test_rows_become_ids_with_their_labels() -> None:
    examples = reviews("the soup", "good", labels=[0, 1])
    encoded = encode(examples, tokenizer(), max_length=8)
    assert encoded[0]["input_ids"] == [2, 4, 5, 3]
    assert encoded[0]["attention_mask"] == [1, 1, 1, 1]
    assert [item["labels"] for item in encoded.items] == [0, 1]
    assert encoded.lengths == [4, 3]
    assert (len(encoded), encoded.truncated) == (2, 0.0)


def test_long_rows_are_truncated_and_their_fraction_is_known() -> None:
    encoded = encode(
        reviews("the soup is good", "good", "soup is", "is"), tokenizer(), max_length=5
    )
    assert encoded[0]["input_ids"] == [2, 4, 5, 6, 3]
    assert encoded.lengths == [5, 3, 4, 3]
    assert encoded.truncated == 0.25
    assert encode(reviews("the soup is"), tokenizer(), max_length=5).truncated == 0.0


def test_the_fraction_of_unknown_tokens_counts_the_texts_tokens_alone() -> None:
    examples = reviews("the stew", "good bad stew", "is")
    # Of the six words three are unknown; [CLS] and [SEP] are no words.
    assert encode(examples, tokenizer(), max_length=8).unknown == 0.5
    assert LazilyEncoded(examples, tokenizer(), max_length=8).unknown == 0.5
    # As in GPT-2, where a token that texts never give is named as the unknown one too.
    ends = tokenizer(eos_token="[UNK]")
    assert encode(examples, ends, max_length=8).unknown == 0.0


def test_truncating_5_percent_of_the_rows_or_more_gives_advice() -> None:
    long, short = "the soup is good", "good"
    some = reviews(long, *[short] * 19)
    encoded = encode(some, tokenizer(), max_length=5)
    (message,) = cut_notices(encoded, tokenizer(), max_length=5)
    assert "5.0% of the training rows" in message
    assert "--max-length" in message
    assert "64" in message
    few = encode(reviews(long, *[short] * 20), tokenizer(), max_length=5)
    (message,) = cut_notices(few, tokenizer(), max_length=5)
    assert "4.8% of the training rows" in message
    assert "--max-length" not in message
    assert not cut_notices(encode(some, tokenizer(), max_length=6), tokenizer(), max_length=6)


def test_a_tokenizer_that_does_not_cover_the_script_is_named_with_a_row() -> None:
    rows = reviews("good", "\u0e14\u0e35\u0e21\u0e32\u0e01 " * 40)
    encoded = encode(rows, tokenizer(), max_length=64)
    (message,) = unknown_notices(encoded, tokenizer(), rows="training rows", model="tiny")
    assert "tokenizer of tiny" in message
    assert "row 2" in message
    # A pushed record must not hold a text of a row.
    assert "\u0e14\u0e35" not in message
    known = reviews("good")
    encoded = encode(known, tokenizer(), max_length=8)
    assert not unknown_notices(encoded, tokenizer(), rows="training rows", model="tiny")


def test_pairs_are_encoded_together_with_their_types() -> None:
    names = ["input_ids", "token_type_ids", "attention_mask"]
    pair = Examples("toy", ["the soup"], ["good"])
    item = encode(pair, tokenizer(model_input_names=names), max_length=8)[0]
    assert item["input_ids"] == [2, 4, 5, 3, 7, 3]
    assert item["token_type_ids"] == [0, 0, 0, 0, 1, 1]


def test_rows_encoded_in_several_calls_keep_their_order() -> None:
    texts = ["good" if index % 3 else "the soup is" for index in range(2500)]
    lengths = encode(reviews(*texts), tokenizer(), max_length=8).lengths
    assert lengths == [3 if index % 3 else 5 for index in range(2500)]


def test_an_empty_text_keeps_its_special_tokens() -> None:
    assert encode(reviews(""), tokenizer(), max_length=8)[0]["input_ids"] == [2, 3]


def test_unencodable_or_unpaddable_rows_raise_an_error() -> None:
    with pytest.raises(SettingError, match="between 1 and 64, the longest input .*, got 65"):
        encode(reviews("good"), tokenizer(), max_length=65)
    with pytest.raises(DataError, match=r"Row 2 of set 'toy' has no tokens .*\(text ' '\)"):
        encode(reviews("good", " "), tokenizer(special=False), max_length=8)
    with pytest.raises(SettingError, match="tokenizer has no padding token"):
        Collator(tokenizer(pad_token=None))


@given(data=st.data(), first=st.integers(0, 9), pairs=st.booleans(), labeled=st.booleans())
def test_lazy_encoding_equals_encoding_at_once(
    data: st.DataObject, first: int, pairs: bool, labeled: bool
) -> None:
    texts = data.draw(
        st.lists(st.sampled_from(["", "good", "the soup is good", "x y"]), min_size=1)
    )
    rows = range(len(texts))
    examples = Examples(
        "toy",
        texts,
        texts[::-1] if pairs else None,
        labels=[row % 2 for row in rows] if labeled else None,
        kind="classification" if labeled else "unlabeled",
    )
    names = ["input_ids", "token_type_ids", "attention_mask"]
    words = tokenizer(**({"model_input_names": names} if pairs else {}))
    wanted = encode(examples, words, max_length=5)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encoding, "ENCODED_FIRST", first)
        patch.setattr("temper.data.stored.IN_MEMORY", 40)
        result = LazilyEncoded(examples, words, max_length=5)
    indices = data.draw(st.lists(st.sampled_from(rows)))
    assert [result[index] for index in indices] == [wanted[index] for index in indices]
    assert result.lengths.at(indices) == [wanted.lengths[index] for index in indices]
    assert list(result.lengths) == result.lengths[:] == wanted.lengths
    assert [list(result[index]) for index in rows] == [list(item) for item in wanted.items]
    assert [result[index] for index in rows] == wanted.items
    assert result.truncated == wanted.truncated


def test_a_text_without_tokens_is_an_error_before_its_row_is_needed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(encoding, "ENCODED_FIRST", 1)
    with pytest.raises(DataError, match=r"Row 3 of set 'toy' has no tokens"):
        LazilyEncoded(reviews("good", "the", " "), tokenizer(special=False), max_length=8)
    with pytest.raises(SettingError, match="between 1 and 64, the longest input .*, got 65"):
        LazilyEncoded(reviews("good"), tokenizer(), max_length=65)


class Counting:
    """A tokenizer that counts the rows that it is given."""

    def __init__(self) -> None:
        self.wrapped, self.rows = tokenizer(), 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.wrapped, name)

    def __call__(self, text: Any, *given: Any, **options: Any) -> Any:
        self.rows += len(text)
        return self.wrapped(text, *given, **options)


def test_a_first_batch_encodes_one_pool_and_an_epoch_each_row_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(encoding, "ENCODED_FIRST", 10)
    words, size = Counting(), 2
    rows = LazilyEncoded(reviews(*["the soup", "good"] * 1000), words, max_length=8)
    sampler = LengthBucketSampler(rows.lengths, batch_size=size, seed=0)
    before = words.rows
    assert before < 15
    next(iter(sampler))
    assert words.rows - before <= POOL * size
    for _ in range(2):
        assert len([rows[index] for index in sampler]) == 2000
    assert words.rows == 2000 + before - 10


BYTES_A_ROW = 100


def memory_until_first_batch(path: Path, rows: int) -> int:
    """Return the most bytes that are live from the file to the first batch of a training."""
    texts = [f"row {row} says something" for row in range(rows)]
    labels = [["no", "yes"][row % 2] for row in range(rows)]
    if path.suffix == ".csv":
        with path.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([("text", "label"), *zip(texts, labels, strict=True)])
    else:
        pq.write_table(pa.table({"text": texts, "label": labels}), path)
    del texts, labels
    tracemalloc.start()
    try:
        splits = load_splits(DataSettings(source=str(path), drop_overlap=True))
        encoded = LazilyEncoded(splits.train, tokenizer(), max_length=16)
        assert len(splits.train.hash) == 16
        next(iter(LengthBucketSampler(encoded.lengths, batch_size=8, seed=0)))
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_a_training_row_uses_few_bytes_before_the_first_batch(tmp_path: Path, form: str) -> None:
    few, many = 2_000, 6_000
    memory_until_first_batch(tmp_path / f"warm.{form}", 100)
    grown = memory_until_first_batch(tmp_path / f"many.{form}", many)
    grown -= memory_until_first_batch(tmp_path / f"few.{form}", few)
    # Its text takes 30 of them: so small a file stays in memory.
    assert grown / (many - few) < BYTES_A_ROW


@pytest.mark.parametrize(
    ("side", "ids", "mask"),
    [
        ("right", [[2, 4, 5, 3], [2, 7, 3, 0]], [[1, 1, 1, 1], [1, 1, 1, 0]]),
        ("left", [[2, 4, 5, 3], [0, 2, 7, 3]], [[1, 1, 1, 1], [0, 1, 1, 1]]),
    ],
)
def test_batches_are_padded_to_their_longest_row_on_the_tokenizers_side(
    side: str, ids: list[list[int]], mask: list[list[int]]
) -> None:
    words = tokenizer(padding_side=side)
    encoded = encode(reviews("the soup", "good", labels=[0, 1]), words, max_length=8)
    batch = Collator(words)([{**item, "row_index": row} for row, item in enumerate(encoded.items)])
    assert batch["input_ids"].tolist() == ids
    assert batch["attention_mask"].tolist() == mask
    assert batch["labels"].tolist() == [0, 1]
    assert batch["row_index"].tolist() == [0, 1]
    assert {tensor.dtype for tensor in batch.values()} == {torch.int64}


def test_types_are_padded_with_the_tokenizers_own() -> None:
    words = tokenizer(model_input_names=["input_ids", "token_type_ids"])
    words._pad_token_type_id = 3  # as XLNet's tokenizer sets it
    encoded = encode(reviews("the soup", "good"), words, max_length=8)
    assert Collator(words)(encoded.items)["token_type_ids"].tolist() == [[0] * 4, [0, 0, 0, 3]]


def test_targets_are_floats() -> None:
    encoded = encode(reviews("good", "soup", labels=[1.0, 2.5]), tokenizer(), max_length=8)
    batch = Collator(tokenizer())(encoded.items)
    assert batch["labels"].dtype == torch.float32
    assert batch["labels"].tolist() == [1.0, 2.5]


@given(
    texts=st.lists(st.lists(st.sampled_from(WORDS[4:]), max_size=9), min_size=1, max_size=6),
    side=st.sampled_from(["left", "right"]),
)
def test_padding_is_masked(texts: list[list[str]], side: str) -> None:
    words = tokenizer(padding_side=side)
    encoded = encode(reviews(*map(" ".join, texts)), words, max_length=7)
    batch = Collator(words)(encoded.items)
    assert batch["input_ids"].shape == (len(texts), max(encoded.lengths))
    for row, mask, item in zip(
        batch["input_ids"], batch["attention_mask"], encoded.items, strict=True
    ):
        assert row[mask.bool()].tolist() == item["input_ids"]
        assert (row[~mask.bool()] == 0).all()


LENGTHS = st.lists(st.integers(1, 100), max_size=200)


@given(
    lengths=LENGTHS,
    batch_size=st.integers(1, 20),
    seed=st.integers(0, 9),
    epoch=st.integers(0, 9),
)
def test_every_epoch_sees_each_row_once(
    lengths: list[int], batch_size: int, seed: int, epoch: int
) -> None:
    sampler = LengthBucketSampler(lengths, batch_size=batch_size, seed=seed)
    sampler.set_epoch(epoch)
    assert sorted(sampler) == list(range(len(lengths)))


@given(
    lengths=st.lists(st.integers(1, 9), max_size=400), size=st.integers(1, 4), drop=st.booleans()
)
def test_sorting_pools_lazily_equals_sorting_all_at_once(
    lengths: list[int], size: int, drop: bool
) -> None:
    draw = generator(derive_seed(5, "batches", 2))
    order = torch.randperm(len(lengths), generator=draw).tolist()
    full = len(order) - len(order) % size
    batches: list[list[int]] = []
    for start in range(0, full, POOL * size):
        pool = sorted(order[start : min(start + POOL * size, full)], key=lengths.__getitem__)
        batches += [pool[first : first + size] for first in range(0, len(pool), size)]
    shuffled = torch.randperm(len(batches), generator=draw).tolist()
    wanted = [row for index in shuffled for row in batches[index]]
    sampler = LengthBucketSampler(lengths, batch_size=size, seed=5, drop_last=drop)
    sampler.set_epoch(2)
    assert list(sampler) == wanted + ([] if drop else order[full:])


@given(lengths=LENGTHS, batch_size=st.integers(1, 20))
def test_evaluation_batches_contain_each_row_once_longest_first(
    lengths: list[int], batch_size: int
) -> None:
    batches = ordered_batches(lengths, batch_size=batch_size)
    flat = [index for batch in batches for index in batch]
    assert sorted(flat) == list(range(len(lengths)))
    assert [lengths[i] for i in flat] == sorted(lengths, reverse=True)
    assert all(len(batch) == batch_size for batch in batches[:-1])


def order(seed: int, epoch: int) -> list[int]:
    sampler = LengthBucketSampler([i % 7 for i in range(100)], batch_size=8, seed=seed)
    sampler.set_epoch(epoch)
    return list(sampler)


def test_the_order_is_a_function_of_seed_and_epoch_alone() -> None:
    assert order(1, 2) == order(1, 2)
    assert order(1, 2) != order(1, 3)
    assert order(1, 2) != order(2, 2)


def test_batches_are_shuffled_after_sorting() -> None:
    lengths = list(range(1, 101))
    firsts = [lengths[i] for i in list(LengthBucketSampler(lengths, batch_size=10, seed=0))[::10]]
    assert firsts != sorted(firsts)


def test_batches_contain_rows_of_similar_length() -> None:
    lengths = [37 * i % 100 for i in range(100)]
    batches = list(LengthBucketSampler(lengths, batch_size=10, seed=0))
    for start in range(0, 100, 10):
        batch = sorted(lengths[i] for i in batches[start : start + 10])
        assert batch == list(range(batch[0], batch[0] + 10))


def test_the_short_batch_is_last_and_has_different_rows_each_epoch() -> None:
    lengths = [1] * 12 + [50] * 11
    sampler = LengthBucketSampler(lengths, batch_size=10, seed=0)
    tails = set()
    for epoch in range(20):
        sampler.set_epoch(epoch)
        tails.add(frozenset(list(sampler)[20:]))
    assert len(tails) > 10
    assert {len(tail) for tail in tails} == {3}


@pytest.mark.parametrize("size", [0, -1])
@pytest.mark.parametrize(
    "call", [ordered_batches, lambda x, **k: LengthBucketSampler(x, seed=0, **k)]
)
def test_a_batch_of_no_rows_is_an_error(call, size: int) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(SettingError, match=f"`batch_size` must be >= 1, got {size}"):
        call([1, 2], batch_size=size)
