"""Trackers are known and installed before anything is loaded."""

from __future__ import annotations

import importlib.util

import pytest
from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

from temper.errors import SettingError
from temper.training.assignments import section
from temper.training.settings import TRACKERS, TrainSettings, known_tracker


def test_every_tracker_of_transformers_is_known() -> None:
    assert set(INTEGRATION_TO_CALLBACK) <= set(TRACKERS)


def test_a_tracker_that_is_not_installed_is_a_fault_of_the_settings_with_its_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(SettingError, match=r"'tensorboard' is not installed. Run: pip install ten"):
        section(TrainSettings, "train", {"report_to": ["tensorboard"]})


def test_a_tracker_that_is_installed_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec("json")
    present = lambda name: found if name == "tensorboardX" else None  # noqa: E731
    monkeypatch.setattr(importlib.util, "find_spec", present)
    assert known_tracker("tensorboard") == "tensorboard"
    assert section(TrainSettings, "train", {"report_to": ["none"]}).report_to == ("none",)


def test_an_unknown_tracker_lists_near_matches() -> None:
    with pytest.raises(SettingError, match=r"Unknown tracker 'tensorbord'. Did you mean 'tensorb"):
        section(TrainSettings, "train", {"report_to": ["tensorbord"]})
