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
