"""Windows of long texts: their tokens, what is cut, and how rows become batches."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from temper.data.collator import Collator
from temper.data.encode import LazilyEncoded, cut_notice, encode
from temper.data.examples import Examples
from temper.data.settings import DataSettings
from temper.data.windows import NOT_IN_WINDOWS, check_windows
from temper.errors import DataError, SettingError
from temper.testing.tiny import WORDS, tiny_tokenizer
from temper.types import Windows

CLS, SEP = 2, 3


def text(words: int, *, first: int = 0) -> str:
    return " ".join(WORDS[first : first + words])


def ids(words: range) -> list[int]:
    """Return the ids of words, which follow five special tokens."""
    return [word + 5 for word in words]


def windows_of(item: dict[str, Any]) -> list[list[int]]:
    result, start = [], 0
    for size in item["sizes"]:
        result.append(item["input_ids"][start : start + size])
        start += size
    assert start == len(item["input_ids"]) == len(item["attention_mask"])
    return result


def encoded(*texts: str, pairs: list[str] | None = None, **settings: Any) -> Any:
    windows = Windows(settings.pop("stride", 2), max_windows=settings.pop("max_windows", 8))
    examples = Examples("long", list(texts), pairs)
    return encode(examples, tiny_tokenizer(), max_length=8, windows=windows, **settings)


def test_windows_share_the_stride_and_read_every_token() -> None:
    rows = encoded(text(4), text(6), text(7), text(16))
    assert windows_of(rows[0]) == [[CLS, *ids(range(4)), SEP]]
    assert windows_of(rows[1]) == [[CLS, *ids(range(6)), SEP]]
    assert windows_of(rows[2]) == [[CLS, *ids(range(6)), SEP], [CLS, *ids(range(4, 7)), SEP]]
    starts = (range(6), range(4, 10), range(8, 14), range(12, 16))
    assert windows_of(rows[3]) == [[CLS, *ids(each), SEP] for each in starts]
    assert rows.truncated == 0
    assert windows_of(encoded(text(7), stride=0)[0])[1] == [CLS, *ids(range(6, 7)), SEP]


def test_text_after_the_last_window_is_truncated_and_counted() -> None:
    rows = encoded(text(4), text(16), max_windows=2)
    assert windows_of(rows[1]) == [[CLS, *ids(each), SEP] for each in (range(6), range(4, 10))]
    assert rows.truncated == 0.5


def test_of_a_pair_the_second_text_is_split_and_the_first_is_in_each_window() -> None:
    rows = encoded(text(2), text(4), pairs=[text(5, first=10), text(5, first=10)], stride=1)
    first = [CLS, *ids(range(2)), SEP]
    second = (range(10, 13), range(12, 15))
    assert windows_of(rows[0]) == [[*first, *ids(each), SEP] for each in second]
    # Behind four words there is room for one token, which the stride needs: the pair is cut.
    assert len(rows[1]["sizes"]) == 1
    assert rows.truncated == 0.5


def test_lazily_encoded_windows_equal_windows_encoded_at_once() -> None:
    examples = Examples(
        "long", [text(20), text(3), text(9)], labels=[0, 1, 0], kind="classification"
    )
    settings: dict[str, Any] = {"max_length": 8, "windows": Windows(2)}
    rows = encode(examples, tiny_tokenizer(), **settings)
    lazy = LazilyEncoded(examples, tiny_tokenizer(), **settings)
    assert [lazy[index] for index in range(3)] == [rows[index] for index in range(3)]
    assert lazy.truncated == rows.truncated


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_batch_is_padded_by_windows_and_tokens(side: str) -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.padding_side = side
    rows = encoded(text(9), text(2))
    batch = Collator(tokenizer)([rows[0], rows[1]])
    assert batch["input_ids"].shape == batch["attention_mask"].shape == (2, 2, 8)
    assert batch["attention_mask"].sum(-1).tolist() == [[8, 7], [4, 0]]
    for index, row in enumerate(rows.items):
        mask = batch["attention_mask"][index].bool()
        assert batch["input_ids"][index][mask].tolist() == row["input_ids"]
    assert torch.equal(batch["input_ids"][1, 1], torch.zeros(8, dtype=torch.long))


def test_a_stride_without_room_and_a_slow_tokenizer_raise_an_error() -> None:
    with pytest.raises(SettingError, match="below 6 .* got 6"):
        encoded(text(9), stride=6)
    tokenizer = tiny_tokenizer()
    examples = Examples("long", [text(9)])

    class Slow:
        model_max_length, is_fast = 64, False

        def num_special_tokens_to_add(self, pair: bool = False) -> int:
            return tokenizer.num_special_tokens_to_add(pair)

    with pytest.raises(DataError, match="fast tokenizer"):
        encode(examples, Slow(), max_length=8, windows=Windows(2))


@pytest.mark.parametrize("kind", NOT_IN_WINDOWS)
def test_windows_raise_an_error_for_labels_of_parts_of_a_text(kind: Any) -> None:
    with pytest.raises(SettingError, match=NOT_IN_WINDOWS[kind]):
        check_windows(kind, setting="data.stride")


def test_settings_of_windows_need_a_stride_below_the_length() -> None:
    assert DataSettings(source="x").windows is None
    result = DataSettings(source="x", max_length=64, stride=16, pool="max", max_windows=3).windows
    assert result == Windows(16, "max", 3)
    for wrong in ({"stride": 64}, {"pool": "max"}, {"max_windows": 3}, {"stride": -1}):
        with pytest.raises(ValueError, match="stride"):
            DataSettings(source="x", max_length=64, **wrong)


def test_a_notice_of_truncated_rows_names_the_setting_for_windows() -> None:
    def said(fraction: float, **settings: Any) -> str:
        return cut_notice(fraction, rows="texts", max_length=64, longest=64, **settings)

    assert "--stride 16" in said(0.5, stride="--stride ")
    assert "stride" not in said(0.01, stride="--stride ")
    assert "stride" not in said(0.5)
    assert "`max_windows`" in said(0.5, windows=Windows(16), stride="--stride ")
