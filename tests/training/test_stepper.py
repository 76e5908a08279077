"""Stepper: a method's step in a plain PyTorch loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from temper import UEGR, Stepper
from temper.backward.rule import UpdateRule, chain
from temper.errors import DataError, ModelError, NonFiniteError, SettingError, TemperError
from temper.methods import Method, build, names
from temper.models.blocks import Parameters
from temper.seeding import Streams
from temper.training.config import check_sharded
from temper.types import Gradients, State, Step
from tests.methods.tiny import with_rules
from tests.training.tiny_training import (
    Averaged,
    Rows,
    collate,
    farthest,
    quiet_model,
    tiny_model,
    unequal,
    weights,
)


def batch(*rows: int) -> dict[str, Tensor]:
    return collate([Rows(40)[row] for row in rows])


def batches(count: int) -> list[dict[str, Tensor]]:
    return [batch(*range(4 * index, 4 * index + 4)) for index in range(count)]


def gradients(model: nn.Module) -> dict[str, Tensor]:
    return {
        name: tensor.grad.clone()
        for name, tensor in model.named_parameters()
        if tensor.grad is not None
    }


class Twice(UpdateRule):
    """Ask for the gradient twice, at the same weights."""

    def gradient(
        self, params: Parameters, state: State, compute: Callable[[], Gradients]
    ) -> Gradients:
        self.seen = [compute(), compute()]
        return self.seen[1]


class Slower(UpdateRule):
    """Scale the learning rates, and note that the optimizer is done."""

    def __init__(self, scale: float) -> None:
        self.scale = scale
        self.settled: list[int] = []

    def learning_rate_scales(
        self, params: Parameters, state: State, step: Step
    ) -> dict[str, float]:
        return dict.fromkeys(params.tensors, self.scale)

    def after_step(self, params: Parameters, state: State, step: Step) -> None:
        self.settled.append(step.number)


class Doubled(UpdateRule):
    """Double the gradient, before or after clipping."""

    def __init__(self, *, before: bool) -> None:
        self.before = before

    def regularize(
        self, grads: Gradients, params: Parameters, state: State, step: Step, rng: Streams
    ) -> Gradients:
        return {name: 2 * g for name, g in grads.items()} if self.before else grads

    def transform(
        self, grads: Gradients, params: Parameters, state: State, rng: Streams
    ) -> Gradients:
        return grads if self.before else {name: 2 * g for name, g in grads.items()}


def with_rule(rule: UpdateRule) -> Method:
    return with_rules(rule)


def run(
    stepper: Stepper, optimizer: torch.optim.Optimizer, epochs: list[tuple[int, list[Any]]]
) -> None:
    """The loop of the README, with epochs for rules that want them."""
    for epoch, loader in epochs:
        stepper.begin_epoch(epoch)
        for inputs in loader:
            optimizer.zero_grad()
            stepper.backward(inputs)
            torch.nn.utils.clip_grad_norm_(stepper.network.model.parameters(), 0.5)
            stepper.step(optimizer)


# What a module without blocks lacks, by the methods that need it with their default settings.
LACKING = {
    "adv_embed": "no repeated blocks",
    "roast": "no repeated blocks",
    "vat": "no repeated blocks",
    "smart": "no repeated blocks",
    "hidden_cut": "returns attention probabilities",
    "lp_ft": "no trainable head is found",
    "jachess": "no repeated blocks",
    "jachess_unlabeled": "no repeated blocks",
    "reinit": "this model has none",
}


@pytest.mark.parametrize("method", names())
def test_every_method_trains_a_plain_module_or_raises_an_error(method: str) -> None:
    model = Averaged().train()
    before = weights(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def train() -> Stepper:
        stepper = Stepper(model, method, total=2)
        stepper.prepare(batches(2))
        run(stepper, optimizer, [(0, batches(2))])
        return stepper

    if method in LACKING:
        with pytest.raises(ModelError, match=LACKING[method]):
            train()
        return
    stepper = train()
    assert stepper.number == 2
    assert unequal(before, weights(model))


def test_plain_steps_equal_plain_pytorch_training() -> None:
    ours, theirs = quiet_model(), quiet_model()
    stepper = Stepper(ours)
    one, two = (torch.optim.SGD(model.parameters(), lr=0.1) for model in (ours, theirs))
    for inputs in batches(3):
        one.zero_grad()
        logs = stepper.backward(inputs)
        stepper.step(one)
        two.zero_grad()
        loss = theirs(**inputs).loss
        loss.backward()
        two.step()
        assert logs["loss"] == pytest.approx(loss.item(), rel=1e-6)
        assert logs["loss/task"] == pytest.approx(logs["loss"], rel=1e-6)
    assert farthest(weights(ours), weights(theirs)) < 1e-6


def test_backward_adds_to_the_gradient_that_is_there() -> None:
    once, twice = quiet_model(), quiet_model()
    Stepper(once).backward(batch(0, 1))
    twice(**batch(0, 1)).loss.backward()
    Stepper(twice).backward(batch(0, 1))
    doubled = {name: 2 * g for name, g in gradients(once).items()}
    assert farthest(doubled, gradients(twice)) < 1e-6


@pytest.mark.parametrize("method", ["plain", "uegr", "adv_weight"])
def test_a_second_backward_before_the_step_raises_an_error_with_advice(method: str) -> None:
    stepper = Stepper(tiny_model().train(), method)
    stepper.backward(batch(0, 1))
    kept = gradients(stepper.network.model)
    with pytest.raises(
        SettingError, match=r"not called after .* step 0\..*stepper\.step\(optimizer\).*discard\(\)"
    ):
        stepper.backward(batch(2, 3))
    assert not unequal(kept, gradients(stepper.network.model))


@pytest.mark.parametrize("method", ["plain", "uegr", "adv_weight"])
def test_a_discarded_step_has_no_effect(method: str) -> None:
    result = []
    for discarded in (False, True):
        model = tiny_model().train()
        stepper = Stepper(model, method, seed=3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if discarded:
            stepper.backward(batch(4, 5, 6))
            stepper.discard()
            assert gradients(model) == {}
        stepper.backward(batch(0, 1))
        stepper.step(optimizer)
        assert stepper.number == 1
        result.append(weights(model))
    assert not unequal(*result)


def test_a_loop_with_a_gradient_scaler_calls_the_hooks_around_the_optimizer() -> None:
    model = tiny_model().train()
    stepper = Stepper(model, "uegr")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for skipped in (True, False):
        stepper.backward(batch(0, 1))
        stepper.before_optimizer(optimizer)
        if not skipped:
            optimizer.step()
        stepper.after_optimizer(skipped=skipped)
        optimizer.zero_grad()
    assert stepper.number == 2


def test_draws_follow_the_seed_and_leave_the_global_generator_alone() -> None:
    def stepped(seed: int) -> dict[str, Tensor]:
        model = tiny_model()
        model.train()
        state = torch.random.get_rng_state()
        Stepper(model, "uegr", seed=seed).backward(batch(0, 1, 2, 3))
        assert torch.equal(state, torch.random.get_rng_state())
        return gradients(model)

    assert not unequal(stepped(1), stepped(1))
    assert unequal(stepped(1), stepped(2))


def test_recomputing_a_gradient_repeats_all_draws_and_is_logged_once() -> None:
    rule, parts = Twice(), (batch(0, 1, 2), batch(3, 4))
    logs = Stepper(tiny_model().train(), with_rule(rule)).backward(*parts)
    assert not unequal(*rule.seen)
    assert logs["loss"] == Stepper(tiny_model().train()).backward(*parts)["loss"]


def test_a_rule_scales_the_learning_rate_of_its_step_alone() -> None:
    model = quiet_model()
    before = weights(model)
    rule = Slower(0.25)
    stepper = Stepper(model, with_rule(rule))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.4)
    stepper.backward(batch(0, 1))
    grads = gradients(model)
    stepper.step(optimizer)
    moved = {name: before[name] - 0.1 * g for name, g in grads.items()}
    after = weights(model)
    assert farthest(moved, {name: after[name] for name in moved}) < 1e-7
    assert optimizer.param_groups[0]["lr"] == 0.4
    assert rule.settled == [0]


def test_a_failing_optimizer_restores_the_learning_rate() -> None:
    class Failing(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:
            raise RuntimeError("planted")

    model = quiet_model()
    stepper = Stepper(model, with_rule(Slower(0.25)))
    optimizer = Failing(model.parameters(), lr=0.4)
    stepper.backward(batch(0, 1))
    with pytest.raises(RuntimeError, match="planted"):
        stepper.step(optimizer)
    assert optimizer.param_groups[0]["lr"] == 0.4
    assert stepper.number == 0


@pytest.mark.parametrize("before", [True, False])
def test_a_rule_acts_before_or_after_clipping(before: bool) -> None:
    plain, doubled = quiet_model(), quiet_model()
    Stepper(plain).backward(batch(0, 1))
    stepper = Stepper(doubled, with_rule(chain(Doubled(before=before))))
    stepper.backward(batch(0, 1))
    factor = 2 if before else 1
    expected = {name: factor * g for name, g in gradients(plain).items()}
    assert farthest(expected, gradients(doubled)) < 1e-7
    stepper.step(torch.optim.SGD(doubled.parameters(), lr=0.0))
    twice = {name: 2 * g for name, g in gradients(plain).items()}
    assert farthest(twice, gradients(doubled)) < 1e-7


def test_class_weights_are_factors_on_each_rows_loss() -> None:
    model = quiet_model()
    inputs = batch(0, 1, 2)
    with torch.no_grad():
        losses = nn.functional.cross_entropy(
            model(**inputs).logits, inputs["labels"], reduction="none"
        )
    logs = Stepper(model, class_weights=[1.0, 3.0]).backward(inputs)
    # Rows 0 and 2 are of class 0, row 1 is of class 1.
    by_hand = (losses[0] + 3 * losses[1] + losses[2]) / 3
    assert logs["loss"] == pytest.approx(float(by_hand), rel=1e-6)


def test_between_steps_the_model_evaluates_without_hooks() -> None:
    model = tiny_model()
    inputs = batch(0, 1, 2)
    model.eval()
    with torch.no_grad():
        before = model(**inputs).logits
    stepper = Stepper(model.train(), "uegr")
    stepper.backward(batch(3, 4))
    model.eval()
    with torch.no_grad():
        assert torch.equal(model(**inputs).logits, before)


def test_a_loss_that_is_not_finite_is_named_and_leaves_the_gradient_unused() -> None:
    model = tiny_model()
    ids = Rows(40)[2]["input_ids"]
    others = {token for row in (0, 1) for token in Rows(40)[row]["input_ids"]}
    own = next(token for token in ids if token not in others)
    with torch.no_grad():
        model.bert.embeddings.word_embeddings.weight[own] = float("inf")
    stepper = Stepper(model, "r_drop")
    with pytest.raises(NonFiniteError, match=r"'task' is not finite at step 0, indices.*\[2\]"):
        stepper.backward(batch(0, 1, 2))
    with pytest.raises(NonFiniteError, match=r"rows \[12\]"):
        stepper.backward({**batch(0, 1, 2), "row_index": torch.tensor([10, 11, 12])})
    assert stepper.number == 0


def test_epoch_masks_raise_an_error_before_they_are_prepared() -> None:
    model = tiny_model()
    stepper = Stepper(model, UEGR(mask={"refresh": "epoch"}))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = weights(model)
    stepper.backward(batch(0, 1))
    with pytest.raises(TemperError, match=r"no mask yet.*prepare\(batches\).*begin_epoch"):
        stepper.step(optimizer)
    assert not unequal(before, weights(model))


def test_wrong_calls_of_the_stepper_raise_an_error() -> None:
    model = tiny_model()
    with pytest.raises(SettingError, match="Unknown method 'plian'. Did you mean 'plain'"):
        Stepper(model, "plian")
    stepper = Stepper(model)
    with pytest.raises(SettingError, match="at least one batch"):
        stepper.backward()
    unlabeled = {name: value for name, value in batch(0, 1).items() if name != "labels"}
    with pytest.raises(DataError, match="The batch has no labels"):
        stepper.backward(unlabeled)
    with pytest.raises(ModelError, match="no 'input_ids' to perturb"):
        Stepper(tiny_model()).backward({"pixels": torch.ones(1, 2), "labels": torch.tensor([0])})


def test_a_rule_without_sharding_support_raises_an_error_with_fsdp() -> None:
    for name in names():
        check_sharded(build(name))
    alone = with_rules(Slower(0.5))
    with pytest.raises(SettingError, match="rule 'rule' of the method 'planted' does not support"):
        check_sharded(alone)
