from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import TrainingArguments

from temper import Stepper
from temper.backward import UpdateRule, chain, hooks
from temper.backward.averaging import FinalAverage
from temper.backward.hooks import Accumulates, AfterStep, RecomputesGradient
from temper.backward.rule import implements, rules_of
from temper.errors import CompositionError, NonFiniteError
from temper.methods import Method, build, names
from temper.methods.selection import EpochSelectiveUpdate, Selective, SelectiveUpdate
from temper.models.network import Network, Parameters
from temper.seeding import Streams
from temper.types import Gradients, State, Step
from tests.methods.tiny import rows, tiny_network, with_rules

NOTHING = Parameters({}, frozenset())


class Named(UpdateRule):
    """A rule that notes when it is called."""

    def __init__(self, name: str, calls: list[str], factor: float = 1.0) -> None:
        self.name, self.calls, self.factor = name, calls, factor

    def gradient(
        self, params: Parameters, state: State, compute: Callable[[], Gradients]
    ) -> Gradients:
        self.calls.append(f"{self.name} opens")
        grads = compute()
        self.calls.append(f"{self.name} closes")
        return grads

    def transform(
        self, grads: Gradients, params: Parameters, state: State, rng: Streams
    ) -> Gradients:
        self.calls.append(f"{self.name} transforms")
        return {name: gradient * 10 + self.factor for name, gradient in grads.items()}

    def learning_rate_scales(
        self, params: Parameters, state: State, step: Step
    ) -> dict[str, float]:
        return {"w": self.factor, self.name: 0.5}

    def after_step(self, params: Parameters, state: State, step: Step) -> None:
        self.calls.append(f"{self.name} follows the step")


def test_an_empty_chain_is_the_identity() -> None:
    grads = {"w": torch.ones(2)}
    rule = chain()
    assert rule.transform(grads, NOTHING, rule.init(NOTHING), Streams(0)) is grads
    assert rule.gradient(NOTHING, {}, lambda: grads) is grads
    assert rule.learning_rate_scales(NOTHING, {}, Step()) == {}
    assert not implements(rule, RecomputesGradient)
    assert not implements(rule, Accumulates)


def test_a_chain_nests_gradient_and_pipes_transform_from_left_to_right() -> None:
    calls: list[str] = []
    rule = chain(Named("first", calls, 3.0), Named("second", calls, 2.0))
    state = rule.init(NOTHING)
    grads = {"w": torch.tensor(3.0)}
    assert rule.gradient(NOTHING, state, lambda: grads) is grads
    result = rule.transform(grads, NOTHING, state, Streams(0))
    rule.after_step(NOTHING, state, Step())
    # 3 becomes 33 in the first rule and 332 in the second.
    assert result["w"].item() == 332
    scales = rule.learning_rate_scales(NOTHING, state, Step())
    assert scales == {"w": 6.0, "first": 0.5, "second": 0.5}
    assert calls == [
        "first opens",
        "second opens",
        "second closes",
        "first closes",
        "first transforms",
        "second transforms",
        "first follows the step",
        "second follows the step",
    ]


def test_a_chain_has_a_state_per_rule_and_calls_only_implemented_hooks() -> None:
    network = tiny_network()
    params = Stepper(network).params
    rule = chain(EpochSelectiveUpdate(Selective()), UpdateRule(), Named("other", []))
    state = rule.init(params)
    assert implements(rule, Accumulates)
    assert implements(rule, RecomputesGradient)
    assert not implements(chain(EpochSelectiveUpdate(Selective())), AfterStep)
    assert set(state) == {"selective", "rule", "other"}
    rule.accumulate({name: torch.ones_like(p) for name, p in params.tensors.items()}, params, state)
    assert state["selective"]["observed"] == 1
    assert state["rule"] == state["other"] == {}


class Starting(UpdateRule):
    """A rule that notes what it is given before training."""

    name, supports_fsdp, calibration_rows = "starting", True, 7

    def begin_run(self, *given: Any) -> None:
        self.begun = given

    def calibrate(self, *given: Any) -> None:
        self.calibrated = given


