"""Gradient accumulation keeps the rows of an optimizer step and, except for rounding, its weights.

In double precision and without dropout, two ways to compute a gradient differ only by the order of
sums.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate.data_loader import prepare_data_loader
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.data import DataLoader

from temper import AT, UEGR, Plain, methods
from temper.data.batches import LengthBucketSampler, pack_steps
from temper.errors import SettingError
from temper.models.multi_task import share_encoder
from temper.training.loading import JoinedBatches, TaskRows
from temper.training.trainer import RobustTrainer
from tests.training.alternating import Alternating
from tests.training.tiny_training import (
    Rows,
    Unlabeled,
    farthest,
    make_trainer,
    quiet_model,
    weights,
)

# Ways to make steps of 16 rows.
SPLITS = [(16, 1), (8, 2), (4, 4), (3, 6)]
ROUNDING = 1e-12


class Watched(RobustTrainer):
    """Note the rows of every optimizer step."""

    def training_step(self, model: nn.Module, inputs: dict[str, Any], *rest: Any) -> Tensor:
        steps: dict[int, list[int]] = self.__dict__.setdefault("steps", {})
        if inputs:
            steps.setdefault(self.state.global_step, []).extend(inputs["row_index"].tolist())
        return super().training_step(model, inputs, *rest)


def trained(folder: Path, *, size: int, accumulation: int, **changes: Any) -> Any:
    changes.setdefault("model", quiet_model().double())
    trainer = make_trainer(
        folder,
        per_device_train_batch_size=size,
        gradient_accumulation_steps=accumulation,
        num_train_epochs=2,
        optim="sgd",
        **changes,
    )
    trainer.__class__ = Watched
    trainer.train()
    return trainer


def rows_of_steps(trainer: Any) -> list[list[int]]:
    return [sorted(rows) for rows in trainer.steps.values()]


@pytest.mark.parametrize(("size", "accumulation"), [(8, 2), (4, 4)])
@pytest.mark.parametrize(
    "method",
    [Plain(), AT(), UEGR(adaptive="uniform", mask=False, divergence_weight=1.0)],
    ids=lambda method: type(method).__name__,
)
def test_a_smaller_batch_trains_on_the_same_rows_to_the_same_weights(
    tmp_path: Path, method: Any, size: int, accumulation: int
) -> None:
    # 38 rows: two whole steps an epoch and one of 6 rows.
    changes: dict[str, Any] = {"rows": 38, "more": {"method": method}}
    whole = trained(tmp_path, size=16, accumulation=1, **changes)
    parts = trained(tmp_path, size=size, accumulation=accumulation, **changes)
    assert [len(rows) for rows in rows_of_steps(whole)] == [16, 16, 6] * 2
    assert rows_of_steps(parts) == rows_of_steps(whole)
    assert farthest(weights(quiet_model().double()), weights(whole.model)) > 1e-3
    assert farthest(weights(whole.model), weights(parts.model)) < ROUNDING


@pytest.mark.parametrize(("size", "accumulation"), [(8, 2), (4, 4)])
def test_no_step_mixes_labeled_and_unlabeled_rows_under_accumulation(
    tmp_path: Path, size: int, accumulation: int
) -> None:
    def run(size: int, accumulation: int) -> Any:
        more = {"method": Alternating(), "unlabeled_dataset": Unlabeled(21)}
        return trained(tmp_path, size=size, accumulation=accumulation, rows=22, more=more)

    whole, parts = run(16, 1), run(size, accumulation)
    assert rows_of_steps(parts) == rows_of_steps(whole)
    assert [max(rows) < 22 for rows in rows_of_steps(parts)] == [True, True, False, False] * 2
    assert farthest(weights(whole.model), weights(parts.model)) < ROUNDING


def test_no_step_mixes_tasks_under_accumulation(tmp_path: Path) -> None:
    tasks = {"two": ("no", "yes"), "again": ("no", "yes")}

    def run(size: int, accumulation: int) -> Any:
        return trained(
            tmp_path,
            size=size,
            accumulation=accumulation,
            model=share_encoder(quiet_model(), tasks).double(),
            rows=TaskRows({"two": Rows(38), "again": Rows(19)}),
        )

    whole, parts = run(16, 1), run(4, 4)
    assert whole.state.global_step == 2 * (3 + 2)
    assert rows_of_steps(parts) == rows_of_steps(whole)
    assert all(len({row < 38 for row in rows}) == 1 for rows in rows_of_steps(parts))
    assert farthest(weights(whole.model), weights(parts.model)) < ROUNDING


def test_a_pre_pass_over_padded_steps_sees_every_row(tmp_path: Path) -> None:
    tasks = {"two": ("no", "yes"), "again": ("no", "yes")}
    trainer = make_trainer(
        tmp_path,
        model=share_encoder(quiet_model(), tasks),
        rows=TaskRows({"two": Rows(9), "again": Rows(6)}),
        more={"method": methods.configure("child_tuning_d")},
        gradient_accumulation_steps=4,
    )
    trainer.train()
    assert trainer.state.global_step == 2


def test_dropping_the_last_step_drops_the_same_rows_under_accumulation(tmp_path: Path) -> None:
    result = [
        rows_of_steps(
            trained(tmp_path, size=size, accumulation=parts, rows=38, dataloader_drop_last=True)
        )
        for size, parts in SPLITS[:3]
    ]
    assert [len(rows) for rows in result[0]] == [16, 16] * 2
    assert result[1] == result[2] == result[0]


def test_dropping_the_only_step_raises_an_error(tmp_path: Path) -> None:
    with pytest.raises(
        SettingError, match="a step needs 16 rows but there are 10.*lower the batch size"
    ):
        trained(tmp_path, size=4, accumulation=4, rows=10, dataloader_drop_last=True)


@settings(max_examples=30)
@given(
    rows=st.integers(1, 60),
    size=st.integers(1, 3),
    accumulation=st.integers(1, 3),
    ranks=st.integers(1, 3),
    epoch=st.integers(0, 2),
)
def test_processes_share_the_rows_of_the_steps_that_one_process_takes(
    rows: int, size: int, accumulation: int, ranks: int, epoch: int
) -> None:
    lengths = [1 + row % 5 for row in range(rows)]
    step = size * accumulation * ranks

    def batches(size: int, ranks: int, rank: int) -> Iterator[list[int]]:
        sampler = LengthBucketSampler(lengths, batch_size=step, seed=5)
        sampler.set_epoch(epoch)
        plain = DataLoader(range(rows), batch_size=size, sampler=sampler, collate_fn=list)  # type: ignore[arg-type]
        yield from prepare_data_loader(plain, num_processes=ranks, process_index=rank)

    whole = list(batches(step, 1, 0))
    fractions = [list(batches(size, ranks, rank)) for rank in range(ranks)]
    for index, expected in enumerate(whole):
        mine = slice(index * accumulation, (index + 1) * accumulation)
        seen = [row for fraction in fractions for batch in fraction[mine] for row in batch]
        if len(expected) == step:
            assert sorted(seen) == sorted(expected)
        else:
            # Processes must have as many rows, so that some come twice in the short last step.
            assert set(seen) >= set(expected)


@given(count=st.integers(0, 20), size=st.integers(1, 6))
def test_every_step_has_equally_many_micro_batches_and_a_nonempty_last_one(
    count: int, size: int
) -> None:
    steps = pack_steps([[index] for index in range(count)], size=size)
    assert all(len(step) == size and step[-1] for step in steps)
    assert [row for step in steps for batch in step for row in batch] == list(range(count))


def test_the_length_of_an_order_is_its_number_of_batches() -> None:
    phases = JoinedBatches([[[0], [1], [2]], [[1], [0]]], sizes=[3, 2], accumulation=2)
    assert list(phases) == [[0], [1], [], [2], [4], [3]]
    assert len(phases) == 6
    with phases.first_alone():
        assert list(phases) == [[0], [1], [], [2]]
        assert len(phases) == 4
    mixed = JoinedBatches([[[0], [1], [2]], [[0]]], sizes=[3, 1], seed=0, accumulation=2)
    assert len(list(mixed)) == len(mixed) == 6
    assert torch.tensor([len(batch) for batch in mixed]).sum() == 4
