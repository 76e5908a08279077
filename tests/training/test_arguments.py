"""Settings as Transformers' arguments: checks of the machine and of packages."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch
from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

from temper.errors import SettingError
from temper.settings import section
from temper.training import run
from temper.training.run import training_arguments
from temper.training.settings import TRACKERS, TrainSettings, known_tracker


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
    made = training_arguments(settings, tmp_path, seed=0)
    assert made.device.type == "cpu"
    assert made.bf16 == (precision == "bf16")


@pytest.mark.usefixtures("only_a_cpu")
def test_fp16_on_a_cpu_raises_an_error_before_any_work(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="'bf16' or 'fp32'"):
        training_arguments(TrainSettings(precision="fp16"), tmp_path, seed=0)


def test_device_auto_uses_an_available_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    # Transformers would look for the GPU.
    monkeypatch.setattr(run, "TrainingArguments", dict)
    of_auto, of_cpu = (
        training_arguments(TrainSettings(device=device), tmp_path, seed=0)
        for device in ("auto", "cpu")
    )
    assert (of_auto["use_cpu"], of_cpu["use_cpu"]) == (False, True)


def test_every_tracker_of_transformers_is_known() -> None:
    assert set(INTEGRATION_TO_CALLBACK) <= set(TRACKERS)


def test_a_missing_tracker_package_raises_an_error_with_the_install_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(SettingError, match=r"'tensorboard' is not installed. Run: pip install ten"):
        section(TrainSettings, "train", {"report_to": ["tensorboard"]})


def test_an_installed_tracker_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    result = importlib.util.find_spec("json")
    present = lambda name: result if name == "tensorboardX" else None  # noqa: E731
    monkeypatch.setattr(importlib.util, "find_spec", present)
    assert known_tracker("tensorboard") == "tensorboard"
    assert section(TrainSettings, "train", {"report_to": ["none"]}).report_to == ("none",)


def test_an_unknown_tracker_lists_near_matches() -> None:
    with pytest.raises(SettingError, match=r"Unknown tracker 'tensorbord'. Did you mean 'tensorb"):
        section(TrainSettings, "train", {"report_to": ["tensorbord"]})
