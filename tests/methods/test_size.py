"""A perturbation larger than the embeddings is reported once, with both norms and a remedy."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from temper import Stepper
from temper.methods import configure, entry, names
from tests.methods.tiny import rows, tiny_bert
from tests.training.tiny_training import make_trainer, tiny_model

MOVING = [name for name in names() if "perturbation" in entry(name).conflicts["losses"]]

# Sizes beyond any norm of a tiny network.
LARGE: dict[str, dict[str, Any]] = {
    "freelb": {"step_size": 50.0},
    "embedding_noise": {"alpha": 500.0},
    "r3f": {"epsilon": 50.0},
}


def large(name: str) -> dict[str, Any]:
    return LARGE.get(name, {"epsilon": 50.0})


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [text for text in caplog.messages if "more than their own norm" in text]


def steps(config: Any, *, count: int = 2) -> Stepper:
    stepper = Stepper(tiny_bert(), config, special_ids=(1, 2), total=count)
    optimizer = torch.optim.SGD(stepper.network.model.parameters(), lr=0.0)
    stepper.prepare([rows(5, 3)])
    stepper.begin_epoch(0)
    for step in range(count):
        stepper.backward(rows(5, 3, seed=step), rows(4, seed=step))
        stepper.step(optimizer)
        optimizer.zero_grad()
    return stepper


@pytest.mark.parametrize("name", MOVING)
def test_a_perturbation_larger_than_the_embeddings_warns_once(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="temper"):
        steps(configure(name, large(name)))
    (text,) = warnings_of(caplog)
    (size,) = large(name)
    assert repr(name) in text
    assert f"Lower {size}=" in text


@pytest.mark.parametrize("name", [name for name in MOVING if name != "embedding_noise"])
def test_default_sizes_are_within_the_embeddings_of_a_network_with_norms_of_order_1(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="temper"):
        steps(configure(name), count=1)
    assert warnings_of(caplog) == []


def test_the_warning_names_both_norms_and_a_suitable_size(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, logger="temper"):
        stepper = steps(configure("at", {"epsilon": 50.0, "relative": False}), count=1)
    assert stepper.network.first_norms is not None
    moved, own = map(float, stepper.network.first_norms)
    # An example's step has the whole budget.
    assert moved == pytest.approx(50.0, rel=1e-5)
    (text,) = warnings_of(caplog)
    assert f"50 vs. {own:.3g} per row" in text
    assert f"Lower epsilon=50: at {own:.2g} the norms are equal" in text
    assert "relative=True" in text


def test_the_trainer_warns_of_too_large_a_perturbation(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # Words so small that RoAST's absolute step is many times their norm.
    model = tiny_model(initializer_range=0.001)
    method = configure("adv_embed", {"site": "word", "epsilon": 0.1})
    with caplog.at_level(logging.WARNING, logger="temper"):
        make_trainer(tmp_path, model=model, more={"method": method}).train()
    (text,) = warnings_of(caplog)
    assert "'adv_embed'" in text