def test_a_chain_calibrates_on_the_most_rows_and_supports_fsdp_if_all_rules_do() -> None:
    rule = Starting()
    both = chain(UpdateRule(), rule)
    assert (chain().calibration_rows, both.calibration_rows) == (0, 7)
    assert chain(rule).supports_fsdp
    assert not both.supports_fsdp
    network, own, rng = Network(tiny_network()), {"held": 1}, Streams(0)
    state: State = {"rule": {}, "starting": own}
    both.begin_run(NOTHING, state, rng)
    # Each rule reads all batches, although the iterator yields them once.
    both.calibrate(network, iter(()), NOTHING, state, Step(4), rng)
    assert rule.begun == (NOTHING, own, rng)
    assert rule.calibrated == (network, [], NOTHING, own, Step(4), rng)


def test_a_chain_runs_averages_last_and_flattens_chains() -> None:
    rule = chain(FinalAverage(), chain(UpdateRule(), Named("other", [])))
    assert [each.name for each in rule.rules] == ["rule", "other", "final_average"]


def hooks_of(rule: type) -> list[tuple[type, str]]:
    """Return the protocols that declare a method of this rule's, and the method's name."""
    protocols = [each for each in vars(hooks).values() if getattr(each, "_is_protocol", False)]
    return [
        (protocol, name)
        for protocol in protocols
        for name, member in vars(protocol).items()
        if inspect.isfunction(member) and not name.startswith("_") and hasattr(rule, name)
    ]


@pytest.mark.parametrize(
    "rule", sorted({type(r) for n in names() for r in rules_of(build(n).rule)}, key=str), ids=str
)
def test_every_hook_of_a_method_s_rule_has_the_signature_of_its_protocol(rule: type) -> None:
    for protocol, name in hooks_of(rule):
        expected = inspect.signature(getattr(protocol, name)).parameters
        assert list(inspect.signature(getattr(rule, name)).parameters) == list(expected), name


def test_two_rules_that_claim_one_slot_or_have_one_name_clash() -> None:
    with pytest.raises(CompositionError, match="'selective' and 'selective' both use the mask"):
        chain(SelectiveUpdate(Selective()), SelectiveUpdate(Selective(alpha=0.9)))
    with pytest.raises(CompositionError, match="'rule' and 'rule' have the same name"):
        chain(UpdateRule(), UpdateRule())


def method_of(rule: UpdateRule) -> Method:
    return with_rules(rule)


def test_a_loss_that_is_not_finite_at_perturbed_weights_raises_an_error() -> None:
    class Exploding(UpdateRule):
        def gradient(
            self, params: Parameters, state: State, compute: Callable[[], Gradients]
        ) -> Gradients:
            grads = compute()
            kept = params.tensors["head.bias"].detach().clone()
            with torch.no_grad():
                params.tensors["head.bias"].fill_(float("nan"))
            try:
                compute()
            finally:
                with torch.no_grad():
                    params.tensors["head.bias"].copy_(kept)
            return grads

    stepper = Stepper(tiny_network(), method_of(Exploding()))
    with pytest.raises(NonFiniteError, match="loss term 'task' is not finite at step 0"):
        stepper.backward(rows(5, 3))


def arguments(folder: Path, **settings: object) -> TrainingArguments:
    values = {
        "output_dir": str(folder),
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 2,
        "max_steps": 2,
        "learning_rate": 1e-1,
        # Adam would blow up the rounding of gradients that are 0 (the keys' bias).
        "optim": "sgd",
        "max_grad_norm": 0.0,
        "lr_scheduler_type": "constant",
        "report_to": "none",
        "save_strategy": "no",
        "use_cpu": True,
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
        "seed": 3,
        **settings,
    }
    return TrainingArguments(**values)


def dataset() -> list[dict[str, torch.Tensor]]:
    batch = rows(5, 5, 5, 5, 5, 5, 5, 5)
    return [{name: value[row] for name, value in batch.items()} for row in range(8)]
