"""Turn texts into token ids once, say where tokens stand, and pad rows of ids into batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset

from temper.data.examples import Examples
from temper.errors import DataError, SettingError
from temper.types import TEACHER

# Rows a tokenizer gets in one call: bounds memory, loses no speed.
_CHUNK = 1000


class Tokenizer(Protocol):
    """What is needed of a tokenizer; every Transformers tokenizer fits."""

    pad_token_id: Any
    padding_side: str
    model_max_length: int

    def __call__(self, text: Any, text_pair: Any = None, **options: Any) -> Any:
        """Encode texts to a mapping with ``input_ids`` and the like."""
        ...


class EncodedExamples(Dataset[dict[str, Any]]):
    """Token ids of a set, one mapping a row, unpadded.

    Args:
        items: One mapping a row: ``input_ids``, ``attention_mask`` and, where there are any,
            ``token_type_ids``, ``labels`` and ``row_index``.
        truncated: Share of the rows that were cut, in [0, 1].
    """

    def __init__(self, items: list[dict[str, Any]], *, truncated: float = 0.0) -> None:
        self.items = items
        self.truncated = truncated
        self.lengths = [len(item["input_ids"]) for item in items]

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.items)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Return one row's mapping."""
        return self.items[index]


def encode(examples: Examples, tokenizer: Tokenizer, *, max_length: int) -> EncodedExamples:
    """Encode a set, cutting rows that are too long.

    Args:
        examples: The set; an unlabelled one gives items without ``labels``.
        tokenizer: A Transformers tokenizer, or anything called like one.
        max_length: Most tokens of a row, special tokens included, >= 1.

    Returns:
        The encoded rows in the set's order, with the share that was cut.

    Raises:
        SettingError: If ``max_length`` is more than the tokenizer's model takes.
        DataError: If a text gives no token at all.
    """
    limit = tokenizer.model_max_length
    if not 1 <= max_length <= limit:
        raise SettingError(
            f"`max_length` must be between 1 and {limit}, the longest input of this model, got "
            f"{max_length}. Use --max-length {limit} or less."
        )
    items: list[dict[str, Any]] = []
    cut = 0
    for start in range(0, len(examples), _CHUNK):
        rows = range(start, min(start + _CHUNK, len(examples)))
        encoded, cut_here = _encode_rows(examples, rows, tokenizer=tokenizer, max_length=max_length)
        items += encoded
        cut += cut_here
    for index, item in enumerate(items):
        if not item["input_ids"]:
            raise DataError(
                f"Row {index + 1} of set {examples.name!r} gives no token with this tokenizer "
                f"(text {examples.text[index]!r:.40}). Remove it."
            )
        if examples.labels is not None:
            item["labels"] = examples.labels[index]
    return EncodedExamples(items, truncated=cut / len(items) if items else 0.0)


def _encode_rows(
    examples: Examples, rows: range, *, tokenizer: Tokenizer, max_length: int
) -> tuple[list[dict[str, Any]], int]:
    """Encode some rows, and count those that had to be cut."""
    whole = _call(tokenizer, examples, list(rows), truncation=False)
    long = [place for place, item in enumerate(whole) if len(item["input_ids"]) > max_length]
    if long:
        again = [rows[place] for place in long]
        short = _call(tokenizer, examples, again, truncation=True, max_length=max_length)
        for place, item in zip(long, short, strict=True):
            whole[place] = item
    return whole, len(long)


def _call(
    tokenizer: Tokenizer, examples: Examples, rows: list[int], **options: Any
) -> list[dict[str, Any]]:
    texts = [examples.text[row] for row in rows]
    pairs = None if examples.text_pair is None else [examples.text_pair[row] for row in rows]
    # verbose would warn of rows above the model's length before they are cut.
    encoded = tokenizer(texts, pairs, padding=False, verbose=False, **options)
    items: list[dict[str, Any]] = []
    for place, ids in enumerate(encoded["input_ids"]):
        item = {"input_ids": list(ids), "attention_mask": [1] * len(ids)}
        if "token_type_ids" in encoded:
            item["token_type_ids"] = list(encoded["token_type_ids"][place])
        items.append(item)
    return items


