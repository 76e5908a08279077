"""Collate encoded rows into padded batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

from temper.errors import SettingError
from temper.lazy import Tensor, torch
from temper.types import CONTEXT, TEACHER, UNLABELED


class Collator:
    """Pad rows to the longest row of the batch, on the tokenizer's padding side.

    Raises:
        SettingError: The tokenizer has no padding token.
    """

    def __init__(self, tokenizer: Any) -> None:
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
            # XLNet has a separate type for padding.
            "token_type_ids": int(getattr(tokenizer, "pad_token_type_id", 0) or 0),
        }

    def __call__(self, items: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        """Collate rows of `EncodedExamples` into a batch.

        Returns:
            Those of these keys that the rows have: ``input_ids``, ``attention_mask`` and
                ``token_type_ids`` [B, T] int64 ([B, N, T] for N choices or windows); ``labels`` [B]
                int64 for classes, float32 for targets, [B, L] float32 for several labels, or [B, T]
                int64 for tags of words (-100 for other tokens); ``row_index`` [B] int64;
                ``teacher_logits`` [B, C] float32; ``start_positions`` and ``end_positions`` [B]
                int64; ``context_mask`` [B, T].
        """
        sizes = [item["sizes"] for item in items if "sizes" in item]
        count = max(map(len, sizes), default=0)
        batch = {}
        for name, filler in self.fillers.items():
            if name in items[0]:
                rows = [item[name] for item in items]
                if sizes:
                    rows = [
                        part
                        for row, size in zip(rows, sizes, strict=True)
                        for part in _parts(row, size, count=count)
                    ]
                batch[name] = self._padded(rows, filler)
                if sizes:
                    batch[name] = batch[name].view(len(items), count, -1)
        if "starts" in items[0]:
            batch |= self._context(items, batch["input_ids"].shape[-1])
        if "labels" in items[0]:
            batch["labels"] = self._labels([item["labels"] for item in items])
        if "row_index" in items[0]:
            indices = [int(item["row_index"]) for item in items]
            batch["row_index"] = torch.tensor(indices, dtype=torch.int64)
        if TEACHER in items[0]:
            outputs = [item[TEACHER] for item in items]
            batch[TEACHER] = torch.tensor(outputs, dtype=torch.float32)
        return batch

    def _padded(self, rows: Sequence[Sequence[int]], filler: int) -> Tensor:
        return torch.nn.utils.rnn.pad_sequence(
            [torch.tensor(row, dtype=torch.int64) for row in rows],
            batch_first=True,
            padding_value=filler,
            padding_side=self.side,
        )

    def _context(self, items: Sequence[Mapping[str, Any]], tokens: int) -> dict[str, Tensor]:
        """Return the mask of tokens that an answer may have, and the positions of known answers."""
        marks = [[start >= 0 for start in item["starts"]] for item in items]
        result = {CONTEXT: self._padded(marks, 0).bool()}
        for name in ("start_positions", "end_positions"):
            if name in items[0]:
                before = [tokens - len(row) if self.side == "left" else 0 for row in marks]
                result[name] = torch.tensor(
                    [
                        item[name] if item[name] < 0 else item[name] + shift
                        for item, shift in zip(items, before, strict=True)
                    ]
                )
        return result

    def _labels(self, labels: list[Any]) -> Tensor:
        if isinstance(labels[0], list):
            return self._padded(labels, UNLABELED)
        # Targets of a regression, or a 0 or 1 for each of several labels.
        real = any(isinstance(label, float | tuple) for label in labels)
        return torch.tensor(labels, dtype=torch.float32 if real else torch.int64)


def _parts(row: Sequence[int], sizes: Sequence[int], *, count: int) -> list[Sequence[int]]:
    """Split the ids of a row into its choices or windows, and pad with empty ones to ``count``."""
    parts = [row[start:end] for start, end in pairwise(accumulate(sizes, initial=0))]
    return [*parts, *[()] * (count - len(parts))]
