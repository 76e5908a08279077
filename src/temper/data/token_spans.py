"""Find the positions of tokens in a text."""

from __future__ import annotations

from typing import Any, NamedTuple

from temper.data.examples import Examples
from temper.errors import DataError


class Span(NamedTuple):
    """The characters of a token, without surrounding spaces.

    ``side`` is 0 for the first text of a pair, or a single one, and 1 for the second. ``end`` is
    exclusive.
    """

    side: int
    start: int
    end: int


def lacks_spans(tokenizer: Any) -> str:
    """Return why a tokenizer cannot locate its tokens in a text; empty if it can.

    Example:
        >>> lacks_spans(object())
        'its tokenizer (object) does not return the positions of tokens'
    """
    if getattr(tokenizer, "is_fast", False):
        return ""
    return f"its tokenizer ({type(tokenizer).__name__}) does not return the positions of tokens"


def check_spans(tokenizer: Any) -> None:
    """Raise a `DataError` if a tokenizer cannot locate its tokens in a text."""
    if reason := lacks_spans(tokenizer):
        raise DataError(f"Words cannot be matched to tokens: {reason}. Use a fast tokenizer.")


def token_spans(examples: Examples, tokenizer: Any, *, max_length: int) -> list[list[Span | None]]:
    """Return each row's token positions, in the order of `encode`; None for special tokens."""
    check_spans(tokenizer)
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
    result = []
    for row, offsets in enumerate(encoded["offset_mapping"]):
        texts = [examples.text[row]]
        if examples.text_pair is not None:
            texts.append(examples.text_pair[row])
        result.append(
            [
                None if side is None else trimmed(texts[side], side, *offset)
                for side, offset in zip(encoded.sequence_ids(row), offsets, strict=True)
            ]
        )
    return result


def trimmed(text: str, side: int, start: int, end: int) -> Span:
    """Return a span without the space that some tokenizers put before a word."""
    piece = text[start:end]
    left = len(piece) - len(piece.lstrip())
    return Span(side, start + left, max(start + left, start + len(piece.rstrip())))
