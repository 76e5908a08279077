"""A training step that runs out of memory: one error that says what to reduce."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from temper.errors import MemoryLimitError
from temper.training.stepper import Stepper
from temper.types import Batch
from tests.training.tiny_training import make_trainer


def limit_memory(monkeypatch: pytest.MonkeyPatch, *, most: int) -> None:
    """Let every pass of more rows than some fail, once its gradient is added."""
    whole = Stepper.run_passes

    def run_passes(stepper: Any, batch: Batch, step: Any, **given: Any) -> Tensor:
        loss = whole(stepper, batch, step, **given)
        if batch.size > most:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return loss

    monkeypatch.setattr(Stepper, "run_passes", run_passes)


def test_out_of_memory_raises_an_error_that_names_what_to_reduce(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit_memory(monkeypatch, most=2)
    trainer = make_trainer(tmp_path, more={"method": "uegr"}, per_device_train_batch_size=4)
    with pytest.raises(MemoryLimitError, match="4 rows.* train.batch_size .*data.max_length"):
        trainer.train()


def test_the_error_for_a_single_row_does_not_suggest_a_smaller_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit_memory(monkeypatch, most=0)
    trainer = make_trainer(tmp_path, more={"method": "uegr"}, per_device_train_batch_size=1)
    with pytest.raises(MemoryLimitError, match="1 row.* data.max_length") as raised:
        trainer.train()
    assert "batch_size" not in str(raised.value)


def test_other_errors_than_out_of_memory_pass_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> Tensor:
        raise RuntimeError("a kernel failed")

    monkeypatch.setattr(Stepper, "run_passes", fail)
    with pytest.raises(RuntimeError, match="a kernel failed"):
        make_trainer(tmp_path).train()
