"""WiSE-FT: weights between start and end, with the trained head, interpolated once."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import Tensor

from temper import Stepper
from temper.methods.wise_ft import WiseFT
from tests.methods.tiny import rows
from tests.methods.weights import close, copies, same, stepper_of, two_batches
from tests.training.test_stepper import Averaged


def trained(stepper: Stepper, steps: int = 2) -> dict[str, Tensor]:
    """Take some steps and return the weights after them."""
    optimizer = torch.optim.SGD(stepper.params.tensors.values(), lr=0.5)
    for _ in range(steps):
        optimizer.zero_grad()
        stepper.backward(*two_batches())
        stepper.step(optimizer)
    return copies(stepper.network.model)


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.5, 0.9])
def test_final_weights_are_interpolated_with_the_start_except_the_head(
    alpha: float,
) -> None:
    stepper, plain = stepper_of(WiseFT(alpha=alpha)), stepper_of("plain")
    start = copies(stepper.network.model)
    end = trained(stepper)
    assert same(end, trained(plain))
    stepper.finish()
    result = copies(stepper.network.model)
    expected = {
        name: end[name]
        if name.startswith("head")
        else (1 - alpha) * start[name] + alpha * end[name]
        for name in start
    }
    close(result, expected)
    assert torch.equal(result["head.weight"], end["head.weight"])
    stepper.finish()
    assert same(result, copies(stepper.network.model))


def test_a_model_with_an_unknown_head_is_interpolated_whole_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = Averaged()
    start = copies(model)
    with caplog.at_level(logging.WARNING, logger="temper"):
        stepper = Stepper(model, "wise_ft")
    assert "no trainable head is found" in caplog.text
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    stepper.backward({**rows(5, 3), "labels": torch.tensor([0, 1])})
    stepper.step(optimizer)
    end = copies(model)
    stepper.finish()
    for name, value in copies(model).items():
        torch.testing.assert_close(value, (start[name] + end[name]) / 2)
