"""Mixout: the mixed weights, their mean, the gradient through them, and restored weights."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import TrainerCallback

from temper import RobustTrainer, Stepper
from temper.methods import configure
from temper.methods.mixout import Mixing, Mixout
from temper.models.blocks import Parameters
from temper.seeding import Streams
from temper.types import Step
from tests.backward.test_rule import arguments, dataset
from tests.methods.tiny import rows, tiny_bert, with_rules
from tests.methods.weights import (
    PlantedError,
    close,
    copies,
    expected_loss,
    leaves,
    same,
    step_of,
    stepper_of,
    two_batches,
)

MIXED = [f"layers.{block}.{layer}.weight" for block in (0, 1) for layer in ("inner", "outer")]


def away_from_start(stepper: Stepper) -> dict[str, Tensor]:
    """Move the weights as training would, and return them."""
    draws = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for tensor in stepper.params.tensors.values():
            tensor.add_(torch.randn(tensor.shape, generator=draws, dtype=torch.float64), alpha=0.3)
    return copies(stepper.network.model)


def seen_in_the_passes(stepper: Stepper) -> list[dict[str, Tensor]]:
    seen: list[dict[str, Tensor]] = []
    stepper.network.model.register_forward_pre_hook(lambda module, _: seen.append(copies(module)))
    return seen


@pytest.mark.parametrize("unit", ["entry", "neuron"])
@pytest.mark.parametrize("scope", ["blocks", "all"])
@pytest.mark.parametrize("chunk", [1 << 18, 5])
def test_the_passes_see_mixed_weights_and_the_gradient_goes_through_the_mixing(
    unit: Any, scope: Any, chunk: int
) -> None:
    rule = Mixing(probability=0.5, unit=unit, scope=scope, chunk=chunk)
    stepper = stepper_of(with_rules(rule))
    before = away_from_start(stepper)
    seen = seen_in_the_passes(stepper)
    batches = two_batches()
    logs, result, drops = step_of(stepper, batches)
    assert same(before, copies(stepper.network.model))
    assert same(seen[0], seen[1])
    start = stepper.params.start
    names = [*MIXED, *(["head.weight"] if scope == "all" else [])]
    assert {n for n in before if not torch.equal(before[n], seen[0][n])} == set(names)

    # M is where the passes saw the start's side; with p = 1/2 what stays is 2 w - u.
    weights = leaves(stepper.network.model)
    mixed = dict(weights)
    fractions, by_neuron, masks = [], [], []
    for name in names:
        w, u = weights[name], start[name]
        replaced = torch.isclose(seen[0][name], u, rtol=0, atol=1e-12)
        masks.append(replaced)
        fractions.append(replaced.double().mean().item())
        by_neuron.append(torch.equal(replaced, replaced[:1].expand_as(replaced)))
        m = replaced.to(w.dtype)
        mixed[name] = ((1 - m) * w + m * u - 0.5 * u) / (1 - 0.5)
        torch.testing.assert_close(mixed[name].detach(), seen[0][name], rtol=1e-12, atol=1e-12)
    assert 0 < sum(fractions) < len(fractions)
    assert all(by_neuron) if unit == "neuron" else not any(by_neuron)
    # Matrices of one shape have draws of their own.
    assert any(not torch.equal(masks[0], each) for each in masks[1:])
    # A matrix loses some of its neurons, not all or none.
    assert any(0 < fraction < 1 for fraction in fractions)
    # A neuron counts as one, however many weights go out of it.
    units = [before[name][slice(None) if unit == "entry" else 0].numel() for name in names]
    gone = sum(fraction * n for fraction, n in zip(fractions, units, strict=True)) / sum(units)
    assert logs["mask/kept"] == pytest.approx(1 - gone)
    total = expected_loss(mixed, batches, drops)
    expected = torch.autograd.grad(total, list(weights.values()))
    close(result, dict(zip(weights, expected, strict=True)))
    assert logs["loss"] == pytest.approx(total.item(), rel=1e-9)


@pytest.mark.parametrize("unit", ["entry", "neuron"])
def test_the_mean_over_draws_is_the_weight(unit: str) -> None:
    stepper = stepper_of(Mixout(probability=0.7, unit=unit))
    before = away_from_start(stepper)
    draws = 600
    sums = {name: torch.zeros_like(before[name]) for name in MIXED}
    stayed = {name: torch.zeros_like(before[name]) for name in MIXED}
    for number in range(draws):
        streams = Streams(5).at(step=number)
        stepper.rule.before_forward(stepper.params, stepper.state, Step(number), streams)
        for name in MIXED:
            sums[name] += stepper.params.tensors[name].detach()
            stayed[name] += stepper.params.tensors[name].detach() != stepper.params.start[name]
        stepper.rule.after_backward(stepper.params, stepper.state)
    for name in MIXED:
        fraction = 1 - 0.7
        # Five standard errors of a Bernoulli mean.
        margin = 5 * math.sqrt(fraction * (1 - fraction) / draws)
        assert float((stayed[name] / draws - fraction).abs().max()) < margin
        apart = (before[name] - stepper.params.start[name]).abs()
        off = (sums[name] / draws - before[name]).abs()
        assert bool((off <= apart * margin / fraction + 1e-9).all())


@pytest.mark.parametrize("other", ["adv_weight", "awp"])
def test_the_order_of_mixout_and_an_ascent_does_not_matter(other: str) -> None:
    result = []
    for name in (f"mixout + {other}", f"{other} + mixout"):
        stepper = stepper_of(configure(name))
        away_from_start(stepper)
        stepper.backward(*two_batches())
        result.append(stepper.params.gradients())
    assert same(*result)


def test_backward_adds_to_the_gradient_that_is_there() -> None:
    twice, once = stepper_of("mixout"), stepper_of("mixout")
    batch = rows(5, 3)
    away_from_start(twice), away_from_start(once)
    once.backward(batch)
    for name, gradient in once.params.gradients().items():
        twice.params.tensors[name].grad = gradient.clone()
    twice.backward(batch)
    doubled = {name: 2 * g for name, g in once.params.gradients().items()}
    close(twice.params.gradients(), doubled)


def test_a_parameter_unused_in_a_pass_keeps_its_earlier_gradient() -> None:
    stepper = stepper_of("mixout")
    params, state = stepper.params, stepper.state
    mixed = MIXED[0]
    params.tensors[mixed].grad = torch.full_like(params.tensors[mixed], 3.0)
    stepper.rule.before_forward(params, state, Step(), Streams(5))
    # Set aside, for the passes to have one of their own.
    assert params.gradients() == {}
    # A byte an entry.
    assert state["mixout"]["mixed"][mixed][1].dtype == torch.bool
    stepper.rule.after_backward(params, state)
    result = params.gradients()
    assert list(result) == [mixed]
    assert (result[mixed] == 3).all()


def test_a_failing_callback_between_micro_batches_restores_the_weights(tmp_path: Path) -> None:
    class Failing(TrainerCallback):
        def on_substep_end(self, *_: Any, **__: Any) -> None:
            if trainer.state.global_step:
                raise PlantedError

    model = tiny_bert()
    after: list[dict[str, Tensor]] = []
    settings = arguments(tmp_path, gradient_accumulation_steps=2)
    trainer = RobustTrainer(
        model, settings, method="mixout", train_dataset=dataset(), callbacks=[Failing()]
    )
    trainer.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer.optimizer.register_step_post_hook(lambda *_: after.append(copies(model)))
    with pytest.raises(PlantedError):
        trainer.train()
    assert same(after[0], copies(model))


def test_temporary_weights_of_a_step_are_not_in_the_checkpoint() -> None:
    stepper = stepper_of("mixout")
    stepper.backward(*two_batches())
    saved = stepper.state_dict()
    assert set(saved["rule"]["mixout"]) == {"kept"}
    assert set(saved["start"]) == set(stepper.params.tensors)


def parameters(**shapes: tuple[int, ...]) -> dict[str, Any]:
    return {name: torch.nn.Parameter(torch.zeros(shape)) for name, shape in shapes.items()}


@pytest.mark.parametrize(
    ("scope", "head", "warned"),
    [("blocks", set(), 1), ("blocks", {"head"}, 0), ("all", set(), 0), ("all", {"head"}, 0)],
)
def test_an_unidentified_head_warns_if_it_would_be_excluded(
    scope: Any, head: set[str], warned: int, caplog: pytest.LogCaptureFixture
) -> None:
    params = Parameters(parameters(head=(3, 2)), blocks=frozenset(), head=frozenset(head))
    assert Mixing(scope=scope).init(params) == {}
    assert caplog.text.count("classifier cannot be identified") == warned


def test_matrices_from_the_blocks_to_before_the_head_are_mixed() -> None:
    tensors = parameters(
        words=(9, 2), block=(2, 2), bias=(2,), places=(9, 2), decoder=(2, 2), pooler=(2, 2),
        head=(3, 2), head_bias=(3,),
    )  # fmt: skip
    params = Parameters(
        tensors,
        blocks=frozenset({"block", "bias", "decoder"}),
        head=frozenset({"head", "head_bias"}),
    )
    assert Mixing().names(params) == ["block", "decoder", "pooler"]
    assert Mixing(scope="all").names(params) == ["block", "decoder", "pooler", "head"]
    bare = Parameters(parameters(words=(9, 2), bias=(2,)), blocks=frozenset())
    assert Mixing().names(bare) == ["words"]
    nothing = Parameters(parameters(bias=(2,)), blocks=frozenset())
    state: dict[str, Any] = {}
    Mixing().before_forward(nothing, state, Step(), Streams(0))
    Mixing().after_backward(nothing, state)
    assert state == {}
