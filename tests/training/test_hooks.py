"""A step calls a rule's hooks in order, and restores the weights after any error."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from temper import RobustTrainer, Stepper
from temper.backward import UpdateRule
from temper.backward.rule import InitialWeightsRule, known_total
from temper.errors import SettingError
from temper.methods import Method
from temper.models.network import Network, Parameters
from temper.seeding import Streams
from temper.training.checkpoint_files import read_state, write_state
from temper.training.step_log import squared_gradients
from temper.types import Gradients, LossTerms, State, Step, Term
from tests.backward.test_rule import arguments, dataset
from tests.methods.tiny import rows, tiny_bert, tiny_network, with_rules

STEP = ["before_forward", "gradient", "after_backward", "regularize", "transform", "after_step"]


class Witness(InitialWeightsRule):
    """Write down every call; move the weights for the passes and put them back."""

    name = "witness"

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.steps: list[Step] = []

    def init(self, params: Parameters) -> State:
        self.held = {name: tensor.detach().clone() for name, tensor in params.tensors.items()}
        return super().init(params)

    def before_forward(self, params: Parameters, state: State, step: Step, rng: Streams) -> None:
        self.calls.append("before_forward")
        with torch.no_grad():
            for name, tensor in params.tensors.items():
                self.held[name] = tensor.detach().clone()
                tensor.add_(0.5)

    def gradient(
        self, params: Parameters, state: State, compute: Callable[[], Gradients]
    ) -> Gradients:
        self.calls.append("gradient")
        return compute()

    def after_backward(self, params: Parameters, state: State) -> None:
        self.calls.append("after_backward")
        with torch.no_grad():
            for name, tensor in params.tensors.items():
                tensor.copy_(self.held[name])

    def regularize(
        self, grads: Gradients, params: Parameters, state: State, step: Step, rng: Streams
    ) -> Gradients:
        self.calls.append("regularize")
        self.steps.append(step)
        return grads

    def transform(
        self, grads: Gradients, params: Parameters, state: State, rng: Streams
    ) -> Gradients:
        self.calls.append("transform")
        return {name: gradient for name, gradient in grads.items() if "head" not in name}

    def after_step(self, params: Parameters, state: State, step: Step) -> None:
        self.calls.append("after_step")
        self.steps.append(step)

    def on_train_end(self, params: Parameters, state: State) -> None:
        self.calls.append("on_train_end")

    def diagnostics(self, state: State) -> dict[str, Tensor | float]:
        return {"witness/calls": float(len(self.calls))}


def method_of(rule: UpdateRule) -> Method:
    return with_rules(rule)


def weights_of(model: torch.nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in model.named_parameters()}


def test_a_step_calls_the_hooks_in_order_and_the_gradient_is_that_of_the_moved_weights() -> None:
    model, rule = tiny_network(), Witness()
    before = weights_of(model)
    stepper = Stepper(model, method_of(rule))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.01)
    logs = stepper.backward(rows(5, 3))
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.named_parameters())
    assert logs["witness/calls"] == 4
    moved = tiny_network()
    with torch.no_grad():
        for tensor in moved.parameters():
            tensor.add_(0.5)
    other = Stepper(moved)
    other.backward(rows(5, 3))
    for name, gradient in stepper.params.gradients().items():
        torch.testing.assert_close(gradient, other.params.gradients()[name])
    stepper.step(optimizer)
    stepper.finish()
    assert rule.calls == [*STEP, "on_train_end"]
    assert rule.steps[1].rates["head.weight"] == (0.1, 0.01)


def test_parameters_removed_by_transform_are_not_updated_or_decayed() -> None:
    model = tiny_network()
    stepper = Stepper(model, method_of(Witness()))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.5)
    before = weights_of(model)
    stepper.backward(rows(5, 3))
    stepper.step(optimizer)
    for name, tensor in model.named_parameters():
        assert torch.equal(tensor, before[name]) == name.startswith("head")
    assert model.head.weight not in optimizer.state


def test_the_weights_before_the_first_step_are_kept_once_and_in_checkpoints(
    tmp_path: Path,
) -> None:
    model = tiny_network()
    before = weights_of(model)
    stepper = Stepper(model, method_of(Witness()))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    stepper.backward(rows(5, 3))
    stepper.step(optimizer)
    write_state(stepper.state_dict(), tmp_path, name="method")
    other = Stepper(model, method_of(Witness()))
    assert not torch.equal(
        other.params.start["layers.0.inner.weight"], before["layers.0.inner.weight"]
    )
    other.load_state_dict(read_state(tmp_path, name="method"))
    assert all(torch.equal(other.params.start[name], before[name]) for name in before)
    assert Stepper(tiny_network()).params.start == {}


@pytest.mark.parametrize("loop", ["stepper", "trainer"])
def test_a_failing_pass_restores_the_weights(
    loop: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, rule = tiny_bert(), Witness()
    before = weights_of(model)

    def failing(*_: Any, **__: Any) -> Tensor:
        raise ArithmeticError("planted")

    monkeypatch.setattr(Network, "logits", failing)
    if loop == "stepper":
        stepper = Stepper(model, method_of(rule))
        with pytest.raises(ArithmeticError, match="planted"):
            stepper.backward(rows(5, 3))
    else:
        trainer = RobustTrainer(
            model, arguments(tmp_path), method=method_of(rule), train_dataset=dataset()
        )
        with pytest.raises(ArithmeticError, match="planted"):
            trainer.train()
    assert rule.calls[-1] == "after_backward"
    assert not {"regularize", "transform", "after_step", "on_train_end"} & set(rule.calls)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.named_parameters())


def test_the_trainer_calls_the_hooks_once_a_step_whatever_the_micro_batches(
    tmp_path: Path,
) -> None:
    rule = Witness()
    trainer = RobustTrainer(
        tiny_bert(), arguments(tmp_path), method=method_of(rule), train_dataset=dataset()
    )
    trainer.train()
    # The last call is for loops that end early; here nothing is left to restore.
    assert rule.calls == [*STEP, *STEP, "on_train_end", "after_backward"]
    assert [step.total for step in rule.steps] == [2, 2, 2, 2]


def test_a_rule_that_needs_the_number_of_steps_raises_an_error_without_it() -> None:
    class Phased(UpdateRule):
        name = "phased"

        def before_forward(
            self, params: Parameters, state: State, step: Step, rng: Streams
        ) -> None:
            known_total(self, step)

    stepper = Stepper(tiny_network(), method_of(Phased()))
    with pytest.raises(SettingError, match=r"'phased' needs the number .*total=STEPS"):
        stepper.backward(rows(5, 3))
    Stepper(tiny_network(), method_of(Phased()), total=3).backward(rows(5, 3))


# How hard each term pulls


def test_the_gradient_norm_of_a_term_is_with_respect_to_the_logits() -> None:
    logits = torch.tensor([[3.0, 4.0], [0.0, 0.0]], requires_grad=True)
    # The gradient of z.w is w: rows (1, 2) and (1, 2), times weight 2 and 1/N = 1/4.
    rows_of_term = logits @ torch.tensor([1.0, 2.0])
    terms = LossTerms([Term("task", rows_of_term, 2.0, logits=(logits,))])
    result = squared_gradients(terms, Step(units=4))
    assert float(result["task"]) == pytest.approx((0.5**2) * (1 + 4) * 2)
    halves = squared_gradients(terms, Step(units=4, ranks=2))
    assert float(halves["task"]) == pytest.approx(float(result["task"]))


def test_the_gradient_norm_of_a_step_is_independent_of_micro_batches() -> None:
    whole, parts = Stepper(tiny_network(rate=0.0)), Stepper(tiny_network(rate=0.0))
    one = whole.backward(rows(5, 3, 6, 4))
    batch = rows(5, 3, 6, 4)
    two = parts.backward(
        {key: value[:1] for key, value in batch.items()},
        {key: value[1:] for key, value in batch.items()},
    )
    assert two["gradient/task"] == pytest.approx(one["gradient/task"])
    assert math.isfinite(one["gradient/task"])
    assert one["gradient/task"] > 0
