"""RobustTrainer accepts every kind of dataset, uses each row once an epoch, and names rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, IterableDataset

from temper import UEGR
from temper.errors import NonFiniteError, SettingError
from temper.training.trainer import RobustTrainer
from tests.training.tiny_training import (
    Averaged,
    Item,
    Rows,
    collate,
    farthest,
    make_trainer,
    tiny_model,
    unequal,
    weights,
)


class Watched(RobustTrainer):
    """Note the rows of every micro-batch, as the method gets them."""

    def training_step(self, model: nn.Module, inputs: dict[str, Any], *rest: Any) -> Tensor:
        kept = self.__dict__.setdefault("batches", [])
        kept.append((inputs["row_index"].tolist(), inputs["input_ids"].shape[1]))
        return super().training_step(model, inputs, *rest)


def watched(folder: Path, **changes: Any) -> Any:
    trainer = make_trainer(folder, **changes)
    trainer.__class__ = Watched
    return trainer


class Stream(IterableDataset[Item]):
    """The same rows without a length."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Iterator[Item]:
        rows = Rows(self.count)
        return iter([rows[index] for index in range(self.count)])


class Pairs(Dataset[Any]):
    """Rows as tuples, for a collator of the user's own."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> tuple[list[int], int]:
        item = Rows(12)[index]
        return item["input_ids"], item["labels"]


def collate_pairs(items: list[tuple[list[int], int]]) -> dict[str, Tensor]:
    return collate(
        [{"input_ids": ids, "attention_mask": [1] * len(ids), "labels": y} for ids, y in items]
    )


def as_table(count: int, **columns: Any) -> datasets.Dataset:
    rows = Rows(count)
    return datasets.Dataset.from_list([{**rows[index], **columns} for index in range(count)])


@pytest.mark.parametrize("strategy", ["random", "group_by_length", "sequential"])
@pytest.mark.parametrize("rows", [Rows(22), as_table(22)], ids=["map-style", "datasets"])
def test_every_epoch_sees_every_row_once(tmp_path: Path, strategy: str, rows: Any) -> None:
    trainer = watched(tmp_path, rows=rows, num_train_epochs=2, train_sampling_strategy=strategy)
    trainer.train()
    for epoch in (trainer.batches[:6], trainer.batches[6:]):
        assert Counter(row for batch, _ in epoch for row in batch) == dict.fromkeys(range(22), 1)


def test_rows_of_similar_length_share_a_batch_by_default(tmp_path: Path) -> None:
    lengths = [len(Rows(40)[index]["input_ids"]) for index in range(40)]

    def padding(**more: Any) -> int:
        trainer = watched(tmp_path, rows=40, more=more)
        trainer.train()
        return sum(
            width * len(batch) - sum(lengths[row] for row in batch)
            for batch, width in trainer.batches
        )

    bucketed = padding()
    # 40 rows are one pool: sorted, its ten batches of four hold at most one step of length each.
    assert bucketed <= 6 * 3
    assert padding(bucket_by_length=False) > 2 * bucketed


@pytest.mark.parametrize(
    ("changes", "more"), [({}, set()), ({"remove_unused_columns": False}, {"text"})]
)
def test_columns_that_the_model_does_not_accept_are_dropped_by_default(
    tmp_path: Path, changes: dict[str, Any], more: set[str]
) -> None:
    seen: set[str] = set()

    def spy(items: list[Item]) -> dict[str, Tensor]:
        seen.update(items[0])
        return collate(items)

    table = as_table(8, text="unused")
    make_trainer(tmp_path, rows=table, more={"data_collator": spy}, max_steps=1, **changes).train()
    assert seen == {"input_ids", "attention_mask", "labels"} | more


def test_items_may_be_tuples_if_the_collator_accepts_them(tmp_path: Path) -> None:
    trainer = watched(tmp_path, rows=Pairs(), more={"data_collator": collate_pairs})
    trainer.train()
    assert sorted(row for batch, _ in trainer.batches for row in batch) == list(range(12))
    plain = make_trainer(tmp_path, more={"bucket_by_length": False})
    plain.train()
    assert not unequal(weights(trainer.model), weights(plain.model))


@pytest.mark.parametrize("kind", ["torch", "datasets"])
def test_a_stream_of_rows_trains(tmp_path: Path, kind: str) -> None:
    stream: Any = Stream(12) if kind == "torch" else as_table(12).to_iterable_dataset()
    streamed = make_trainer(tmp_path, rows=stream, more={"method": "uegr"}, max_steps=3)
    streamed.train()
    assert streamed.state.global_step == 3
    rows = make_trainer(
        tmp_path,
        more={"method": "uegr", "bucket_by_length": False},
        train_sampling_strategy="sequential",
        max_steps=3,
    )
    rows.train()
    assert farthest(weights(streamed.model), weights(rows.model)) == 0.0


def test_a_stream_restarts_at_its_end(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, rows=Stream(8), max_steps=5)
    trainer.train()
    assert trainer.state.global_step == 5


def test_epoch_masks_need_a_dataset_with_a_length(tmp_path: Path) -> None:
    trainer = make_trainer(
        tmp_path, rows=Stream(8), more={"method": UEGR(mask={"refresh": "epoch"})}, max_steps=5
    )
    with pytest.raises(SettingError, match=r"train_dataset must have a length"):
        trainer.train()


def spoilt_model(*, value: float, row: int, rows: int) -> nn.Module:
    """Return a model that gives ``value`` for one row of ``Rows``."""
    first = Rows(rows)[row]["input_ids"]
    width = len(first)
    model = tiny_model()

    def spoil(module: nn.Module, given: Any, kwargs: Any, output: Any) -> Any:
        ids = kwargs["input_ids"]
        if ids.shape[1] < width:
            return output
        bad = (ids[:, :width] == torch.tensor(first)).all(1) & (
            kwargs["attention_mask"].sum(1) == width
        )
        output.logits = torch.where(bad.unsqueeze(1), value, output.logits)
        return output

    model.register_forward_hook(spoil, with_kwargs=True)
    return model


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("method", ["plain", "r_drop", "uegr"])
def test_a_loss_that_is_not_finite_stops_and_names_the_true_row(
    tmp_path: Path, method: str, value: float
) -> None:
    trainer = watched(
        tmp_path,
        model=spoilt_model(value=value, row=17, rows=24),
        rows=as_table(24),
        more={"method": method},
        gradient_accumulation_steps=2,
        save_strategy="steps",
        save_steps=1,
    )
    with pytest.raises(NonFiniteError, match=r"'task' .*not finite at step \d, rows \[17\]") as e:
        trainer.train()
    assert e.value.rows == [17]
    assert e.value.term == "task"
    assert e.value.step == trainer.state.global_step
    assert e.value.step >= 1, "the row came in the first step, so that no checkpoint was at stake"
    kept = tmp_path / f"checkpoint-{e.value.step}"
    assert kept.is_dir()
    fresh = make_trainer(tmp_path, rows=24)
    fresh._load_from_checkpoint(str(kept))
    assert not unequal(weights(fresh.model), weights(trainer.model))


def test_a_gradient_that_is_not_finite_stops_even_with_a_finite_loss(tmp_path: Path) -> None:
    model = tiny_model()

    def poison(module: nn.Module, given: Any, output: Any) -> Any:
        # The square root of 0 is 0 and has an infinite slope; times 0 that is NaN.
        output.logits = output.logits + 0 * (output.logits * 0).sum().sqrt()
        return output

    model.register_forward_hook(poison)
    trainer = make_trainer(tmp_path, model=model, save_strategy="steps", save_steps=1)
    before = weights(model)
    with pytest.raises(NonFiniteError, match="norm is nan at step 0"):
        trainer.train()
    assert not unequal(before, weights(model))
    assert list(tmp_path.iterdir()) == []


def test_a_plain_module_trains_and_resumes(tmp_path: Path) -> None:
    whole, resumed = (
        make_trainer(tmp_path, model=Averaged(), save_strategy="steps", save_steps=2, rows=16)
        for _ in range(2)
    )
    whole.train()
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert not unequal(weights(whole.model), weights(resumed.model))
