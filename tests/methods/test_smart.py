"""SMART's proximal term towards a weight average; the tests of VAT cover the other term."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch

from temper import RDrop, Stepper
from temper.methods import build
from temper.methods.smart import SMART, WeightAverage
from temper.models.network import Parameters
from temper.types import Step
from tests.methods import reference
from tests.methods.tiny import TinyNetwork, recorded_drops, rows, tiny_bert, tiny_network
from tests.methods.weights import compare, copies, leaves, two_batches

VALUES = {"epsilon": 0.3, "relative": False, "init_noise": 0.05, "weight": 0.7}


def optimizer_of(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.3)


def after_a_step(config: SMART, *, classes: int, regression: bool) -> tuple[Stepper, TinyNetwork]:
    model = tiny_network(classes=classes)
    stepper = Stepper(model, config, seed=11, total=10)
    optimizer = optimizer_of(model)
    stepper.backward(*two_batches(regression=regression))
    stepper.step(optimizer)
    optimizer.zero_grad()
    return stepper, model


@pytest.mark.parametrize(
    ("kind", "extra", "regression"),
    [
        ("sym_kl", {}, False),
        ("js", {"divergence": "js"}, False),
        ("sym_kl", {"reduction": "sum"}, False),
        ("mse", {}, True),
    ],
)
def test_the_proximal_term_is_the_divergence_from_the_averaged_network(
    kind: str, extra: dict[str, Any], regression: bool
) -> None:
    config = SMART(weight=0.0, proximal_weight=0.6, decay=0.5, **extra)
    stepper, model = after_a_step(config, classes=1 if regression else 3, regression=regression)
    averaged = {name: v.clone() for name, v in stepper.state["average"]["weights"].items()}
    batches = two_batches(regression=regression)
    with recorded_drops(model) as drops:
        logs = stepper.backward(*batches)
    weights = leaves(model)
    divisor = 1 if extra.get("reduction") == "sum" else 5
    total = torch.zeros((), dtype=torch.float64)
    for index, batch in enumerate(batches):
        clean, teacher = 2 * index, 2 * index + 1
        ours = reference.forward(weights, batch, drops, call=clean)
        theirs = reference.forward(averaged, batch, drops, call=teacher)
        # The same units are dropped, so what differs is the weights alone.
        again = reference.forward(averaged, batch, drops, call=clean)
        torch.testing.assert_close(theirs, again)
        pulls = sum(
            reference.divergence_of(kind, ours[row], theirs[row]) for row in range(len(ours))
        )
        losses = reference.row_losses(ours, batch["labels"], None).sum()
        total = total + losses / 5 + 0.6 * pulls / divisor
    assert logs["loss/proximal"] > 1e-6
    compare(total, weights, logs["loss"], stepper.params.gradients())


@pytest.mark.parametrize(
    ("total", "decays"),
    # The first tenth of twenty steps is two.
    [(20, [0.9, 0.9, 0.5, 0.5]), (0, [0.9, 0.9, 0.9, 0.9])],
)
def test_the_average_follows_its_recursion(total: int, decays: list[float]) -> None:
    model = tiny_network()
    stepper = Stepper(model, SMART(decay=0.9, final_decay=0.5), total=total)
    optimizer = optimizer_of(model)
    expected = {name: value.numpy() for name, value in copies(model).items()}
    for step, decay in enumerate(decays):
        optimizer.zero_grad()
        stepper.backward(rows(5, 3, seed=step))
        stepper.step(optimizer)
        for name, value in copies(model).items():
            expected[name] = decay * expected[name] + (1 - decay) * value.numpy()
        kept = stepper.state["average"]["weights"]
        assert set(kept) == set(expected)
        for name, value in expected.items():
            torch.testing.assert_close(kept[name], torch.from_numpy(value), rtol=1e-12, atol=0)
    assert any(not torch.equal(kept[name], p) for name, p in model.named_parameters())


def test_without_the_proximal_term_no_average_is_kept() -> None:
    assert build(SMART(proximal_weight=0.0)).rule.rules == ()
    assert [rule.name for rule in build(SMART()).rule.rules] == ["average"]


def test_weights_in_half_precision_are_averaged_in_single() -> None:
    weight = torch.nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
    params = Parameters({"w": weight}, frozenset())
    rule = WeightAverage(final_decay=0.999)
    state = rule.init(params)
    with torch.no_grad():
        weight.fill_(2.0)
    rule.after_step(params, state, Step(9, total=10))
    # 1.001 is 1 in bf16.
    assert state["weights"]["w"].tolist() == pytest.approx([1.001] * 3)
    model = tiny_bert().to(torch.bfloat16)
    logs = Stepper(model, SMART(weight=0.0)).backward(rows(5, 3))
    assert logs["loss/proximal"] == 0.0


def test_an_unknown_number_of_steps_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    model = tiny_network()
    stepper = Stepper(model, SMART())
    optimizer = optimizer_of(model)
    with caplog.at_level(logging.WARNING, logger="temper"):
        for _ in range(2):
            stepper.backward(rows(5, 3))
            stepper.step(optimizer)
    assert caplog.text.count("final_decay=0.999 is never used") == 1


def test_beside_several_dropout_passes_the_average_is_compared_under_equal_masks() -> None:
    logs = Stepper(tiny_network(), RDrop() + SMART(weight=0.0)).backward(rows(5, 3))
    assert logs["loss/divergence"] > 1e-3
    assert logs["loss/proximal"] == 0.0
