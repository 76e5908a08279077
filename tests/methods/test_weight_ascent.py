"""SAM, ASAM and AWP: the radius, the gradient at nearby weights, and restored weights."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from temper import Stepper
from temper.backward.sharpness import l2_norms
from temper.errors import CompositionError
from temper.functional import masks
from temper.methods import configure
from temper.methods.adv_weight import AdvWeight, SharpnessAware
from temper.methods.awp import AWP, RelativeAscent
from temper.models.blocks import Parameters
from temper.seeding import Streams
from temper.types import Gradients, State, Step
from tests.methods import reference
from tests.methods.tiny import rows, tiny_bert
from tests.methods.weights import (
    PlantedError,
    close,
    copies,
    expected_gradient,
    expected_loss,
    fail_at_call,
    leaves,
    same,
    step_of,
    stepper_of,
    two_batches,
)


def length(tensors: list[Tensor]) -> float:
    return math.sqrt(sum(float(entry) ** 2 for tensor in tensors for entry in tensor.flatten()))


def moved_by_hand(
    weights: reference.Weights, gradients: dict[str, Tensor], step: dict[str, Tensor]
) -> reference.Weights:
    return {
        name: (weight.detach() + step.get(name, 0.0)).requires_grad_()
        for name, weight in weights.items()
    }


def sam(weights: reference.Weights, g: dict[str, Tensor], rho: float) -> dict[str, Tensor]:
    size = length(list(g.values()))
    return {name: rho * gradient / size for name, gradient in g.items()}


def asam(
    weights: reference.Weights, g: dict[str, Tensor], rho: float, eta: float
) -> dict[str, Tensor]:
    sizes = {
        name: torch.ones_like(w) if name.endswith("bias") else w.detach().abs() + eta
        for name, w in weights.items()
    }
    norm = length([sizes[name] * g[name] for name in g])
    return {name: rho * sizes[name] ** 2 * g[name] / norm for name in g}


def awp(weights: reference.Weights, g: dict[str, Tensor], gamma: float) -> dict[str, Tensor]:
    return {
        name: gamma * length([weights[name].detach()]) * gradient / length([gradient])
        for name, gradient in g.items()
        if gradient.dim() > 1
    }


@pytest.fixture(params=["every row", "touched rows"])
def tall(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run with the shortcut for tall matrices and without: the 23 words then are many."""
    if request.param == "touched rows":
        monkeypatch.setattr(masks, "MANY_ROWS", 20)


@pytest.mark.usefixtures("tall")
@pytest.mark.parametrize(
    ("config", "steps"),
    [
        (AdvWeight(rho=0.3), lambda w, g: sam(w, g, 0.3)),
        (
            AdvWeight(rho=0.7, adaptive={"eta": 0.05}),
            lambda w, g: asam(w, g, 0.7, 0.05),
        ),
        (AWP(gamma=0.2), lambda w, g: awp(w, g, 0.2)),
    ],
    ids=["sam", "asam", "awp"],
)
@pytest.mark.parametrize("regression", [False, True])
def test_the_gradient_is_that_of_the_loss_at_the_moved_weights(
    config: Any, steps: Any, regression: bool
) -> None:
    batches = two_batches(regression=regression)
    stepper = stepper_of(config, classes=1 if regression else 3)
    before = copies(stepper.network.model)
    logs, result, drops = step_of(stepper, batches)
    weights = leaves(stepper.network.model)
    here = expected_gradient(weights, batches, drops)
    there = moved_by_hand(weights, here, steps(weights, here))
    close(result, expected_gradient(there, batches, drops))
    # What is logged is the loss at the weights themselves.
    assert logs["loss"] == pytest.approx(expected_loss(weights, batches, drops).item(), rel=1e-9)
    assert same(before, copies(stepper.network.model))


def second_weights(rule: Any, gradients: dict[str, Tensor]) -> tuple[Any, dict[str, Tensor]]:
    """Run a rule on gradients that are given, and return where it asked for the second ones."""
    model = stepper_of("plain").network.model
    params = Parameters(dict(model.named_parameters()), blocks=frozenset())
    seen: list[dict[str, Tensor]] = []

    def compute() -> Gradients:
        seen.append(copies(model))
        return {name: g.clone() for name, g in gradients.items()}

    rule.gradient(params, {"loss_scale": 1.0}, compute)
    assert same(seen[0], copies(model))
    return seen[0], seen[1]


def some_gradients() -> dict[str, Tensor]:
    draws = torch.Generator().manual_seed(2)
    model = stepper_of("plain").network.model
    return {
        name: torch.randn(p.shape, generator=draws, dtype=torch.float64) * 10.0 ** (index % 5 - 3)
        for index, (name, p) in enumerate(model.named_parameters())
    }


@pytest.mark.parametrize(
    "rule", [SharpnessAware(), SharpnessAware(adaptive=True), RelativeAscent()]
)
@pytest.mark.parametrize("value", [0.0, float("inf"), float("nan")])
def test_a_zero_or_non_finite_gradient_perturbs_no_weight(rule: Any, value: float) -> None:
    gradients = {name: torch.full_like(g, value) for name, g in some_gradients().items()}
    assert same(*second_weights(rule, gradients))
    if value:
        partly = some_gradients()
        partly["layers.0.inner.weight"][0, 0] = value
        assert same(*second_weights(rule, partly))


