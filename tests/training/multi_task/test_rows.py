"""Epochs of several tasks: how often, in which order and on which process rows are read."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from accelerate.data_loader import prepare_data_loader
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.data import DataLoader

from temper.data.batches import LengthBucketSampler
from temper.errors import SettingError
from temper.training.loading import JoinedBatches, NumberedRows, RowKeeper, TaskRows, join

Sizes = st.lists(st.integers(1, 17), min_size=1, max_size=4)


def collate(items: list[int]) -> dict[str, Tensor]:
    return {"input_ids": torch.tensor(items)}


def mixed(sizes: list[int], *, size: int, rank: int = 0, ranks: int = 1) -> Any:
    """Return the loader of tasks on one process; row r of task t is the number 1000 t + r."""
    parts = {f"task{task}": list(range(1000 * task, 1000 * task + n)) for task, n in
             enumerate(sizes)}  # fmt: skip
    loaders = []
    for part in parts.values():
        sampler = LengthBucketSampler([1 + row % 3 for row in part], batch_size=size, seed=5)
        plain = DataLoader(
            NumberedRows(part), batch_size=size, sampler=sampler, collate_fn=RowKeeper(collate)
        )
        prepared = prepare_data_loader(plain, num_processes=ranks, process_index=rank)
        loaders.append((prepared, sampler))
    return join(loaders, seed=7)


@settings(max_examples=40)
@given(sizes=Sizes, size=st.integers(1, 4), epoch=st.integers(0, 3))
def test_an_epoch_has_every_row_of_every_task_once_in_batches_of_one_task(
    sizes: list[int], size: int, epoch: int
) -> None:
    loader, order = mixed(sizes, size=size)
    order.set_epoch(epoch)
    batches = list(loader)
    assert len(batches) == len(loader) == len(order) == sum(-(-n // size) for n in sizes)
    seen = []
    ends = TaskRows({str(task): range(n) for task, n in enumerate(sizes)}).cumulative_sizes
    for batch in batches:
        values, (task, *others) = batch["input_ids"].tolist(), batch["task"].tolist()
        assert set(others) <= {task}
        assert len(batch["task"]) == len(values)
        assert {value // 1000 for value in values} == {task}
        first = ends[task] - sizes[task]
        assert batch["row_index"].tolist() == [first + value % 1000 for value in values]
        seen += values
    assert Counter(seen) == Counter(
        1000 * task + row for task, n in enumerate(sizes) for row in range(n)
    )


@settings(max_examples=40)
@given(sizes=Sizes, size=st.integers(1, 3), ranks=st.integers(2, 3))
def test_all_processes_have_the_same_task_at_the_same_time_and_share_its_rows(
    sizes: list[int], size: int, ranks: int
) -> None:
    shown = []
    for rank in range(ranks):
        loader, order = mixed(sizes, size=size, rank=rank, ranks=ranks)
        order.set_epoch(1)
        shown.append(list(loader))
    for together in zip(*shown, strict=True):
        assert len({int(batch["task"][0]) for batch in together}) == 1
    seen = {
        value for fraction in shown for batch in fraction for value in batch["input_ids"].tolist()
    }
    assert len(seen) == sum(sizes)


def test_the_order_depends_on_seed_and_epoch_and_mixes_the_tasks() -> None:
    def order(seed: int, epoch: int) -> list[list[int]]:
        batches = JoinedBatches(
            [[[0], [1], [2], [3], [4]], [[0], [1], [2]]], sizes=[5, 3], seed=seed
        )
        batches.set_epoch(epoch)
        return list(batches)

    assert order(1, 2) == order(1, 2)
    assert order(1, 2) != order(1, 3)
    assert order(1, 2) != order(2, 2)
    assert [batch[0] < 5 for batch in order(1, 2)] != [True] * 5 + [False] * 3


def test_rows_of_tasks_are_numbered_consecutively_and_receive_epochs() -> None:
    class Heard(list[str]):
        epoch = 0

        def set_epoch(self, epoch: int) -> None:
            self.epoch = epoch

    second = Heard(["c"])
    rows = TaskRows({"rte": ["a", "b"], "cola": second})
    assert [rows[index] for index in range(3)] == ["a", "b", "c"]
    rows.set_epoch(4)
    assert second.epoch == 4
    with pytest.raises(IndexError, match="out of range"):
        rows[3]


@pytest.mark.parametrize(
    ("parts", "said"),
    [({}, "there is no task"), ({"rte": [1], "cola": []}, "'cola' has none")],
)
def test_tasks_that_cannot_be_mixed_raise_an_error(parts: Any, said: str) -> None:
    with pytest.raises(SettingError, match=said):
        TaskRows(parts)