class Collator:
    """Pad rows to the longest of their batch, on the side that the tokenizer pads.

    Args:
        tokenizer: The tokenizer that encoded the rows.

    Raises:
        SettingError: If the tokenizer has no padding token.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        if tokenizer.pad_token_id is None:
            raise SettingError(
                "The tokenizer has no padding token, so rows of different lengths cannot share a "
                "batch. Set one, for example tokenizer.pad_token = tokenizer.eos_token, and the "
                "same id as model.config.pad_token_id."
            )
        self.side = tokenizer.padding_side
        self.fillers = {
            "input_ids": int(tokenizer.pad_token_id),
            "attention_mask": 0,
            # XLNet gives pads a type of their own.
            "token_type_ids": int(getattr(tokenizer, "pad_token_type_id", 0) or 0),
        }

    def __call__(self, items: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        """Collate rows.

        Args:
            items: Rows as `EncodedExamples` gives them, at least one.

        Returns:
            ``input_ids``, ``attention_mask`` and ``token_type_ids`` [B, T] int64, ``labels`` [B]
            int64 for classes or float32 for targets, ``row_index`` [B] int64, ``teacher_logits``
            [B, C] float32; each where the rows have it.
        """
        batch = {
            name: pad_sequence(
                [torch.tensor(item[name], dtype=torch.int64) for item in items],
                batch_first=True,
                padding_value=filler,
                padding_side=self.side,
            )
            for name, filler in self.fillers.items()
            if name in items[0]
        }
        if "labels" in items[0]:
            labels = [item["labels"] for item in items]
            real = any(isinstance(label, float) for label in labels)
            batch["labels"] = torch.tensor(labels, dtype=torch.float32 if real else torch.int64)
        if "row_index" in items[0]:
            indices = [int(item["row_index"]) for item in items]
            batch["row_index"] = torch.tensor(indices, dtype=torch.int64)
        if TEACHER in items[0]:
            answers = [item[TEACHER] for item in items]
            batch[TEACHER] = torch.tensor(answers, dtype=torch.float32)
        return batch


class Span(NamedTuple):
    """The characters that a token stands for, without spaces around them.

    Args:
        side: 0 in the text, 1 in the second text of a pair task.
        start: Of its first character.
        end: Behind its last one.
    """

    side: int
    start: int
    end: int


def lacks_spans(tokenizer: Any) -> str:
    """Say why a tokenizer cannot tell where tokens stand; empty where it can.

    Args:
        tokenizer: A Transformers tokenizer.

    Example:
        >>> lacks_spans(object())
        'its tokenizer (object) does not say where a token stands in the text'
    """
    if getattr(tokenizer, "is_fast", False):
        return ""
    return (
        f"its tokenizer ({type(tokenizer).__name__}) does not say where a token stands in the text"
    )


def token_spans(examples: Examples, tokenizer: Any, *, max_length: int) -> list[list[Span | None]]:
    """Locate the tokens of each row, as `temper.data.encode.encode` cuts and orders them.

    Args:
        examples: The rows.
        tokenizer: A fast Transformers tokenizer.
        max_length: Most tokens of a row, special tokens included.

    Returns:
        For each row one entry a token, None for those that the tokenizer adds.

    Raises:
        DataError: The tokenizer does not know.
    """
    if reason := lacks_spans(tokenizer):
        raise DataError(f"Words cannot be matched to tokens: {reason}. Use a fast tokenizer.")
    if not len(examples):
        return []
    encoded = tokenizer(
        examples.text,
        examples.text_pair,
        truncation=True,
        max_length=max_length,
        padding=False,
        return_offsets_mapping=True,
        verbose=False,
    )
    found = []
    for row, offsets in enumerate(encoded["offset_mapping"]):
        texts = [examples.text[row]]
        if examples.text_pair is not None:
            texts.append(examples.text_pair[row])
        found.append(
            [
                None if side is None else _trimmed(texts[side], side, *offset)
                for side, offset in zip(encoded.sequence_ids(row), offsets, strict=True)
            ]
        )
    return found


def _trimmed(text: str, side: int, start: int, end: int) -> Span:
    """Leave out the space that some vocabularies count to the word behind it."""
    piece = text[start:end]
    left = len(piece) - len(piece.lstrip())
    return Span(side, start + left, max(start + left, start + len(piece.rstrip())))
