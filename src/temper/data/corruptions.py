"""Corrupt token ids: replace tokens by random ones, mask them, or drop them.

Each ordinary token of a row is hit with probability ``rate``, independently of the others, so the
expected fraction is the rate for any length. (A rounded count, ``round(rate n)``, would not change
any text of up to ten tokens at 5%.) A token is hit if its uniform draw is below the rate, and draws
are keyed by seed, row and kind. So a higher rate hits all tokens that a lower one hits, the
replacement is the same at every rate, and neither the row's position nor the other rows matter.

Special tokens ([CLS], [SEP], [MASK], padding ...) are not changed. [UNK] replaces a word of the
text, so it may be hit, but it is never a replacement.
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
    """Token ids, grouped by how a corruption may use them.

    Args:
        ordinary: Ids of replacements, distinct and ascending, [V].
        spared: Ids of special tokens, which are never changed.
        mask: Id of the mask token, None if there is none.
    """

    ordinary: IntegerArray = field(repr=False)
    spared: frozenset[int]
    mask: int | None = None

    @classmethod
    def of(cls, tokenizer: Any, *, size: int | None = None) -> Vocabulary:
        """Group the ids of a tokenizer; one without ``get_vocab`` has no ordinary ids.

        ``size`` is the number of embeddings of the model, if they are fewer than the tokenizer's
        ids. All special ids except that of [UNK] are spared; that too if another role has it, as in
        GPT-2.
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
        """Return why a corruption cannot be done, as the end of a sentence; empty if it can.

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
    """Corrupt the token ids of one row, unpadded; the row itself is not changed.

    Args:
        item: A row as `temper.data.encode.EncodedExamples` holds it.
        kind: ``random`` swaps a token for another ordinary one of the vocabulary, each as likely;
            ``mask`` puts the mask token in its place; ``drop`` takes it out with its segment id,
            but keeps one ordinary token. The vocabulary must allow it (`Vocabulary.lacks`).
        rate: Probability that an ordinary token is hit, in [0, 1].
        row: Hash of the row's text, the key of the draws.
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
    """Choose another ordinary token for each token, all with equal probability."""
    index = np.minimum(np.searchsorted(ordinary, old), len(ordinary) - 1)
    itself = ordinary[index] == old
    chosen = np.floor(chance * (len(ordinary) - itself)).astype(np.int64)
    # A token that is not a candidate itself ([UNK]) has one choice more.
    return np.asarray(ordinary[chosen + (itself & (chosen >= index))])


def _without(item: Mapping[str, Any], indices: set[int]) -> dict[str, Any]:
    """Remove tokens from every list that has one entry per token."""
    return {
        name: [value for index, value in enumerate(values) if index not in indices]
        if isinstance(values, list)
        else values
        for name, values in item.items()
    }
