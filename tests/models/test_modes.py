"""A model is in train or eval mode temporarily, and each module gets its own mode back."""

from __future__ import annotations

import sys

import pytest
from huggingface_hub.utils import are_progress_bars_disabled
from torch import nn
from transformers.utils import logging

from temper.models.modes import in_mode, quiet


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("before", [(True, True, True), (False, False, False), (True, False, True)])
def test_every_module_is_in_the_mode_and_is_restored_afterwards(
    before: tuple[bool, ...], training: bool
) -> None:
    model = nn.Sequential(nn.Dropout(), nn.BatchNorm1d(2))
    for module, mode in zip(model.modules(), before, strict=True):
        module.training = mode

    def work() -> None:
        with in_mode(model, training=training):
            assert [module.training for module in model.modules()] == [training] * 3
            # Whatever is done to it meanwhile.
            model.train(not training)
            raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        work()
    assert tuple(module.training for module in model.modules()) == before


@pytest.mark.parametrize("shown", [True, False])
def test_only_bars_of_downloads_are_shown_while_a_model_is_loaded(
    shown: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The tests' environment disables both.
    module = sys.modules[are_progress_bars_disabled.__module__]
    monkeypatch.setattr(module, "HF_HUB_DISABLE_PROGRESS_BARS", None)
    monkeypatch.setattr(module, "progress_bar_states", {"_global": shown})
    monkeypatch.setattr(logging, "_tqdm_active", True)
    with quiet():
        assert not logging.is_progress_bar_enabled()
        assert are_progress_bars_disabled() is not shown
    assert logging.is_progress_bar_enabled()
    # The user's setting of the download bars is back.
    assert are_progress_bars_disabled() is not shown
