"""RecAdam against a loop of the released algorithm in double precision."""

from __future__ import annotations

import logging
import math

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy
from torch.utils._pytree import tree_leaves

from temper import Plain, Stepper
from temper.backward import UpdateRule
from temper.methods.rec_adam import RecAdam, Recall
from temper.models.network import Parameters
from temper.seeding import Streams
from temper.types import Gradients, State, Step
from tests.methods.tiny import rows, tiny_bert, tiny_network, with_rules

STEPS = 8
BETAS = (0.9, 0.98)
# So small that it does not matter whether it is added before or after the bias correction: the
# released Adam and torch's differ there, and that is the optimizer's and not the rule's.
EPS = 1e-30


def rate_of(step: int) -> float:
    return 0.02 * (1 - step / 20)


def released(
    model: nn.Module, decay: float, *, k: float, t0: int, gamma: float
) -> list[dict[str, Tensor]]:
    """Run the released loop over the parameters, t from 1: Adam damped, pull, decay."""
    weights = {name: p.detach().clone() for name, p in model.named_parameters()}
    start = {name: value.clone() for name, value in weights.items()}
    first = {name: torch.zeros_like(value) for name, value in weights.items()}
    second = {name: torch.zeros_like(value) for name, value in weights.items()}
    seen = []
    for t in range(1, STEPS + 1):
        batch = rows(5, 3, 6, seed=t)
        inputs = {key: batch[key] for key in ("input_ids", "attention_mask")}
        live = {name: value.clone().requires_grad_() for name, value in weights.items()}
        loss = cross_entropy(functional_call(model, live, kwargs=inputs), batch["labels"])
        grads = dict(zip(live, torch.autograd.grad(loss, list(live.values())), strict=True))
        lr = rate_of(t - 1)
        fraction = 1 / (1 + math.exp(-k * (t - t0)))
        for name, g in grads.items():
            first[name] = BETAS[0] * first[name] + (1 - BETAS[0]) * g
            second[name] = BETAS[1] * second[name] + (1 - BETAS[1]) * g * g
            size = lr * math.sqrt(1 - BETAS[1] ** t) / (1 - BETAS[0] ** t)
            step = size * first[name] / (second[name].sqrt() + EPS)
            if name.startswith("head"):
                # The classifier's step is the optimizer's own; torch's decays before it moves.
                weights[name] = weights[name] * (1 - lr * decay) - step
                continue
            weights[name] = weights[name] - fraction * step
            pull = lr * (1 - fraction) * gamma * (weights[name] - start[name])
            weights[name] = weights[name] - pull
            weights[name] = weights[name] - lr * decay * weights[name]
        seen.append({name: value.clone() for name, value in weights.items()})
    return seen


@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_a_run_across_t0_is_that_of_the_released_algorithm(decay: float) -> None:
    expected = released(tiny_network(rate=0.0), decay, k=0.7, t0=4, gamma=12.0)
    model = tiny_network(rate=0.0)
    stepper = Stepper(model, RecAdam(gamma=12.0, anneal={"k": 0.7, "t0": 4}))
    assert stepper.params.head == {"head.weight", "head.bias"}
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=1.0, betas=BETAS, eps=EPS, weight_decay=decay
    )
    for step, wanted in enumerate(expected):
        optimizer.param_groups[0]["lr"] = rate_of(step)
        optimizer.zero_grad()
        stepper.backward(rows(5, 3, 6, seed=step + 1))
        stepper.step(optimizer)
        for name, p in model.named_parameters():
            torch.testing.assert_close(
                p.detach(),
                wanted[name],
                rtol=1e-9,
                atol=1e-11,
                msg=lambda m, n=name, s=step: f"step {s}, {n}: {m}",
            )


def test_the_pull_to_the_start_is_not_in_the_optimizer_moments() -> None:
    model = tiny_network(rate=0.0)
    stepper = Stepper(model, RecAdam(anneal={"t0": 2}))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=BETAS)
    stepper.backward(rows(5, 3))
    stepper.step(optimizer)
    with torch.no_grad():
        model.words.weight.add_(1.0)
    optimizer.zero_grad()
    stepper.backward(rows(5, 3))
    gradient = model.words.weight.grad.clone()
    moment = optimizer.state[model.words.weight]["exp_avg"].clone()
    before = model.words.weight.detach().clone()
    stepper.step(optimizer)
    assert (model.words.weight - before).abs().max() > 0.1
    torch.testing.assert_close(
        optimizer.state[model.words.weight]["exp_avg"], 0.9 * moment + 0.1 * gradient
    )


@pytest.mark.parametrize(
    ("rule", "number", "expected"),
    [
        (Recall(k=0.5, t0=250), 250, 0.5),
        (Recall(k=0.5, t0=250), 252, 1 / (1 + math.exp(-1))),
        (Recall(k=0.5, t0=250), 248, 1 / (1 + math.exp(1))),
        (Recall(k=1.0, t0=1000), 1, 0.0),
        (Recall(k=1.0, t0=1000), 2000, 1.0),
    ],
)
def test_the_task_fraction_follows_the_published_schedule(
    rule: Recall, number: int, expected: float
) -> None:
    assert rule.task_fraction(number) == pytest.approx(expected, abs=1e-300)


def test_steps_are_counted_from_1_and_the_task_fraction_is_logged() -> None:
    stepper = Stepper(tiny_network(), RecAdam(anneal={"k": 1.0, "t0": 2}))
    optimizer = torch.optim.AdamW(stepper.network.model.parameters(), lr=1e-5)
    fractions = []
    for _ in range(5):
        stepper.backward(rows(5, 3))
        stepper.step(optimizer)
        fractions.append(stepper.diagnostics()["recall/task_fraction"])
    assert fractions == pytest.approx([1 / (1 + math.exp(2 - t)) for t in range(1, 6)])


