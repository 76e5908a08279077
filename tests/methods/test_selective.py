from __future__ import annotations

import math
from typing import Literal

import pytest
import torch
from torch import Tensor, nn

from temper import Stepper, configure
from temper.methods.selection import Selective, SelectiveUpdate
from temper.models.network import Parameters
from temper.seeding import Streams
from temper.types import Gradients, State
from tests.methods.tiny import TinyNetwork, rows, tiny_network, with_rules


def parameters(**sizes: int) -> Parameters:
    """Return vectors by name; names that start with ``block`` are in a block."""
    tensors = {name: nn.Parameter(torch.zeros(size)) for name, size in sizes.items()}
    return Parameters(tensors, frozenset(name for name in sizes if name.startswith("block")))


def gradients_like(params: Parameters, *, seed: int = 0) -> Gradients:
    draws = torch.Generator().manual_seed(seed)
    return {name: torch.randn(p.shape, generator=draws) for name, p in params.tensors.items()}


def masked(
    rule: SelectiveUpdate, params: Parameters, grads: Gradients, *, step: int = 0
) -> Gradients:
    copies = {name: gradient.clone() for name, gradient in grads.items()}
    return rule.transform(copies, params, rule.init(params), Streams(1).at(step=step))


def probability_by_sorting(values: Tensor, rule: SelectiveUpdate) -> Tensor:
    """Write p from Eqs. 7 to 9: by the rank of g^2 among non-zero entries, or in its range."""
    squares = values.flatten().double().square()
    alive = squares[squares > 0]
    smaller, equal = (
        each.double().sum(1) for each in (alive < squares[:, None], alive == squares[:, None])
    )
    fraction = (smaller + equal / 2) / len(alive)
    if rule.settings.normalize == "range":
        fraction = (squares - squares.min()) / (squares.max() - squares.min())
    sign = 1 if rule.settings.orientation == "prose" else -1
    beta, alpha = rule.settings.beta, rule.settings.alpha
    return 1 / (1 + torch.exp(-sign * 2 * beta * (fraction - alpha)))


def mean_keep_probability(alpha: float, beta: float) -> float:
    """Return the mean of p over uniform ranks, the integral of Eq. 9."""
    upper = math.log1p(math.exp(2 * beta * (1 - alpha)))
    return (upper - math.log1p(math.exp(-2 * beta * alpha))) / (2 * beta)


@pytest.mark.parametrize(
    ("normalize", "beta"), [("rank", 1.0), ("rank", 10.0), ("range", 1.0), ("range", 2.0)]
)
@pytest.mark.parametrize("orientation", ["prose", "printed"])
@pytest.mark.parametrize("p_min", [1e-3, 0.0])
def test_the_mean_of_many_masks_is_the_gradient_and_the_kept_fraction_is_p(
    p_min: float, beta: float, orientation: str, normalize: str
) -> None:
    rule = SelectiveUpdate(
        Selective(alpha=0.6, beta=beta, p_min=p_min, orientation=orientation, normalize=normalize)
    )
    params = parameters(block=40, block_other=25)
    # No two in one bucket (they are 1% wide), so that the bucketed ranks are the exact ones.
    sizes = 1.05 ** torch.randperm(65) * torch.randn(65).sign()
    grads = dict(zip(params.tensors, sizes.split([40, 25]), strict=True))
    draws = 500
    each = [masked(rule, params, grads, step=step) for step in range(draws)]
    result = torch.stack([torch.cat(list(one.values())) for one in each]).double()
    gradient = torch.cat(list(grads.values()))
    p = probability_by_sorting(gradient, rule).clamp(min=p_min)
    error = (gradient.double().square() * (1 - p) / p / draws).sqrt()
    assert ((result.mean(0) - gradient).abs() <= 5 * error + 1e-6).all()
    fraction = (result != 0).double().mean(0)
    assert ((fraction - p).abs() <= 5 * (p * (1 - p) / draws).sqrt() + 1e-3).all()
    kept = result != 0
    expected = (gradient / p).expand_as(result)
    # Of 16 bits p is rounded to 1/65536, which is up to .8% of the smallest one; 32 bits are as
    # fine as the gradients themselves.
    torch.testing.assert_close(result[kept], expected[kept], rtol=1e-2 if p_min else 1e-6, atol=0)
    assert (result[~kept] == 0).all()


