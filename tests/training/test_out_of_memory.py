"""A step that memory is not enough for: done again in parts, or one error that says what to do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from temper import RobustTrainer
from temper.errors import MemoryLimitError
from temper.training.config import RunConfig
from temper.training.run import train
from temper.training.stepper import Stepper
from temper.types import Batch
from tests.cli.tiny_project import make_data, make_model, study_tree
from tests.training.tiny_training import make_trainer, unequal, weights

SMALL = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4}
LARGE = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}


class Memory:
    """Let every pass of more rows than some fail from a step on, once its gradient is added.

    Args:
        most: Rows of a pass that memory is enough for.
        begin: The first step.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, most: int, begin: int = 0) -> None:
        self.failed: list[int] = []
        whole = Stepper.accumulate

        def accumulate(stepper: Any, batch: Batch, step: Any, **given: Any) -> Tensor:
            loss = whole(stepper, batch, step, **given)
            if (
                given.get("stream", "train") == "train"
                and step.number >= begin
                and batch.size > most
            ):
                self.failed.append(step.number)
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
            return loss

        monkeypatch.setattr(Stepper, "accumulate", accumulate)


def halving(folder: Path, name: str, **settings: Any) -> RobustTrainer:
    trainer = make_trainer(
        folder, rows=11, num_train_epochs=2, more={"method": name, "on_oom": "halve"}, **settings
    )
    trainer.train()
    return trainer


# Several passes, several ascents, moved weights, mixed weights, cut spans.
@pytest.mark.parametrize("name", ["uegr", "freelb", "awp", "mixout", "hidden_cut"])
def test_halving_is_a_smaller_batch_with_more_accumulation(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = halving(tmp_path / "small", name, **SMALL)
    memory = Memory(monkeypatch, most=2)
    halved = halving(tmp_path / "halved", name, **LARGE)
    # It failed once; every later step knew.
    assert memory.failed == [0]
    assert halved.rows_at_once == 2
    assert unequal(weights(small.model), weights(halved.model)) == []


def test_rows_are_halved_until_they_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    single = halving(
        tmp_path / "1", "uegr", per_device_train_batch_size=1, gradient_accumulation_steps=8
    )
    memory = Memory(monkeypatch, most=1)
    halved = halving(tmp_path / "halved", "uegr", **LARGE)
    assert memory.failed == [0, 0]
    assert unequal(weights(single.model), weights(halved.model)) == []


def test_a_step_in_the_middle_is_done_again_and_logged_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = halving(tmp_path / "plain", "uegr", **LARGE, logging_steps=1)
    memory = Memory(monkeypatch, most=3, begin=2)
    halved = halving(tmp_path / "halved", "uegr", **LARGE, logging_steps=1)
    assert memory.failed == [2]
    before, after = (
        [log for log in t.state.log_history if "loss/clean" in log] for t in (plain, halved)
    )
    assert before[:2] == after[:2]
    for log in after:
        parts = sum(value for name, value in log.items() if name.startswith("loss/"))
        assert parts == pytest.approx(log["loss"], abs=1e-4)


def test_a_stopped_run_goes_on_with_what_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saving = {**LARGE, "save_strategy": "steps", "save_steps": 1}
    Memory(monkeypatch, most=2)
    whole = halving(tmp_path / "whole", "uegr", **saving)
    monkeypatch.undo()
    # Memory is enough again, and what was halved stays so.
    resumed = make_trainer(
        tmp_path / "whole",
        rows=11,
        num_train_epochs=2,
        more={"method": "uegr", "on_oom": "halve"},
        **saving,
    )
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-1"))
    assert resumed.rows_at_once == 2
    assert unequal(weights(whole.model), weights(resumed.model)) == []


def test_a_row_that_is_too_much_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Memory(monkeypatch, most=0)
    with pytest.raises(MemoryLimitError, match=r"1 rows? at once\. Cut texts shorter"):
        halving(tmp_path, "uegr", **LARGE)


def test_nothing_is_halved_unless_somebody_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Memory(monkeypatch, most=2)
    trainer = make_trainer(tmp_path, more={"method": "uegr"}, **LARGE)
    with pytest.raises(MemoryLimitError, match=r"4 rows at once\. Set train\.on_oom=halve"):
        trainer.train()


def test_what_is_no_lack_of_memory_is_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> Tensor:
        raise RuntimeError("a kernel failed")

    monkeypatch.setattr(Stepper, "accumulate", fail)
    with pytest.raises(RuntimeError, match="a kernel failed"):
        halving(tmp_path, "vanilla", **LARGE)


def test_a_run_that_ran_out_of_memory_goes_on_once_it_may_halve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, data = make_model(tmp_path / "model"), make_data(tmp_path / "data")
    tree = study_tree(model, data / "reviews", train={"max_steps": 3, "batch_size": 8})
    del tree["evaluate"]
    Memory(monkeypatch, most=4, begin=1)
    with pytest.raises(MemoryLimitError):
        train(RunConfig.of(tree), tmp_path / "run")
    tree["train"]["on_oom"] = "halve"
    train(RunConfig.of(tree), tmp_path / "run")
    record = json.loads((tmp_path / "run" / "run.json").read_text(encoding="utf-8"))
    assert (record["status"], record["rows_at_once"]) == ("finished", 4)


def test_parts_are_the_rows_without_padding() -> None:
    ids = torch.tensor([[5, 6, 0, 0], [7, 0, 0, 0], [8, 9, 10, 11]])
    batch = Batch({"input_ids": ids, "attention_mask": (ids > 0).long()}, labels=torch.arange(3))
    first, second = batch.parts(2)
    assert first.inputs["input_ids"].tolist() == [[5, 6], [7, 0]]
    assert second.inputs["input_ids"].tolist() == [[8, 9, 10, 11]]
    assert (first.labels.tolist(), second.labels.tolist()) == ([0, 1], [2])
    assert batch.parts(3) == [batch]