def test_rows_without_a_gradient_are_neither_copied_nor_moved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(masks, "MANY_ROWS", 20)
    gradients = some_gradients()
    words = torch.zeros_like(gradients["words.weight"])
    words[[2, 7, 19]] = gradients["words.weight"][[2, 7, 19]]
    gradients["words.weight"] = words
    assert masks.touched_rows(words).tolist() == [2, 7, 19]
    before, after = second_weights(SharpnessAware(), gradients)
    changed = (before["words.weight"] != after["words.weight"]).any(1).nonzero().squeeze(1)
    assert changed.tolist() == [2, 7, 19]
    assert masks.touched_rows(gradients["words.weight"] + 1) is None
    assert masks.touched_rows(gradients["head.weight"]) is None


@pytest.mark.usefixtures("tall")
@pytest.mark.parametrize("name", ["adv_weight", "awp"])
def test_a_failing_second_pass_restores_the_weights(name: str) -> None:
    stepper = stepper_of(name)
    before = copies(stepper.network.model)
    # Two micro-batches: the fourth forward is the second one of the second pass.
    seen = fail_at_call(stepper.network.model, 4)
    with pytest.raises(PlantedError):
        stepper.backward(*two_batches())
    assert not same(before, seen[0])
    assert same(before, copies(stepper.network.model))


def test_the_state_holds_no_weights_and_the_norm_is_logged() -> None:
    stepper = stepper_of("adv_weight")
    batches = two_batches()
    logs, _, drops = step_of(stepper, batches)
    here = expected_gradient(leaves(stepper.network.model), batches, drops)
    assert logs["ascent/gradient_norm"] == pytest.approx(length(list(here.values())), rel=1e-9)
    assert all(isinstance(v, float) for v in stepper.state["ascent"].values())


def test_the_logged_norm_is_that_of_the_gradient_without_the_loss_s_scale() -> None:
    params = Parameters({"w": torch.nn.Parameter(torch.zeros(2))}, blocks=frozenset())
    rule, state = SharpnessAware(), State()
    assert rule.diagnostics(state) == {}
    rule.before_forward(params, state, Step(loss_scale=8.0), Streams(0))
    rule.gradient(params, state, lambda: {"w": 8.0 * torch.tensor([3.0, 4.0])})
    assert rule.diagnostics(state) == {"ascent/gradient_norm": pytest.approx(5.0)}


@pytest.mark.parametrize(
    "method", [AdvWeight(rho=1.0), AWP(gamma=0.2), "mixout"], ids=["sam", "awp", "mixout"]
)
def test_under_an_open_autocast_passes_use_the_perturbed_weights(method: Any) -> None:
    """Autocast keeps half-precision copies of weights, which a move in place does not renew."""
    result = []
    for half in (False, True):
        stepper = Stepper(tiny_bert(dropout=0.0, attention=0.0), method)
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            stepper.backward(rows(5, 3))
            stepper.discard()
            stepper.number = 1
            stepper.backward(rows(5, 3))
        result.append(torch.cat([g.flatten() for g in stepper.params.gradients().values()]))
    assert torch.nn.functional.cosine_similarity(*result, dim=0) > 0.9


def test_two_ascents_do_not_compose_but_one_goes_with_an_attack() -> None:
    with pytest.raises(CompositionError, match="both use"):
        configure("adv_weight + awp")
    stepper = stepper_of(configure("at + awp"))
    before = copies(stepper.network.model)
    logs = stepper.backward(*two_batches())
    assert {"loss/task", "loss/adversarial", "ascent/gradient_norm"} <= set(logs)
    assert same(before, copies(stepper.network.model))


def test_a_bias_is_recognized_by_the_last_part_of_its_name() -> None:
    """Of a module that is called so the weights count by their sizes, as all others do."""
    sizes = {"unbiased.weight": 3.0, "layers.0.bias": 3.0, "bias": 3.0, "query_bias": 3.0}
    tensors = {name: torch.nn.Parameter(torch.full((1,), size)) for name, size in sizes.items()}
    params = Parameters(tensors, blocks=frozenset())
    seen: list[dict[str, float]] = []

    def compute() -> Gradients:
        seen.append({name: tensor.item() for name, tensor in tensors.items()})
        return {name: torch.ones(1) for name in tensors}

    SharpnessAware(rho=0.1, adaptive=True, eta=1.0).gradient(params, {}, compute)
    # T is 3 + 1 for the one and 1 for the others: e = .1 T^2 g / sqrt(4^2 + 3).
    factor = 0.1 / math.sqrt(19)
    expected = {name: 3 + factor * (16 if "unbiased" in name else 1) for name in tensors}
    assert seen[0] == sizes
    assert seen[1] == pytest.approx(expected)


def test_norms_of_half_precision_are_taken_in_single_and_those_of_double_in_double() -> None:
    params = Parameters({}, blocks=frozenset())
    half = torch.ones(1000, dtype=torch.bfloat16)
    # bf16 would round to 31.625.
    assert l2_norms([half], params) == pytest.approx([math.sqrt(1000)], rel=1e-7)
    fine = torch.full((2,), 1 + 1e-12, dtype=torch.float64)
    result = l2_norms([fine, half], params)
    assert result == pytest.approx([math.sqrt(2) * (1 + 1e-12), math.sqrt(1000)], rel=1e-14)