@pytest.mark.parametrize(("alpha", "beta"), [(0.6, 1.0), (0.9, 10.0), (0.6, 5.0)])
def test_the_kept_fraction_equals_the_closed_form_and_is_reported(
    alpha: float, beta: float
) -> None:
    rule = SelectiveUpdate(Selective(alpha=alpha, beta=beta))
    params = parameters(block=50_000)
    state = rule.init(params)
    result = rule.transform(gradients_like(params), params, state, Streams(1))
    expected = mean_keep_probability(alpha, beta)
    fraction = (result["block"] != 0).double().mean().item()
    assert abs(fraction - expected) < 5 * math.sqrt(0.25 / 50_000) + 1e-3
    assert float(state["kept"]) == pytest.approx(expected, abs=2e-3)


def test_with_range_the_reported_kept_fraction_is_the_measured_one() -> None:
    rule, params = SelectiveUpdate(Selective(normalize="range")), parameters(block=2_000)
    state = rule.init(params)
    result = rule.transform(gradients_like(params), params, state, Streams(1))
    fraction = float((result["block"] != 0).double().mean())
    assert rule.diagnostics(state)["mask/kept"] == pytest.approx(fraction)


def test_zeros_and_tensors_without_a_gradient_are_ignored() -> None:
    params = parameters(block_words=10_000, block=1000, block_unused=5)
    grads = gradients_like(params)
    del grads["block_unused"]
    grads["block_words"][100:] = 0
    result = masked(SelectiveUpdate(Selective()), params, grads)
    assert set(result) == {"block_words", "block"}
    assert not result["block_words"][100:].any()
    alive = torch.cat([result["block_words"][:100], result["block"]])
    fraction = (alive != 0).double().mean().item()
    assert abs(fraction - mean_keep_probability(0.6, 1.0)) < 5 * math.sqrt(0.25 / 1100)


def test_the_scope_is_the_blocks_or_everything() -> None:
    params = parameters(words=500, block=500, head=500)
    grads = gradients_like(params)
    result = masked(SelectiveUpdate(Selective()), params, grads)
    assert torch.equal(result["words"], grads["words"])
    assert torch.equal(result["head"], grads["head"])
    assert (result["block"] == 0).any()
    result = masked(SelectiveUpdate(Selective(scope="all")), params, grads)
    assert all((gradient == 0).any() for gradient in result.values())
    flat = parameters(words=500, head=500)
    result = masked(SelectiveUpdate(Selective()), flat, gradients_like(flat))
    assert all((gradient == 0).any() for gradient in result.values())


@pytest.mark.parametrize("normalize", ["rank", "range"])
def test_parameters_of_one_shape_have_draws_of_their_own(
    normalize: Literal["rank", "range"],
) -> None:
    params = parameters(block=2000, block_other=2000)
    gradient = gradients_like(params)["block"]
    grads = dict.fromkeys(params.tensors, gradient)
    one, other = masked(
        SelectiveUpdate(Selective(p_min=0.2, normalize=normalize)), params, grads
    ).values()
    assert 0.1 < float(((one != 0) != (other != 0)).double().mean()) < 0.9


def test_a_single_entry_has_the_middle_rank() -> None:
    params, state = parameters(block=1), State()
    SelectiveUpdate(Selective(alpha=0.5)).transform(
        {"block": torch.ones(1)}, params, state, Streams(1)
    )
    assert float(state["kept"]) == 0.5


def test_an_empty_scope_changes_no_gradient() -> None:
    params = parameters(words=5, block=5)
    grads = {"words": torch.ones(5)}
    result = masked(SelectiveUpdate(Selective()), params, grads)
    assert torch.equal(result["words"], grads["words"])


def test_without_scaling_kept_entries_are_unchanged() -> None:
    params = parameters(block=500)
    grads = gradients_like(params)
    result = masked(SelectiveUpdate(Selective(scale=False)), params, grads)["block"]
    kept = result != 0
    assert torch.equal(result[kept], grads["block"][kept])
    assert 0 < int(kept.sum()) < 500


