"""Unlabeled rows: batches after the labeled ones of an epoch, never mixed, and resumable."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from temper.errors import SettingError
from temper.methods import configure
from temper.training.trainer import RobustTrainer
from tests.training.alternating import Alternating
from tests.training.test_resume import StopAfter
from tests.training.test_trainer_data import Stream, as_table
from tests.training.tiny_training import (
    Item,
    Rows,
    Unlabeled,
    make_trainer,
    training_logs,
    unequal,
    weights,
)

# Of both kinds of rows: whether they have labels, and the numbers that they carry.
Seen = list[tuple[bool, list[int]]]


class Mislabeled(Unlabeled):
    """The same rows with labels that are wrong, and of no type that a loss would take."""

    def __getitem__(self, index: int) -> Item:
        return {**super().__getitem__(index), "labels": 1e9 + index}


class Watched(RobustTrainer):
    """Note the rows of every micro-batch, as the method gets them."""

    def training_step(self, model: nn.Module, inputs: dict[str, Any], *rest: Any) -> Tensor:
        kept: Seen = self.__dict__.setdefault("seen", [])
        # Empty micro-batches fill up the last step of the first phase.
        if inputs:
            kept.append(("labels" in inputs, inputs["row_index"].tolist()))
        return super().training_step(model, inputs, *rest)


def trainer_of(folder: Path | str, *, rows: Any = 10, unlabeled: Any = 7, **changes: Any) -> Any:
    """Return a watched trainer of the method that wants rows without labels.

    Args:
        folder: For checkpoints.
        rows: Labeled rows, or how many.
        unlabeled: The same without labels; None gives none.
        changes: As `make_trainer` takes them.
    """
    more = {
        "method": Alternating(),
        "unlabeled_dataset": Unlabeled(unlabeled) if isinstance(unlabeled, int) else unlabeled,
        **changes.pop("more", {}),
    }
    trainer = make_trainer(folder, rows=rows, more=more, **changes)
    trainer.__class__ = Watched
    return trainer


def batches_alone(folder: Path | str, rows: Any, **changes: Any) -> list[list[int]]:
    """Return the batches that plain training shows of one dataset; what decides the reference."""
    trainer = trainer_of(folder, rows=rows, unlabeled=None, **changes)
    trainer.method = configure("plain")
    trainer.train()
    return [batch for _, batch in trainer.seen]


@settings(max_examples=4)
@given(
    labeled=st.integers(1, 13),
    unlabeled=st.integers(1, 13),
    size=st.integers(1, 5),
    bucket=st.booleans(),
    strategy=st.sampled_from(["random", "sequential"]),
    drop_last=st.booleans(),
)
def test_an_epoch_has_the_labeled_batches_and_then_the_unlabeled_ones(
    labeled: int, unlabeled: int, size: int, bucket: bool, strategy: str, drop_last: bool
) -> None:
    drop_last = drop_last and min(labeled, unlabeled) >= size
    changes: dict[str, Any] = {
        "per_device_train_batch_size": size,
        "num_train_epochs": 2,
        "train_sampling_strategy": strategy,
        "dataloader_drop_last": drop_last,
    }
    more = {"bucket_by_length": bucket}
    with tempfile.TemporaryDirectory() as folder:
        trainer = trainer_of(folder, rows=labeled, unlabeled=unlabeled, more=more, **changes)
        trainer.train()
        # A collator that needs labels, so the others are shown under labels of some kind.
        first = batches_alone(folder, labeled, more=more, **changes)
        second = batches_alone(folder, Lent(unlabeled), more=more, **changes)
    one, two = len(first) // 2, len(second) // 2
    expected: Seen = []
    for epoch in range(2):
        expected += [(True, batch) for batch in first[epoch * one : (epoch + 1) * one]]
        expected += [
            (False, [labeled + row for row in batch])
            for batch in second[epoch * two : (epoch + 1) * two]
        ]
    assert trainer.seen == expected


class Lent(Unlabeled):
    """The unlabeled rows with labels that plain training takes."""

    def __getitem__(self, index: int) -> Item:
        return {**super().__getitem__(index), "labels": index % 2}


@pytest.mark.parametrize(("accumulation", "steps"), [(1, 3 + 2), (2, 2 + 1), (4, 2)])
def test_both_phases_count_as_steps_of_the_epochs_and_of_the_schedule(
    tmp_path: Path, accumulation: int, steps: int
) -> None:
    trainer = trainer_of(
        tmp_path,
        num_train_epochs=2,
        gradient_accumulation_steps=accumulation,
        lr_scheduler_type="linear",
    )
    trainer.train()
    assert trainer.state.global_step == trainer.state.max_steps == 2 * steps
    assert trainer.state.epoch == 2.0
    rates = [log["learning_rate"] for log in training_logs(trainer)]
    total = 2 * steps
    assert rates == pytest.approx([1e-2 * (total - step) / total for step in range(total)])


@settings(max_examples=4)
@given(stop=st.integers(1, 9), accumulation=st.sampled_from([1, 2, 3]), bucket=st.booleans())
def test_a_stop_within_or_between_phases_resumes_to_the_same_weights(
    stop: int, accumulation: int, bucket: bool
) -> None:
    # 10 and 7 rows in fours: three and two batches an epoch, and steps that are short.
    changes: dict[str, Any] = {
        "gradient_accumulation_steps": accumulation,
        "num_train_epochs": 2,
        "save_strategy": "steps",
        "save_steps": 100,
    }
    more = {"bucket_by_length": bucket}
    steps = 2 * (-(-3 // accumulation) + -(-2 // accumulation))
    stop = 1 + (stop - 1) % (steps - 1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        whole = trainer_of(folder / "whole", more=more, **changes)
        whole.train()
        stopper = {**more, "callbacks": [StopAfter(stop)]}
        begun = trainer_of(folder / "part", more=stopper, **changes)
        begun.train()
        ended = trainer_of(folder / "part", more=more, **changes)
        ended.train(resume_from_checkpoint=True)
    assert begun.seen + ended.seen == whole.seen
    assert not unequal(weights(whole.model), weights(ended.model))
    assert unequal(weights(whole.model), weights(begun.model))


def test_labels_of_unlabeled_rows_are_never_read(tmp_path: Path) -> None:
    bare = trainer_of(tmp_path)
    bare.train()
    labeled = trainer_of(tmp_path, unlabeled=Mislabeled(7))
    labeled.train()
    assert [flag for flag, _ in labeled.seen] == [True] * 3 + [False] * 2
    assert not unequal(weights(bare.model), weights(labeled.model))


def test_the_first_phase_equals_plain_training(tmp_path: Path) -> None:
    settings_: dict[str, Any] = {"lr_scheduler_type": "constant", "max_steps": 3}
    two_phases = trainer_of(tmp_path, **settings_)
    two_phases.train()
    plain = make_trainer(tmp_path, rows=10, **settings_)
    plain.train()
    assert not unequal(weights(two_phases.model), weights(plain.model))


@pytest.mark.parametrize("table", ["labeled", "unlabeled", "both"])
def test_tables_and_map_style_datasets_mix_and_their_other_columns_are_dropped(
    tmp_path: Path, table: str
) -> None:
    plain = trainer_of(tmp_path)
    plain.train()
    labeled = as_table(10, text="unused") if table != "unlabeled" else Rows(10)
    unlabeled: Any = Unlabeled(7)
    if table != "labeled":
        unlabeled = type(as_table(1)).from_list(
            [{**Unlabeled(7)[index], "text": "unused"} for index in range(7)]
        )
    mixed = trainer_of(tmp_path, rows=labeled, unlabeled=unlabeled)
    mixed.train()
    assert mixed.seen == plain.seen
    assert not unequal(weights(plain.model), weights(mixed.model))


def test_data_loader_workers_do_not_change_weights(tmp_path: Path) -> None:
    alone = trainer_of(tmp_path, num_train_epochs=2)
    helped = trainer_of(
        tmp_path,
        num_train_epochs=2,
        dataloader_num_workers=1,
        dataloader_persistent_workers=True,
    )
    alone.train()
    helped.train()
    assert not unequal(weights(alone.model), weights(helped.model))


def test_a_pre_pass_reads_only_labeled_rows_and_keeps_the_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Masked(Alternating):
        rules: ClassVar[list[Any]] = list(configure("child_tuning_d").update())

    method = Masked()
    trainer = trainer_of(tmp_path, more={"method": method})
    from temper.training.stepper import Stepper

    prepare, met = Stepper.prepare, []

    def noting(stepper: Stepper, batches: Any) -> None:
        def noted() -> Any:
            for inputs in batches:
                met.append(("labels" in inputs, inputs["row_index"].tolist()))
                yield inputs

        prepare(stepper, noted())

    monkeypatch.setattr(Stepper, "prepare", noting)
    trainer.train()
    assert all(labeled for labeled, _ in met)
    assert sorted(row for _, batch in met for row in batch) == list(range(10))
    usual = trainer_of(tmp_path)
    usual.train()
    assert trainer.seen == usual.seen


def test_a_method_without_its_unlabeled_rows_raises_an_error_before_any_step(
    tmp_path: Path,
) -> None:
    trainer = trainer_of(tmp_path, unlabeled=None)
    before = weights(trainer.model)
    with pytest.raises(
        SettingError, match=r"(?i)'alternating' also trains on unlabeled text.*data.unlabeled=PATH"
    ):
        trainer.train()
    assert not unequal(before, weights(trainer.model))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rows": Stream(8)}, r"train_dataset is a Stream.*dataset with a length"),
        ({"unlabeled": Stream(8)}, r"unlabeled_dataset is a Stream.*dataset with a length"),
        ({"unlabeled": []}, r"unlabeled_dataset has no rows"),
        ({"accelerator_config": {"dispatch_batches": True}}, r"dispatch_batches"),
    ],
    ids=["labeled-stream", "unlabeled-stream", "empty", "dispatched"],
)
def test_rows_that_cannot_make_two_phases_raise_an_error(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    trainer = trainer_of(tmp_path, max_steps=2, **changes)
    with pytest.raises(SettingError, match=message):
        trainer.train()
