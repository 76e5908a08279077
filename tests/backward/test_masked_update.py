"""Masks on the update, after a share of the run, and by importance averaged over steps."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from temper import UEGR, Stepper
from temper.backward.selective import SelectiveUpdate
from temper.errors import CompositionError, SettingError
from temper.methods import configure
from temper.models.network import Parameters
from temper.seeding import Streams
from temper.training.config import RunConfig
from temper.types import Step
from tests.backward.test_selective import parameters, probability_by_sorting
from tests.methods.tiny import rows, tiny_network
from tests.methods.weights import copies, same

UPDATE = {"kind": "update", "scope": "all"}


def spread(count: int, *, seed: int = 0) -> Tensor:
    """Return gradients no two of which lie in one bucket, so that bucketed ranks are exact."""
    draws = torch.Generator().manual_seed(seed)
    signs = torch.randn(count, generator=draws).sign()
    return 1.05 ** torch.randperm(count, generator=draws).double() * signs


def settled(
    rule: SelectiveUpdate, gradient: Tensor, update: Tensor, *, step: int, state: Any = None
) -> Tensor:
    """Return what is left of an update that some optimiser makes."""
    params = parameters(block=len(update))
    with torch.no_grad():
        params.tensors["block"].fill_(3.0)
    state = rule.init(params) if state is None else state
    rule.enter(params, state, Step(step, total=1000), Streams(1).at(step=step))
    grads = {"block": gradient.float()}
    found = rule.transform(grads, params, state, Streams(1).at(step=step))
    assert torch.equal(found["block"], gradient.float())
    with torch.no_grad():
        params.tensors["block"].add_(update)
        rule.settle(params, state, Step(step))
    assert "update" not in state
    return params.tensors["block"].detach().double() - 3.0


@pytest.mark.parametrize("normalise", ["rank", "range"])
@pytest.mark.parametrize("decay", [0.0, 0.5])
def test_the_mean_over_many_draws_is_the_whole_update(decay: float, normalise: str) -> None:
    rule = SelectiveUpdate(target="update", importance_decay=decay, normalise=normalise, p_min=0.05)
    gradient, update = spread(65), torch.randn(65, generator=torch.Generator().manual_seed(1))
    draws = 600
    found = torch.stack([settled(rule, gradient, update, step=step) for step in range(draws)])
    # An average that has seen this gradient alone has its ranks and its range.
    p = probability_by_sorting(gradient.float(), rule).clamp(min=0.05)
    error = (update.double().square() * (1 - p) / p / draws).sqrt()
    assert ((found.mean(0) - update).abs() <= 5 * error + 1e-6).all()
    kept = found != 0
    share = kept.double().mean(0)
    assert ((share - p).abs() <= 5 * (p * (1 - p) / draws).sqrt() + 1e-3).all()
    torch.testing.assert_close(found[kept], (update / p).expand_as(found)[kept], rtol=1e-3, atol=0)


def test_the_moments_see_the_whole_gradient_and_those_of_a_masked_gradient_do_not() -> None:
    def moments(mask: Any) -> list[Tensor]:
        model = tiny_network(rate=0.0)
        method = UEGR(mask=mask, adversarial_weight=0.0, divergence_weight=0.0)
        stepper = Stepper(model, method)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        stepper.backward(rows(5, 3))
        stepper.step(optimizer)
        return [optimizer.state[p]["exp_avg_sq"] for p in model.parameters()]

    plain = moments("off")
    assert all(map(torch.equal, moments(UPDATE), plain))
    assert not all(map(torch.equal, moments({"scope": "all"}), plain))


def test_what_is_masked_stays_against_momentum_and_decay() -> None:
    model = tiny_network(rate=0.0)
    stepper = Stepper(model, UEGR(mask={**UPDATE, "alpha": 0.9, "beta": 5.0}))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.5)
    stays = []
    for step in range(3):
        before = copies(model)
        optimizer.zero_grad()
        stepper.backward(rows(5, 3, seed=step))
        stepper.step(optimizer)
        stays.append(sum(int((before[n] == v).sum()) for n, v in copies(model).items()))
    entries = sum(p.numel() for p in model.parameters())
    assert all(entries > stay > 0.5 * entries for stay in stays)


@pytest.mark.parametrize("normalise", ["rank", "range"])
def test_importance_is_the_average_of_squared_gradients(normalise: str) -> None:
    """In double precision, written out: s = d s + (1 - d) g^2."""
    rule = SelectiveUpdate(importance_decay=0.8, normalise=normalise, p_min=0.05)
    params, draws = parameters(block=65), 400
    expected = torch.zeros(65, dtype=torch.float64)
    state = rule.init(params)
    for step in range(3):
        gradient = spread(65, seed=step).float()
        expected = 0.8 * expected + 0.2 * gradient.double().square()
        rule.transform({"block": gradient.clone()}, params, state, Streams(1).at(step=step))
    torch.testing.assert_close(state["average"]["block"].double(), expected, rtol=1e-5, atol=0)
    p = probability_by_sorting(expected.sqrt(), rule).clamp(min=0.05)
    last = spread(65, seed=3).float()
    p = probability_by_sorting((0.8 * expected + 0.2 * last.double().square()).sqrt(), rule)
    p = p.clamp(min=0.05)
    found = []
    for step in range(draws):
        own = {"average": {"block": state["average"]["block"].clone()}}
        masked = rule.transform({"block": last.clone()}, params, own, Streams(1).at(step=step))
        found.append(masked["block"].double())
    each = torch.stack(found)
    error = (last.double().square() * (1 - p) / p / draws).sqrt()
    # Two averages in one bucket of 1 % take its mid-rank, which moves p by one of 65 ranks.
    assert ((each.mean(0) - last).abs() <= 5 * error + 1e-6).all()
    share = (each != 0).double().mean(0)
    assert ((share - p).abs() <= 5 * (p * (1 - p) / draws).sqrt() + 2e-2).all()


def test_a_scaled_loss_weighs_no_step_more_and_an_overflow_is_left_out() -> None:
    rule = SelectiveUpdate(importance_decay=0.5, clipping="before")
    params, gradient = parameters(block=9), spread(9).float()
    averages = []
    for scale in (1.0, 1024.0):
        state = rule.init(params)
        step = Step(0, loss_scale=scale)
        rule.penalise({"block": gradient * scale}, params, state, step, Streams(1))
        averages.append(state["average"]["block"].clone())
    torch.testing.assert_close(averages[0], averages[1])
    rule.penalise({"block": gradient * torch.inf}, params, state, step, Streams(1))
    assert torch.equal(state["average"]["block"], averages[1])


@pytest.mark.parametrize("mask", [{"scope": "all"}, UPDATE])
def test_until_its_share_of_the_run_nothing_is_masked(mask: dict[str, Any]) -> None:
    courses = []
    for settings in ({**mask, "begin": 0.5}, mask, "off"):
        model = tiny_network(rate=0.0)
        method = UEGR(mask=settings, adversarial_weight=0.0, divergence_weight=0.0)
        stepper = Stepper(model, method, total=4)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        course = []
        for step in range(3):
            optimizer.zero_grad()
            stepper.backward(rows(5, 3, seed=step))
            stepper.step(optimizer)
            course.append(copies(model))
        courses.append(course)
    late, early, plain = courses
    assert same(late[1], plain[1])
    assert not same(late[2], plain[2])
    assert not same(early[0], plain[0])
    with pytest.raises(SettingError, match="must know how many steps"):
        Stepper(tiny_network(), UEGR(mask={**mask, "begin": 0.5})).backward(rows(5, 3))


def test_weights_in_half_precision_move_by_the_whole_factor() -> None:
    weight = torch.nn.Parameter(torch.zeros(1000, dtype=torch.bfloat16))
    params = Parameters({"block": weight}, frozenset({"block"}))
    rule = SelectiveUpdate(target="update", normalise="range", alpha=1.0, p_min=0.3)
    state = rule.init(params)
    gradient = torch.linspace(1e-6, 1e-5, 1000, dtype=torch.bfloat16)
    rule.transform({"block": gradient}, params, state, Streams(1))
    factor = state["update"]["block"][0].clone()
    with torch.no_grad():
        weight.add_(0.5)
        rule.settle(params, state, Step(0))
    assert torch.equal(weight.detach(), (0.5 * factor).to(torch.bfloat16))


def test_what_cannot_be_read_is_refused() -> None:
    with pytest.raises(SettingError, match="'freeze_masked' belongs to the kind 'selective'"):
        UEGR(mask={**UPDATE, "freeze_masked": True})
    with pytest.raises(SettingError, match="importance_decay averages over steps"):
        UEGR(mask={"refresh": "epoch", "importance_decay": 0.5})
    with pytest.raises(CompositionError, match="both claim the settling"):
        configure("rec_adam + uegr", {"uegr": {"mask": "update"}})


def test_from_scratch_the_update_of_all_weights_is_masked() -> None:
    tree = {"model": "text_cnn", "data": {"source": "demo"}}
    method = {"name": "uegr", "mask": {"kind": "update", "p_min": 0.2}}
    mask = RunConfig.of({**tree, "method": method}).method_config().mask
    assert (mask.kind, mask.scope, mask.p_min) == ("update", "all", 0.2)