def test_the_smallest_probability_bounds_the_scaling() -> None:
    params = parameters(block=100_000)
    grads = gradients_like(params)
    rule = SelectiveUpdate(Selective(alpha=1.0, beta=100.0, p_min=0.25))
    result = masked(rule, params, grads)["block"]
    kept = result != 0
    factor = result[kept] / grads["block"][kept]
    assert factor.max().item() == pytest.approx(4.0)
    assert kept[grads["block"].abs() < 0.5].double().mean().item() == pytest.approx(0.25, abs=0.02)


@pytest.mark.parametrize("normalize", ["rank", "range"])
def test_half_precision_gradients_stay_in_half_precision(normalize: str) -> None:
    params = parameters(block=5000)
    grads = {name: g.to(torch.bfloat16) for name, g in gradients_like(params).items()}
    rule = SelectiveUpdate(Selective(normalize=normalize, orientation="printed"))
    result = masked(rule, params, grads)["block"]
    assert result.dtype == torch.bfloat16
    kept = result != 0
    assert 0 < int(kept.sum()) < 5000
    assert (result[kept].float() / grads["block"][kept].float()).min() > 0.99


def test_non_contiguous_gradients_have_the_same_mask() -> None:
    params = Parameters({"block": nn.Parameter(torch.zeros(30, 20))}, frozenset({"block"}))
    gradient = torch.randn(20, 30).T
    plain = SelectiveUpdate(Selective()).transform(
        {"block": gradient.contiguous()}, params, {}, Streams(1)
    )
    result = SelectiveUpdate(Selective()).transform({"block": gradient}, params, {}, Streams(1))
    assert torch.equal(result["block"], plain["block"])


# Around the optimizer


def stepper_with(rule: SelectiveUpdate, model: TinyNetwork) -> Stepper:
    return Stepper(model, with_rules(rule), seed=1)


def test_the_mask_is_applied_after_clipping() -> None:
    model, plain = tiny_network(rate=0.0), tiny_network(rate=0.0)
    stepper = stepper_with(SelectiveUpdate(Selective()), model)
    stepper.backward(rows(5, 3))
    in_blocks = torch.cat([p.grad.flatten() for p in model.layers.parameters()])
    assert not bool((in_blocks == 0).any())
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
    stepper.step(torch.optim.SGD(model.parameters(), lr=1.0))
    in_blocks = torch.cat([p.grad.flatten() for p in model.layers.parameters()])
    assert (in_blocks == 0).any()
    Stepper(plain, "plain", seed=1).backward(rows(5, 3))
    expected = torch.cat([p.grad.flatten() for p in plain.parameters()]).norm()
    assert norm.item() == pytest.approx(expected.item())


@pytest.mark.parametrize("name", ["uegr", "r_at_su"])
def test_a_step_changes_each_weight_by_g_over_p_or_not_at_all(name: str) -> None:
    model = tiny_network(width=8)
    stepper = Stepper(model, configure(name, {"mask": {"alpha": 0.6, "beta": 5.0}}), seed=4)
    stepper.backward(rows(5, 3, 6))
    raw = {key: p.grad.clone() for key, p in model.named_parameters()}
    before = {key: p.detach().clone() for key, p in model.named_parameters()}
    stepper.step(torch.optim.SGD(model.parameters(), lr=1.0))
    inside = [key for key in raw if key.startswith("layers.")]
    p = probability_by_sorting(
        torch.cat([raw[key].flatten() for key in inside]),
        SelectiveUpdate(Selective(alpha=0.6, beta=5.0)),
    ).clamp(min=1e-3)
    moved = torch.cat([(before[k] - model.get_parameter(k)).flatten().detach() for k in inside])
    gradient = torch.cat([raw[key].flatten() for key in inside])
    still = moved == 0
    assert 0 < int(still.sum()) < len(moved)
    torch.testing.assert_close(moved[~still], (gradient / p)[~still], rtol=5e-2, atol=1e-9)
    for key in set(raw) - set(inside):
        torch.testing.assert_close(before[key] - model.get_parameter(key), raw[key])
