"""What the Trainer adds to a user's rows: their numbers, and their lengths in tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils.data import Dataset, IterableDataset

ROW = "row_index"


class NumberedRows(Dataset[tuple[int, Any]]):
    """A map-style dataset whose items, whatever they are, come with their number.

    Args:
        rows: The user's dataset.
    """

    def __init__(self, rows: Any) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, place: int) -> tuple[int, Any]:
        return place, self.rows[place]


class RowKeeper:
    """A collator around the user's own that carries the row numbers past it.

    Args:
        collator: The user's; it gets the items as the user's dataset gives them.
    """

    def __init__(self, collator: Callable[[list[Any]], Mapping[str, Any]]) -> None:
        self.collator = collator

    def __call__(self, items: Sequence[tuple[int, Any]]) -> dict[str, Any]:
        """Collate the items without their numbers, and add the numbers."""
        numbers = torch.tensor([number for number, _ in items])
        return {**self.collator([item for _, item in items]), ROW: numbers}


def countable(dataset: Any) -> bool:
    """Tell whether a dataset has a length and rows by number; a stream has not."""
    # PyTorch gives every dataset an item access, streams among them.
    return (
        not isinstance(dataset, IterableDataset)
        and hasattr(dataset, "__len__")
        and hasattr(dataset, "__getitem__")
    )


def token_counts(dataset: Any, *, column: str = "") -> list[int] | None:
    """Return the number of tokens of each row, or None where rows do not tell it beforehand.

    Args:
        dataset: Of any kind; its ``lengths``, where it has them, spare a look at every row.
        column: Name of a column that holds them, where a table has it.

    Example:
        >>> token_counts([{"input_ids": [1, 2]}, {"input_ids": [1]}])
        [2, 1]
    """
    own = getattr(dataset, "lengths", None)
    if own is not None:
        return list(own)
    if not countable(dataset) or not len(dataset):
        return None
    if column and column in getattr(dataset, "column_names", ()):
        return list(dataset[column])
    if not isinstance(dataset[0], Mapping) or "input_ids" not in dataset[0]:
        return None
    if hasattr(dataset, "column_names"):
        return [len(ids) for ids in dataset["input_ids"]]
    return [len(dataset[place]["input_ids"]) for place in range(len(dataset))]
