"""Models that Accelerate has placed: one device works, several raise an error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from accelerate import dispatch_model

from temper.errors import SettingError
from temper.training.stepper import Stepper
from tests.training.tiny_training import make_trainer, tiny_model, unequal, weights


@pytest.mark.parametrize("method", ["plain", "at", "uegr", "jachess", "awp", "mixout"])
def test_a_device_map_of_one_device_trains_to_the_same_weights(method: str, tmp_path: Path) -> None:
    placed = dispatch_model(tiny_model(), {"": "cpu"}, force_hooks=True)
    ends = []
    for model in (tiny_model(), placed):
        trainer = make_trainer(tmp_path, model=model, more={"method": method})
        trainer.train()
        ends.append(weights(trainer.model))
    assert hasattr(placed, "_hf_hook")
    assert unequal(*ends) == []


def spread(folder: Path) -> Any:
    """Return a model whose second block is on disk."""
    device_map = dict.fromkeys(("bert.embeddings", "bert.pooler", "classifier", "dropout"), "cpu")
    blocks = {"bert.encoder.layer.0": "cpu", "bert.encoder.layer.1": "disk"}
    return dispatch_model(
        tiny_model(), {**device_map, **blocks}, main_device="cpu", offload_dir=folder
    )


def test_a_device_map_of_several_devices_raises_an_error_with_advice(tmp_path: Path) -> None:
    message = r"several devices \(cpu, disk: `device_map`\).*fsdp=True"
    for given in ({"model": spread(tmp_path)}, {"more": {"model_init": lambda: spread(tmp_path)}}):
        with pytest.raises(SettingError, match=message):
            make_trainer(tmp_path, **given)
    with pytest.raises(SettingError, match=message):
        Stepper(spread(tmp_path))