class Held(Recall):
    """Hold the fraction of the task at one value."""

    fraction = 1.0

    def task_fraction(self, number: int) -> float:
        return self.fraction


def held(fraction: float, **settings: float) -> Recall:
    return type("Fixed", (Held,), {"fraction": fraction})(**settings)


def test_a_task_fraction_of_1_equals_the_plain_optimizer() -> None:
    weights = []
    for config in (Plain(), with_rules(held(1.0))):
        model = tiny_bert()
        stepper = Stepper(model, config)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
        for step in range(3):
            optimizer.zero_grad()
            stepper.backward(rows(5, 3, seed=step))
            stepper.step(optimizer)
        weights.append([p.detach().clone() for p in model.parameters()])
    assert all(torch.equal(first, second) for first, second in zip(*weights, strict=True))


def test_no_copy_of_the_weights_is_kept_between_steps() -> None:
    stepper = Stepper(tiny_network(), RecAdam())
    optimizer = torch.optim.AdamW(stepper.network.model.parameters(), lr=1e-5)
    stepper.backward(rows(5, 3))
    assert not any(isinstance(leaf, Tensor) for leaf in tree_leaves(stepper.state))
    stepper.before_optimizer(optimizer)
    assert set(stepper.state["recall"]["before"]) == {
        name for name in stepper.params.tensors if not name.startswith("head")
    }
    optimizer.step()
    stepper.after_optimizer()
    assert not any(isinstance(leaf, Tensor) for leaf in tree_leaves(stepper.state))


class Halving(UpdateRule):
    """Halve the learning rate, and leave the embeddings out of the step."""

    name = "halving"

    def transform(
        self, grads: Gradients, params: Parameters, state: State, rng: Streams
    ) -> Gradients:
        return {name: g for name, g in grads.items() if name != "words.weight"}

    def learning_rate_scales(
        self, params: Parameters, state: State, step: Step
    ) -> dict[str, float]:
        return dict.fromkeys(params.tensors, 0.5)


@pytest.mark.parametrize("first", [True, False])
def test_rec_adam_follows_rates_scaled_by_other_rules(first: bool) -> None:
    result = []
    for halved in (True, False):
        model = tiny_network(rate=0.0)
        recall = held(0.4, gamma=30.0)
        rules = ((Halving(), recall) if first else (recall, Halving())) if halved else (recall,)
        stepper = Stepper(model, with_rules(*rules))
        rate = 0.02 if halved else 0.01
        optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.5)
        before = model.words.weight.detach().clone()
        for step in range(2):
            optimizer.zero_grad()
            stepper.backward(rows(5, 3, seed=step))
            if not halved:
                model.words.weight.grad = None
            stepper.step(optimizer)
        assert torch.equal(model.words.weight, before)
        result.append([p.detach().clone() for p in model.parameters()])
    for one, other in zip(*result, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("pull", [0.25, 1.0, 1.5])
def test_a_pull_of_1_or_more_to_the_start_warns(
    pull: float, caplog: pytest.LogCaptureFixture
) -> None:
    weight = nn.Parameter(torch.tensor([2.0], dtype=torch.float64))
    params = Parameters({"w": weight}, frozenset(), start={"w": torch.zeros(1).double()})
    rule, state = held(0.25, gamma=pull / (0.25 * 0.75)), State()
    step = Step(0, total=100, rates={"w": (0.25, 0.4)})
    # What no transform has seen stays where it is.
    rule.after_step(params, state, step)
    assert weight.item() == 2.0
    weight.grad = torch.ones(1, dtype=torch.float64)
    rule.transform({"w": weight.grad}, params, state, Streams(0))
    with torch.no_grad():
        # AdamW decays by a tenth before it moves, here by 2.
        weight.copy_(torch.tensor([2.0 * 0.9 + 2.0]))
    rule.after_step(params, state, step)
    # A quarter of that step, the pull, and a tenth of what is left.
    assert weight.item() == pytest.approx((2.0 + 0.5) * (1 - pull) * 0.9)
    assert ("they overshoot" in caplog.text) == (pull >= 1)


@pytest.mark.parametrize(("gamma", "rate", "warned"), [(5000, 3e-4, True), (5000, 2e-5, False)])
def test_too_large_a_gamma_warns_once_of_overshooting(
    gamma: float, rate: float, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    stepper = Stepper(tiny_network(), RecAdam(gamma=gamma))
    optimizer = torch.optim.AdamW(stepper.network.model.parameters(), lr=rate)
    with caplog.at_level(logging.WARNING, logger="temper"):
        for _ in range(2):
            stepper.backward(rows(5, 3))
            stepper.step(optimizer)
    assert caplog.text.count("they overshoot") == int(warned)


@pytest.mark.parametrize(("total", "warned"), [(249, True), (250, False), (0, False)])
def test_a_run_shorter_than_t0_warns(
    total: int, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    stepper = Stepper(tiny_network(), RecAdam(), total=total)
    optimizer = torch.optim.AdamW(stepper.network.model.parameters(), lr=1e-5)
    with caplog.at_level(logging.WARNING, logger="temper"):
        stepper.backward(rows(5, 3))
        stepper.step(optimizer)
    assert ("Set t0 below the number of steps" in caplog.text) == warned


def test_an_unidentified_head_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="temper"):
        Recall().init(Parameters({}, frozenset()))
    assert "classifier cannot be identified" in caplog.text
