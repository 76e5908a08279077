"""Settings in the words of Transformers: what a machine can train in, it is asked to."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import TrainingArguments

from temper.errors import SettingError
from temper.training.arguments import arguments_of
from temper.training.settings import TrainSettings


@pytest.fixture
def only_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """See neither a GPU nor an Apple one."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)


@pytest.mark.usefixtures("only_a_cpu")
@pytest.mark.parametrize("device", ["auto", "cpu"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_cpu_trains_in_both_of_its_precisions(
    tmp_path: Path, device: str, precision: str
) -> None:
    settings = TrainSettings.model_validate({"device": device, "precision": precision})
    made = TrainingArguments(**arguments_of(settings, tmp_path, seed=0))
    assert made.device.type == "cpu"
    assert made.bf16 == (precision == "bf16")


@pytest.mark.usefixtures("only_a_cpu")
def test_a_cpu_that_is_asked_for_fp16_says_so_before_any_work(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="'bf16' or 'fp32'"):
        arguments_of(TrainSettings(precision="fp16"), tmp_path, seed=0)


def test_a_gpu_is_left_to_be_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert not arguments_of(TrainSettings(), tmp_path, seed=0)["use_cpu"]
    assert arguments_of(TrainSettings(device="cpu"), tmp_path, seed=0)["use_cpu"]
