"""Child-Tuning: F keeps the mean gradient; D keeps the largest squared gradients."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from temper.errors import TemperError
from temper.functional.masks import MANY_ROWS
from temper.methods.child_tuning_d import ChildTuningD, ChosenMask, inside_top
from temper.methods.child_tuning_f import ChildTuningF, RandomMask
from temper.models.blocks import Parameters
from temper.seeding import Streams
from tests.methods.tiny import rows
from tests.methods.weights import copies, expected_gradient, leaves, stepper_of, two_batches

NONE = Parameters({}, blocks=frozenset())


def gradients() -> dict[str, Tensor]:
    """Return one gradient taller than the shortcut asks for, most of whose rows are zero."""
    draws = torch.Generator().manual_seed(0)
    tall = torch.zeros(MANY_ROWS, 2, dtype=torch.float64)
    tall[[1, 5, 400]] = torch.randn(3, 2, generator=draws, dtype=torch.float64)
    other = torch.randn(6, 5, generator=draws, dtype=torch.float64).T
    return {"words": tall, "matrix": other, "bias": torch.ones(7, dtype=torch.float64)}


# Child-Tuning-F


def test_every_draw_zeroes_or_scales_and_their_mean_is_the_gradient() -> None:
    keep, draws = 0.3, 800
    rule = RandomMask(keep=keep, chunk=8)
    given_gradients = gradients()
    sums = {name: torch.zeros_like(g) for name, g in given_gradients.items()}
    for number in range(draws):
        passed = {name: g.clone() for name, g in given_gradients.items()}
        masked = rule.transform(passed, NONE, {}, Streams(0, step=number))
        for name, g in given_gradients.items():
            ratio = (masked[name] / g)[g != 0]
            scaled = (ratio - 1 / keep).abs() < 1e-3 / keep
            assert bool(((ratio == 0) | scaled).all())
            assert bool((masked[name][g == 0] == 0).all())
            sums[name] += masked[name]
    margin = 5 * math.sqrt((1 - keep) / keep / draws)
    for name, g in given_gradients.items():
        assert bool(((sums[name] / draws - g).abs() <= margin * g.abs()).all())


def test_every_parameter_is_masked_after_clipping_and_weights_still_decay() -> None:
    stepper = stepper_of(ChildTuningF(reserve_p=0.3))
    batches = two_batches()
    stepper.backward(*batches)
    plain = {name: g.clone() for name, g in stepper.params.gradients().items()}
    before = copies(stepper.network.model)
    stepper.step(torch.optim.AdamW(stepper.params.tensors.values(), lr=0.1, weight_decay=0.5))
    after = copies(stepper.network.model)
    for name, g in stepper.params.gradients().items():
        kept = g != 0
        assert bool((plain[name] != 0).any())
        torch.testing.assert_close(g[kept], plain[name][kept] / 0.3, rtol=1e-4, atol=0)
        still = ~kept & (before[name] != 0)
        torch.testing.assert_close(after[name][still], before[name][still] * 0.95)
    assert 0.1 < stepper.diagnostics()["mask/kept"] < 0.5


def test_parameters_of_one_shape_have_draws_of_their_own() -> None:
    state: dict[str, Any] = {}
    grads = {name: torch.ones(40, 5) for name in ("query", "key")}
    result = RandomMask(keep=0.5).transform(grads, NONE, state, Streams(0))
    kept = torch.stack(list(result.values())) != 0
    assert float(state["kept"]) == pytest.approx(float(kept.double().mean()))
    # Of 200 fair draws 100 agree, 7 the standard deviation.
    assert int((result["query"] == result["key"]).sum()) == pytest.approx(100, abs=35)


def test_a_slice_of_a_gradient_has_the_draws_of_its_offset() -> None:
    rule, whole = RandomMask(keep=0.5), torch.ones(4096)
    part = whole[1024:].clone()
    rule._thin([whole], [7], [0])
    rule._thin([part], [7], [1024])
    assert torch.equal(part, whole[1024:])


# Child-Tuning-D


def importance_by_hand(batches: list[dict[str, Tensor]], largest: float) -> dict[str, Tensor]:
    """Sum clipped and squared gradients of the clean loss without dropout."""
    network = stepper_of("plain", rate=0.0).network.model
    weights = leaves(network)
    ones: dict[str, list[Any]] = {}
    for name, module in network.named_modules():
        if isinstance(module, torch.nn.Dropout):
            ones[name] = [torch.ones(99, 99, 4, dtype=torch.float64)]
    ones["before_head"] = [torch.ones(99, 4, dtype=torch.float64)]
    sums = {name: torch.zeros_like(w) for name, w in weights.items()}
    for batch in batches:
        for name, g in expected_gradient(weights, [batch], ones).items():
            norm = math.sqrt(sum(float(entry) ** 2 for entry in g.flatten()))
            sums[name] += (g * min(1.0, largest / norm)) ** 2
    return sums


@pytest.mark.parametrize("largest", [1.0, 0.05])
@pytest.mark.parametrize("fraction", [0.3, 0.01, 0.77])
def test_exactly_the_fraction_with_the_largest_squared_gradients_trains(
    fraction: float, largest: float
) -> None:
    batches = two_batches()
    stepper = stepper_of(ChildTuningD(reserve_p=fraction, largest_norm=largest), rate=0.0)
    stepper.prepare(batches)
    stepper.begin_epoch(0)
    sums = importance_by_hand(batches, largest)
    blocks = [name for name in sums if name.startswith("layers.")]
    everything = torch.cat([sums[name].flatten() for name in blocks])
    count = round(fraction * len(everything))
    lowest = everything.sort(descending=True).values[count - 1]

    stepper.backward(*batches)
    plain = {name: g.clone() for name, g in stepper.params.gradients().items()}
    stepper.step(torch.optim.SGD(stepper.params.tensors.values(), lr=0.1))
    kept = 0
    for name, g in stepper.params.gradients().items():
        if name in blocks:
            # In single precision an entry at the threshold may fall to either side.
            clear = (sums[name] - lowest).abs() > 1e-5 * lowest
            expected = torch.where(sums[name] >= lowest, plain[name], 0.0)
            assert torch.equal(g[clear], expected[clear])
            kept += int((g != 0).sum())
        else:
            assert torch.equal(g, plain[name])
    assert kept == count
    assert stepper.diagnostics()["mask/kept"] == pytest.approx(count / len(everything))


@given(
    st.lists(
        st.lists(st.integers(0, 3), min_size=1, max_size=6).map(
            lambda row: torch.tensor(row, dtype=torch.float32)
        ),
        min_size=1,
        max_size=4,
    ),
    st.floats(0, 1),
)
def test_ties_are_broken_by_position_so_that_the_fraction_is_exact(
    values: list[Tensor], fraction: float
) -> None:
    inside = inside_top(values, fraction=fraction)
    flat = torch.cat(values).tolist()
    count = round(fraction * len(flat))
    # Python's sort is stable: equal values keep their order.
    ranked = sorted(range(len(flat)), key=lambda place: -flat[place])
    expected = torch.zeros(len(flat), dtype=torch.bool)
    expected[ranked[:count]] = True
    assert torch.equal(torch.cat(inside), expected)
    assert [mask.shape for mask in inside] == [value.shape for value in values]


def test_importance_that_is_not_finite_raises_an_error() -> None:
    with pytest.raises(TemperError, match="not finite, so they cannot be ranked"):
        inside_top([torch.tensor([1.0, float("nan")])], fraction=0.5)


def test_importance_is_released_and_later_passes_do_not_change_the_mask() -> None:
    stepper = stepper_of("child_tuning_d")
    entries = {name: t.numel() for name, t in stepper.params.tensors.items() if "layers" in name}
    stepper.prepare(two_batches())
    stepper.begin_epoch(0)
    state = stepper.state["child_tuning_d"]
    assert state["importance"] == {}
    assert {name: mask.numel() for name, mask in state["training"].items()} == entries
    assert all(mask.dtype == torch.bool for mask in state["training"].values())
    masks = {name: mask.clone() for name, mask in state["training"].items()}

    # A resumed run: the state comes back, and nothing is measured again.
    other = stepper_of("child_tuning_d")
    other.load_state_dict(stepper.state_dict())
    other.begin_epoch(0)
    other.prepare([rows(6, 6, seed=9)])
    other.begin_epoch(1)
    result = other.state["child_tuning_d"]["training"]
    assert all(torch.equal(result[name], mask) for name, mask in masks.items())
    other.backward(*two_batches())
    other.step(torch.optim.SGD(other.params.tensors.values(), lr=0.1))
    assert other.diagnostics()["mask/kept"] == pytest.approx(0.3, abs=0.02)


def test_missing_input_is_reported_before_training() -> None:
    stepper = stepper_of("child_tuning_d")
    with pytest.raises(TemperError, match=r"Call prepare\(batches\) once before the first epoch"):
        stepper.begin_epoch(0)
    stepper.backward(*two_batches())
    with pytest.raises(TemperError, match=r"no mask yet. Call prepare\(batches\) once"):
        stepper.step(torch.optim.SGD(stepper.params.tensors.values(), lr=0.1))


def test_without_blocks_all_parameters_are_ranked() -> None:
    tensors = {"words": torch.nn.Parameter(torch.ones(3, 2))}
    assert ChosenMask().names(Parameters(tensors, blocks=frozenset())) == ["words"]


@pytest.mark.parametrize("largest", [0.5, 1e-6])
def test_each_tensor_is_clipped_as_torch_clips_it_squared_and_added_in_single_precision(
    largest: float,
) -> None:
    weight = torch.nn.Parameter(torch.zeros(3, 2).bfloat16())
    rule, params = ChosenMask(largest_norm=largest), Parameters({"w": weight}, frozenset())
    state, expected = rule.init(params), torch.zeros(3, 2)
    for number, size in enumerate((0.02, 1e-6, 30.0), 1):
        gradient = size * torch.ones(3, 2).bfloat16()
        rule.accumulate({"w": gradient}, params, state)
        clipped = torch.nn.Parameter(torch.zeros(3, 2))
        clipped.grad = gradient.float()
        torch.nn.utils.clip_grad_norm_(clipped, largest)
        expected += clipped.grad.square()
        assert state["observed"] == number
    assert state["importance"]["w"].dtype == torch.float32
    torch.testing.assert_close(state["importance"]["w"], expected, rtol=1e-5, atol=0)
