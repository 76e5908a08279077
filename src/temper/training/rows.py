"""What the Trainer adds to a user's rows: their numbers, and their lengths in tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils.data import Dataset

ROW = "row_index"


class NumberedRows(Dataset[Any]):
    """A map-style dataset whose items know their row."""

    def __init__(self, rows: Any) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, place: int) -> dict[str, Any]:
        return {**self.rows[place], ROW: place}


class RowKeeper:
    """A collator around the user's own that carries the row numbers past it."""

    def __init__(self, collator: Callable[[list[Any]], Mapping[str, Any]]) -> None:
        self.collator = collator

    def __call__(self, items: list[dict[str, Any]]) -> dict[str, Any]:
        """Collate the items without their numbers, and add the numbers."""
        rows = [item[ROW] for item in items]
        plain = [{name: value for name, value in item.items() if name != ROW} for item in items]
        return {**self.collator(plain), ROW: torch.tensor(rows)}


def token_counts(dataset: Any) -> list[int] | None:
    """Return the number of tokens of each row, or None where rows cannot be counted beforehand."""
    own = getattr(dataset, "lengths", None)
    if own is not None:
        return list(own)
    if dataset is None or not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        return None
    if not len(dataset) or "input_ids" not in dataset[0]:
        return None
    if hasattr(dataset, "column_names"):
        return [len(ids) for ids in dataset["input_ids"]]
    return [len(dataset[place]["input_ids"]) for place in range(len(dataset))]
