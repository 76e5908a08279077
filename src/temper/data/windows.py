"""Split texts that exceed the model's input length into overlapping windows.

The windows of a row follow each other in its ids; ``sizes`` has the number of tokens of each. The
model reads a batch [B, W, T] as B * W sequences. The logits of a text are the mean or maximum over
its windows (`temper.models.windows`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from temper.data.examples import LABELS_OF
from temper.data.token_spans import lacks_spans
from temper.errors import DataError, SettingError
from temper.heads import HEADS
from temper.types import Windows

NOT_IN_WINDOWS = {name: head.not_in_windows for name, head in HEADS.items() if head.not_in_windows}
"""Kinds of labels that do not support windows -> the reason."""


def check_windows(kind: str, *, setting: str) -> None:
    """Raise a `SettingError` for ``setting`` if a kind of labels does not support windows."""
    if (reason := NOT_IN_WINDOWS.get(kind)) is not None:
        raise SettingError(
            f"Windows (`{setting}`) are not supported if the labels are {LABELS_OF[kind]}: "
            f"{reason}. Leave it out, or raise --max-length."
        )


def check_stride(tokenizer: Any, windows: Windows, *, max_length: int, added: int) -> None:
    """Raise if a tokenizer cannot split texts, or if windows would have no new tokens."""
    if lacks_spans(tokenizer):
        raise DataError(
            f"The tokenizer ({type(tokenizer).__name__}) cannot split texts into windows. Use a "
            "model with a fast tokenizer, or leave the stride out."
        )
    if windows.stride >= max_length - added:
        raise SettingError(
            f"The stride must be below {max_length - added} (windows of {max_length} tokens, of "
            f"which {added} are special), got {windows.stride}. Set it to "
            f"{max_length // 4}, or raise --max-length."
        )


def windows_of_rows(
    texts: Sequence[str],
    pairs: Sequence[str] | None,
    tokenizer: Any,
    *,
    windows: Windows,
    max_length: int,
    added: int,
) -> tuple[list[dict[str, Any]], int]:
    """Encode long texts as windows of ``max_length`` tokens, of which ``added`` are special.

    In a pair the second text is split, and each window begins with the whole first text. If that
    leaves no room, the pair is cut instead.

    Returns:
        One mapping per row, with ``sizes``, and the number of rows that were cut.
    """
    fits = [True] * len(texts)
    if pairs is not None:
        first = tokenizer(list(texts), add_special_tokens=False, verbose=False)["input_ids"]
        fits = [max_length - added - len(ids) > windows.stride for ids in first]

    def encoded(rows: list[int], **options: Any) -> Any:
        seconds = None if pairs is None else [pairs[row] for row in rows]
        options |= {"max_length": max_length, "padding": False, "verbose": False}
        return tokenizer([texts[row] for row in rows], seconds, **options)

    parts: list[list[dict[str, list[int]]]] = [[] for _ in texts]
    if split := [row for row, fit in enumerate(fits) if fit]:
        result = encoded(
            split,
            truncation=True if pairs is None else "only_second",
            stride=windows.stride,
            return_overflowing_tokens=True,
        )
        for index, number in enumerate(result["overflow_to_sample_mapping"]):
            parts[split[number]].append(encoded_row(result, index))
    cut = sum(len(part) > windows.max_windows for part in parts)
    if whole := [row for row, fit in enumerate(fits) if not fit]:
        result = encoded(whole, truncation=True)
        for index, row in enumerate(whole):
            parts[row].append(encoded_row(result, index))
        cut += len(whole)
    return [joined(part[: windows.max_windows]) for part in parts], cut


def joined(parts: Sequence[Mapping[str, list[int]]]) -> dict[str, Any]:
    """Concatenate the windows of a row.

    Example:
        >>> joined([{"input_ids": [1, 2]}, {"input_ids": [1, 3, 2]}])
        {'input_ids': [1, 2, 1, 3, 2], 'sizes': [2, 3]}
    """
    item: dict[str, Any] = {
        name: list(chain.from_iterable(part[name] for part in parts)) for name in parts[0]
    }
    return {**item, "sizes": [len(part["input_ids"]) for part in parts]}


def encoded_row(encoded: Any, index: int) -> dict[str, Any]:
    """Return one row of a tokenizer's output, without padding."""
    ids = list(encoded["input_ids"][index])
    row = {"input_ids": ids, "attention_mask": [1] * len(ids)}
    if "token_type_ids" in encoded:
        row["token_type_ids"] = list(encoded["token_type_ids"][index])
    return row
