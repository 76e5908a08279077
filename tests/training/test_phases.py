"""Two phases on several processes: each process gets its part of both, in separate batches."""

from __future__ import annotations

from typing import Any

import torch
from accelerate.data_loader import prepare_data_loader
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.data import DataLoader

from temper.data.batches import LengthBucketSampler
from temper.training.loading import NumberedRows, RowKeeper, join


def collate(items: list[int]) -> dict[str, Tensor]:
    return {"input_ids": torch.tensor(items), "labels": torch.tensor(items)}


def loader_of(rows: list[int], *, size: int, ranks: int, rank: int) -> tuple[Any, Any]:
    """Return what the Trainer makes of one dataset on one of several processes, and its order."""
    sampler = LengthBucketSampler([1 + row % 3 for row in rows], batch_size=size, seed=5)
    plain = DataLoader(
        NumberedRows(rows), batch_size=size, sampler=sampler, collate_fn=RowKeeper(collate)
    )
    return prepare_data_loader(plain, num_processes=ranks, process_index=rank), sampler


def joined(labeled: int, unlabeled: int, *, size: int, ranks: int, rank: int) -> Any:
    """Return the loader of both phases and their order."""
    # Values of the unlabeled rows are apart, to see which rows a batch holds.
    values = (range(labeled), range(1000, 1000 + unlabeled))
    return join([loader_of(list(v), size=size, ranks=ranks, rank=rank) for v in values])


@settings(max_examples=40)
@given(
    labeled=st.integers(1, 23),
    unlabeled=st.integers(1, 23),
    size=st.integers(1, 4),
    ranks=st.integers(1, 4),
    epoch=st.integers(0, 3),
)
def test_all_processes_have_unmixed_batches_of_the_same_phase(
    labeled: int, unlabeled: int, size: int, ranks: int, epoch: int
) -> None:
    shown = []
    for rank in range(ranks):
        loader, phases = joined(labeled, unlabeled, size=size, ranks=ranks, rank=rank)
        loader.set_epoch(epoch)
        batches = list(loader)
        assert len(batches) == len(loader) == len(phases)
        shown.append(batches)
    for together in zip(*shown, strict=True):
        # Gradients are exchanged at every batch, so all must be of one kind.
        assert len({"labels" in batch for batch in together}) == 1
    seen: dict[bool, set[int]] = {True: set(), False: set()}
    for batches in shown:
        kinds = ["labels" in batch for batch in batches]
        assert kinds == sorted(kinds, reverse=True)
        for batch, kind in zip(batches, kinds, strict=True):
            values = batch["input_ids"].tolist()
            assert all((value < 1000) is kind for value in values)
            offset = 0 if kind else 1000 - labeled
            assert batch["row_index"].tolist() == [value - offset for value in values]
            seen[kind].update(values)
    assert seen[True] == set(range(labeled))
    assert seen[False] == set(range(1000, 1000 + unlabeled))
