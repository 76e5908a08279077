"""The weight average: its recursion in float64, and its decay by step."""

from __future__ import annotations

import logging

import pytest
import torch

from temper.methods.smart import WeightAverage
from temper.models.network import Network, Parameters
from temper.types import Step
from tests.methods.tiny import tiny_network


def parameters(dtype: torch.dtype = torch.float64) -> Parameters:
    return Network(tiny_network().to(dtype)).parameters()


@pytest.mark.parametrize(
    ("total", "early"), [(10, 0.3), (10, 0.0), (10, 1.0), (7, 0.5), (0, 0.3), (1, 0.1)]
)
def test_the_average_follows_the_recursion_with_a_decay_by_training_progress(
    total: int, early: float
) -> None:
    rule = WeightAverage(decay=0.6, final_decay=0.9, early=early)
    params, draws = parameters(), torch.Generator().manual_seed(0)
    state = rule.init(params)
    expected = {name: tensor.clone() for name, tensor in params.tensors.items()}
    for number in range(total or 6):
        with torch.no_grad():
            for tensor in params.tensors.values():
                tensor.add_(torch.randn(tensor.shape, generator=draws, dtype=tensor.dtype))
        skipped = number == 3
        rule.after_step(params, state, Step(number=number, total=total, skipped=skipped))
        if not skipped:
            # The t-th of T steps is an early one while t <= early * T; T = 0 is not known.
            b = 0.6 if not total or number + 1 <= early * total else 0.9
            for name, tensor in params.tensors.items():
                expected[name] = b * expected[name] + (1 - b) * tensor
    assert state["weights"].keys() == params.tensors.keys()
    for name, average in state["weights"].items():
        torch.testing.assert_close(average, expected[name], rtol=1e-12, atol=1e-14)


def test_the_average_of_half_precision_weights_is_a_copy_in_single_precision() -> None:
    params = parameters(torch.bfloat16)
    rule = WeightAverage(decay=0.999, final_decay=0.999)
    state = rule.init(params)
    kept = {name: tensor.clone() for name, tensor in state["weights"].items()}
    with torch.no_grad():
        for tensor in params.tensors.values():
            tensor.add_(1.0)
    rule.after_step(params, state, Step())
    for name, average in state["weights"].items():
        assert average.dtype == torch.float32
        # A step of 1 - .999, which bf16 does not resolve.
        moved = 0.999 * kept[name].double() + 0.001 * params.tensors[name].double()
        torch.testing.assert_close(average.double(), moved, rtol=1e-6, atol=1e-6)
        assert not average.requires_grad


@pytest.mark.parametrize(
    ("decays", "total", "number", "warned"),
    [
        ((0.5, 0.9), 0, 0, True),
        ((0.5, 0.9), 0, 1, False),
        ((0.5, 0.9), 5, 0, False),
        ((0.5, 0.5), 0, 0, False),
    ],
)
def test_an_unknown_number_of_steps_warns_if_the_decay_depends_on_it(
    decays: tuple[float, float],
    total: int,
    number: int,
    warned: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    rule, params = WeightAverage(*decays), parameters()
    state = rule.init(params)
    with caplog.at_level(logging.WARNING, logger="temper"):
        rule.after_step(params, state, Step(number=number, total=total))
    assert ("number of steps is unknown" in caplog.text) == warned
    if warned:
        assert "keeps decay=0.5, and final_decay=0.9 is never used" in caplog.text
