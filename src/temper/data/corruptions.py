"""Corrupt token ids: replace tokens by random ones, mask them, or drop them.

Each ordinary token of a row is corrupted with probability ``rate``, independently of the others. (A
rounded count, ``round(rate n)``, would change no text of up to ten tokens at 5%.) The draws depend
on seed, row and kind only. A token is corrupted if its uniform draw is below the rate, so a higher
rate corrupts the same tokens and more, with the same replacements.

Special tokens ([CLS], [SEP], [MASK], padding ...) are not changed. [UNK] may be corrupted, because
it replaces a word of the text, but it is never a replacement.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from temper.functional.resampling import FloatArray, IntegerArray
from temper.lazy import torch
from temper.seeding import derive_seed, generator

Corruption = Literal["random", "mask", "drop"]

_ROLES = ("bos", "eos", "cls", "sep", "pad", "mask")


@dataclass(frozen=True)
class Vocabulary:
    """The token ids of a tokenizer, as corruptions use them.

    Args:
        ordinary: Ids that may replace a token, distinct and ascending, [V].
        spared: Ids of special tokens, which are never changed.
        mask: Id of the mask token, None if there is none.
    """

    ordinary: IntegerArray = field(repr=False)
    spared: frozenset[int]
    mask: int | None = None

    @classmethod
    def of(cls, tokenizer: Any, *, size: int | None = None) -> Vocabulary:
        """Classify the ids of a tokenizer; without ``get_vocab`` none is ordinary.

        ``size`` is the number of the model's embeddings, if the tokenizer has more ids. The special
        ids are spared. So is [UNK] if its id is also that of another special token, as in GPT-2.
        """
        unknown = getattr(tokenizer, "unk_token_id", None)
        special = set(getattr(tokenizer, "all_special_ids", None) or ())
        added = getattr(tokenizer, "added_tokens_decoder", None) or {}
        special |= {number for number, token in added.items() if getattr(token, "special", False)}
        played = [getattr(tokenizer, f"{role}_token_id", None) for role in _ROLES]
        roles = {number for number in played if number is not None}
        listed = getattr(tokenizer, "get_vocab", None)
        known = set(listed().values()) if listed is not None else set()
        ordinary = {
            number
            for number in known - special - roles - {unknown}
            if size is None or number < size
        }
        return cls(
            ordinary=np.asarray(sorted(ordinary), dtype=np.int64),
            spared=frozenset(int(number) for number in (special - {unknown}) | roles),
            mask=getattr(tokenizer, "mask_token_id", None),
        )

    def lacks(self, kind: Corruption) -> str:
        """Return why a kind of corruption is impossible; empty if it is possible.

        Example:
            >>> Vocabulary(np.arange(4, 9), frozenset({0, 1})).lacks("mask")
            'the tokenizer has no mask token'
        """
        if kind == "mask" and self.mask is None:
            return "the tokenizer has no mask token"
        if kind == "random" and len(self.ordinary) < 2:
            return "the tokenizer lists fewer than two ordinary tokens"
        return ""


def corrupt(
    item: Mapping[str, Any],
    *,
    kind: Corruption,
    rate: float,
    row: str,
    vocabulary: Vocabulary,
    seed: int = 0,
) -> dict[str, Any]:
    """Return a corrupted copy of one encoded row, without padding.

    Args:
        item: A row of `temper.data.encode.EncodedExamples`.
        kind: ``random`` replaces a token by another ordinary one, all equally likely; ``mask``
            replaces it by the mask token; ``drop`` removes it and its segment id, but keeps at
            least one ordinary token. `Vocabulary.lacks` must be empty for it.
        rate: Probability that an ordinary token is corrupted, in [0, 1].
        row: Hash of the row's text, for the seed of the draws.
        vocabulary: The tokenizer's ids.
        seed: Seed of the draws.

    Example:
        >>> item = {"input_ids": [1, 5, 6, 7, 2], "attention_mask": [1, 1, 1, 1, 1]}
        >>> ids = Vocabulary(np.arange(4, 9), frozenset({0, 1, 2, 3}), mask=3)
        >>> corrupt(item, kind="mask", rate=1.0, row="a", vocabulary=ids)["input_ids"]
        [1, 3, 3, 3, 2]
    """
    tokens = item["input_ids"]
    free = [index for index, token in enumerate(tokens) if token not in vocabulary.spared]
    draws = generator(derive_seed(seed, "corruption", row, kind))
    levels = torch.rand(len(free), generator=draws, dtype=torch.float64).numpy()
    hit = np.flatnonzero(levels < rate)
    if kind == "drop":
        if 0 < len(levels) == len(hit):
            # One token is kept: the one that is hit last as the rate grows.
            hit = hit[hit != levels.argmax()]
        return _without(item, {free[index] for index in hit})
    changed = list(tokens)
    if kind == "mask":
        swapped = np.full(len(free), vocabulary.mask)
    else:
        chance = torch.rand(len(free), generator=draws, dtype=torch.float64).numpy()
        old = np.asarray([tokens[index] for index in free], dtype=np.int64)
        swapped = _others(old, chance, vocabulary.ordinary)
    for index in hit:
        changed[free[index]] = int(swapped[index])
    return {**item, "input_ids": changed}


def _others(old: IntegerArray, chance: FloatArray, ordinary: IntegerArray) -> IntegerArray:
    index = np.minimum(np.searchsorted(ordinary, old), len(ordinary) - 1)
    itself = ordinary[index] == old
    chosen = np.floor(chance * (len(ordinary) - itself)).astype(np.int64)
    # [UNK] is not a candidate itself, so it has one choice more.
    return np.asarray(ordinary[chosen + (itself & (chosen >= index))])


def _without(item: Mapping[str, Any], indices: set[int]) -> dict[str, Any]:
    """Remove the tokens at some positions from every list that has one entry per token."""
    return {
        name: [value for index, value in enumerate(values) if index not in indices]
        if isinstance(values, list)
        else values
        for name, values in item.items()
    }
