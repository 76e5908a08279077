"""Masks that last an epoch: their saliency, their memory, and resuming."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from temper import Stepper
from temper.methods import configure
from temper.methods.selection import EpochSelectiveUpdate, Selective
from temper.seeding import Streams
from temper.types import Step
from tests.methods.test_selective import (
    gradients_like,
    parameters,
    probability_by_sorting,
    stepper_with,
)
from tests.methods.tiny import rows, tiny_bert, tiny_network


def epoch_rule(**settings: object) -> EpochSelectiveUpdate:
    return EpochSelectiveUpdate(Selective(**{"alpha": 0.5, "beta": 20.0, **settings}))


def test_an_epoch_s_importance_is_the_sum_of_squared_gradients() -> None:
    rule, params = epoch_rule(), parameters(words=3, block=3)
    state = rule.init(params)
    rule.accumulate({"block": torch.tensor([1.0, -2.0, 0.0])}, params, state)
    rule.accumulate({"block": torch.tensor([3.0, 1.0, 0.0]), "words": torch.ones(3)}, params, state)
    assert set(state["importance"]) == {"block"}
    assert state["importance"]["block"].tolist() == [10.0, 5.0, 0.0]


@pytest.mark.parametrize("p_min", [1e-3, 0.0, 0.3])
def test_an_epoch_s_mask_divides_by_the_probability_of_its_byte(p_min: float) -> None:
    rule, params = epoch_rule(beta=3.0, p_min=p_min), parameters(block=5000)
    gradient = gradients_like(params)["block"]
    state = rule.init(params)
    rule.accumulate({"block": gradient}, params, state)
    rule.begin_epoch(params, state, Streams(1), epoch=0)
    result = rule.transform({"block": gradient.clone()}, params, state, Streams(1))["block"]
    kept = result != 0
    assert torch.equal(kept, state["codes"]["block"] > 0)
    p = gradient[kept].double() / result[kept].double()
    sorted_p = probability_by_sorting(gradient, rule)[kept].clamp(min=p_min)
    # A bucket of ranks is 1% of the magnitudes wide; the byte adds 1.4% (or 4.5%).
    torch.testing.assert_close(p, sorted_p, rtol=0.06, atol=0)
    assert float(state["kept"]) == pytest.approx(kept.double().mean().item())


@pytest.mark.parametrize("normalize", ["rank", "range"])
def test_a_mask_lasts_an_epoch_and_follows_the_epoch_before(normalize: str) -> None:
    rule, params = epoch_rule(normalize=normalize), parameters(block=2000)
    state = rule.init(params)
    first_half = torch.zeros(2000)
    first_half[:1000] = torch.rand(1000) * 0.1 + 1
    first_half[1000:] = torch.rand(1000) * 0.1 + 0.01
    rule.accumulate({"block": first_half}, params, state)
    rule.begin_epoch(params, state, Streams(1), epoch=0)
    second_half = first_half.flip(0)

    def step(number: int) -> Tensor:
        grads, rng = {"block": second_half.clone()}, Streams(1, step=number)
        grads = rule.regularize(grads, params, state, Step(), rng)
        return rule.transform(grads, params, state, rng)["block"] != 0

    kept = step(0)
    assert kept[:1000].double().mean() > 0.9
    assert kept[1000:].double().mean() < 0.1
    assert torch.equal(step(1), kept)
    # After a resume within the epoch the mask stays.
    rule.begin_epoch(params, state, Streams(1, step=2), epoch=0)
    assert torch.equal(step(2), kept)
    assert state["observed"] == 3
    rule.begin_epoch(params, state, Streams(1, step=3), epoch=1)
    assert state["observed"] == 0
    kept = step(3)
    assert kept[:1000].double().mean() < 0.1
    assert kept[1000:].double().mean() > 0.9


def test_parameters_of_one_shape_have_draws_of_their_own() -> None:
    rule, params = epoch_rule(beta=1.0), parameters(block=500, block_other=500)
    state = rule.init(params)
    rule.accumulate(dict.fromkeys(params.tensors, gradients_like(params)["block"]), params, state)
    rule.begin_epoch(params, state, Streams(1), epoch=0)
    assert not torch.equal(*state["codes"].values())


def test_the_mean_over_epochs_masks_is_the_gradient() -> None:
    rule, params = epoch_rule(beta=2.0), parameters(block=30)
    gradient = torch.linspace(0.5, 2, 30)
    total = torch.zeros(30, dtype=torch.float64)
    for epoch in range(1000):
        state = rule.init(params)
        rule.accumulate({"block": gradient}, params, state)
        rule.begin_epoch(params, state, Streams(1), epoch=epoch)
        total += rule.transform({"block": gradient.clone()}, params, state, Streams(1))["block"]
    p = probability_by_sorting(gradient, rule)
    error = gradient * ((1 - p) / p / 1000).sqrt()
    assert ((total / 1000 - gradient).abs() <= 5 * error + 1e-6).all()


def test_preparing_sums_squared_clean_gradients_and_changes_no_weight() -> None:
    model = tiny_network(rate=0.0)
    stepper = stepper_with(epoch_rule(), model)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    batches = [rows(5, 3), rows(6, seed=1)]
    stepper.prepare(batches)
    expected = 0
    for batch in batches:
        logits = model(batch["input_ids"], batch["attention_mask"])
        loss = nn.functional.cross_entropy(logits, batch["labels"])
        (gradient,) = torch.autograd.grad(loss, model.layers[0].inner.weight)
        expected = expected + gradient.square()
    importance = stepper.state["selective"]["importance"]["layers.0.inner.weight"]
    torch.testing.assert_close(importance, expected.float())
    assert set(stepper.state["selective"]["importance"]) == {
        name for name in before if name.startswith("layers.")
    }
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())
    assert all(p.grad is None for p in model.parameters())
    assert stepper.number == 0


def test_an_epoch_without_gradients_uses_the_previous_importance() -> None:
    """While only the head trains (lp_ft), the blocks have no gradient to be ranked by."""
    stepper = Stepper(
        tiny_bert(), configure("lp_ft + roast", {"lp_ft": {"probe": {"fraction": 0.6}}}), total=3
    )
    optimizer = torch.optim.AdamW(stepper.network.model.parameters(), lr=1e-3)
    stepper.prepare([rows(5, 3)])
    masks = []
    for epoch in range(3):
        stepper.begin_epoch(epoch)
        codes = stepper.state["selective"]["codes"]
        masks.append(torch.cat([code.flatten() > 0 for code in codes.values()]))
        optimizer.zero_grad()
        stepper.backward(rows(5, 3, seed=epoch))
        stepper.step(optimizer)
    # Drawn again from the same probabilities.
    assert not torch.equal(masks[0], masks[1])
    assert masks[0].double().mean() == pytest.approx(float(masks[1].double().mean()), abs=0.1)


@pytest.mark.parametrize("scale", [2.0, 64.0])
def test_an_overflowed_step_does_not_change_the_importance(scale: float) -> None:
    rule = epoch_rule()
    params = parameters(block=4)
    state = rule.init(params)
    rule.accumulate({"block": torch.ones(4)}, params, state)
    rule.begin_epoch(params, state, Streams(1), epoch=0)

    def step(gradient: list[float], by: float) -> Tensor:
        grads = {"block": torch.tensor(gradient) * by}
        grads = rule.regularize(grads, params, state, Step(loss_scale=by), Streams(1))
        # Between the two the scaler is taken out, and the norm is clipped.
        grads = {"block": grads["block"] / by / 10}
        return rule.transform(grads, params, state, Streams(1))["block"]

    step([1.0, 2.0, 3.0, 4.0], scale)
    overflown = step([1.0, float("inf"), 3.0, 4.0], scale)
    # The scaler must still see it, to skip the step.
    assert not torch.isfinite(overflown).all()
    step([1.0, 2.0, 3.0, 4.0], 32.0)
    assert state["observed"] == 2
    assert state["importance"]["block"].tolist() == [2.0, 8.0, 18.0, 32.0]
