"""LP-FT: only the head trains first, the rest stays bit for bit, then all of it trains."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from temper import Stepper
from temper.errors import ModelError, SettingError
from temper.methods import configure
from temper.methods.lp_ft import LPFT, ByFraction, BySteps, HeadFirst
from temper.seeding import Streams
from temper.types import Batch, Step
from tests.methods.tiny import MeanOfWords, rows
from tests.methods.weights import (
    close,
    copies,
    expected_gradient,
    leaves,
    step_of,
    stepper_of,
    two_batches,
)

HEAD = {"head.weight", "head.bias"}


def adam(stepper: Stepper) -> torch.optim.Optimizer:
    return torch.optim.AdamW(stepper.params.tensors.values(), lr=1e-2, weight_decay=0.1)


def moved(before: dict[str, Tensor], after: dict[str, Tensor]) -> set[str]:
    return {name for name in before if not torch.equal(before[name], after[name])}


@pytest.mark.parametrize(
    ("config", "total", "length"),
    [
        (LPFT(probe={"fraction": 0.5}), 4, 2),
        (LPFT(probe={"steps": 3}), 4, 3),
        (LPFT(), 10, 2),
        (LPFT(probe={"fraction": 1.0}), 2, 2),
    ],
)
def test_only_the_head_is_trained_first_and_only_it_is_in_the_optimizer(
    config: LPFT, total: int, length: int
) -> None:
    stepper = stepper_of(config, total=total)
    optimizer = adam(stepper)
    for number in range(total):
        before = copies(stepper.network.model)
        optimizer.zero_grad()
        logs = stepper.backward(*two_batches())
        stepper.step(optimizer)
        changed = moved(before, copies(stepper.network.model))
        known = {name for name, t in stepper.params.tensors.items() if optimizer.state.get(t, {})}
        probing = number < length
        assert logs["phases/probing"] == float(probing)
        assert changed == known == (HEAD if probing else set(before))
        assert all(t.requires_grad for t in stepper.params.tensors.values())


def test_probing_computes_only_the_gradient_of_the_head() -> None:
    stepper = stepper_of("lp_ft", total=10)
    batches = two_batches()
    _, result, drops = step_of(stepper, batches)
    expected = expected_gradient(leaves(stepper.network.model), batches, drops)
    close(result, {name: expected[name] for name in HEAD})


def test_in_one_process_backward_stops_at_the_head() -> None:
    stepper = stepper_of("lp_ft", total=10)
    reached: list[str] = []
    for block in stepper.network.model.layers:
        block.register_forward_hook(lambda *given: reached.append(str(given[2].requires_grad)))
    stepper.backward(*two_batches())
    assert set(reached) == {"False"}


def test_with_several_processes_only_the_gradient_of_the_head_is_kept() -> None:
    stepper = stepper_of("lp_ft", total=10)
    step = Step(units=3, ranks=2, total=10)
    stepper.begin_step(step)
    assert all(t.requires_grad for t in stepper.params.tensors.values())
    stepper.run_passes(Batch.of(rows(5, 3, 6)), step)
    assert set(stepper.params.gradients()) > HEAD
    stepper.end_step()
    # Before clipping already, so that the norm is the same as in one process.
    stepper.finish_backward(step)
    assert set(stepper.params.gradients()) == HEAD


@pytest.mark.parametrize("other", ["uegr", "at", "r_drop", "adv_weight", "mixout"])
def test_other_methods_work_while_the_head_trains_alone(other: str) -> None:
    settings: dict[str, Any] = {"lp_ft": {"probe": {"steps": 1}}}
    stepper = stepper_of(configure(f"lp_ft + {other}", settings), total=2)
    optimizer = adam(stepper)
    before = copies(stepper.network.model)
    logs = stepper.backward(*two_batches())
    stepper.step(optimizer)
    assert moved(before, copies(stepper.network.model)) == HEAD
    if other in ("uegr", "at"):
        assert logs["attack/relative_size"] == pytest.approx(0.025, rel=1e-3)
    optimizer.zero_grad()
    stepper.backward(*two_batches())
    stepper.step(optimizer)
    assert len(moved(before, copies(stepper.network.model))) == len(before)


def test_the_head_may_have_a_learning_rate_of_its_own() -> None:
    config = LPFT(head_learning_rate_scale=10.0, probe={"steps": 1})
    stepper = stepper_of(config, total=3)
    optimizer = torch.optim.SGD(stepper.params.tensors.values(), lr=0.01)
    for scale in (10.0, 1.0):
        before = copies(stepper.network.model)
        optimizer.zero_grad()
        stepper.backward(*two_batches())
        grads = {name: g.clone() for name, g in stepper.params.gradients().items()}
        stepper.step(optimizer)
        expected = {name: before[name] - 0.01 * scale * g for name, g in grads.items()}
        after = copies(stepper.network.model)
        close({name: after[name] for name in expected}, expected)
        assert optimizer.param_groups[0]["lr"] == 0.01


def test_without_a_number_of_steps_or_a_head_it_raises_an_error() -> None:
    with pytest.raises(SettingError, match="the number of optimizer steps"):
        stepper_of("lp_ft").backward(*two_batches())
    headless = MeanOfWords()
    headless.head = nn.Identity()
    with pytest.raises(ModelError, match="no trainable head is found"):
        Stepper(headless, "lp_ft", total=3)


def test_unsuitable_settings_raise_an_error_or_warn(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with pytest.raises(SettingError, match="'steps' belongs to the kind 'steps'"):
        LPFT(probe={"fraction": 0.1, "steps": 5})
    stepper = stepper_of(LPFT(probe={"steps": 7}), total=5)
    with caplog.at_level(logging.WARNING, logger="temper"):
        stepper.backward(*two_batches())
    assert "All 5 steps train only the head" in caplog.text


@pytest.mark.parametrize(
    ("rule", "length"),
    [
        (HeadFirst(ByFraction(fraction=0.34)), 3),
        (HeadFirst(ByFraction(fraction=0.0)), 0),
        (HeadFirst(ByFraction(fraction=1.0)), 10),
        (HeadFirst(BySteps(steps=12)), 12),
    ],
)
def test_a_run_that_only_probes_warns_once(
    rule: HeadFirst, length: int, caplog: pytest.LogCaptureFixture
) -> None:
    params = stepper_of("plain").params
    state, message = rule.init(params), []
    # Before the first step, too, the head is what comes next.
    assert rule.diagnostics(state) == {"phases/probing": 1.0}
    for number in range(10):
        caplog.clear()
        with caplog.at_level(logging.WARNING, logger="temper"):
            rule.before_forward(params, state, Step(number, total=10), Streams(0))
        message.append(len(caplog.records))
        trains = {name for name, tensor in params.tensors.items() if tensor.requires_grad}
        assert trains == (HEAD if number < length else set(params.tensors))
        rule.after_backward(params, state)
        assert all(tensor.requires_grad for tensor in params.tensors.values())
    assert message == [int(length >= 10)] + [0] * 9
