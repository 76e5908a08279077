from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import TrainingArguments

from temper import Stepper, Vanilla
from temper.backward import SelectiveUpdate, UpdateRule, chain
from temper.errors import CompositionError, NonFiniteError
from temper.forward.objective import Clean
from temper.methods import Method
from temper.models.network import Network, Parameters
from temper.seeding import Streams
from temper.types import Gradients, State, Step
from tests.methods.tiny import rows, tiny_network

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

    def learning_rate_scale(self, state: State, step: Step) -> float:
        return self.factor

    def settle(self, params: Parameters, state: State, step: Step) -> None:
        self.calls.append(f"{self.name} settles")


def test_an_empty_chain_is_the_identity() -> None:
    grads = {"w": torch.ones(2)}
    rule = chain()
    assert rule.transform(grads, NOTHING, rule.init(NOTHING), Streams(0)) is grads
    assert rule.gradient(NOTHING, {}, lambda: grads) is grads
    assert rule.learning_rate_scale({}, Step()) == 1.0
    assert not rule.replays
    assert not rule.pre_pass


def test_a_chain_nests_gradient_and_pipes_transform_from_left_to_right() -> None:
    calls: list[str] = []
    rule = chain(Named("first", calls, 1.0), Named("second", calls, 2.0))
    state = rule.init(NOTHING)
    grads = {"w": torch.tensor(3.0)}
    assert rule.gradient(NOTHING, state, lambda: grads) is grads
    found = rule.transform(grads, NOTHING, state, Streams(0))
    rule.settle(NOTHING, state, Step())
    # 3 becomes 31 in the first rule and 312 in the second.
    assert found["w"].item() == 312
    assert rule.learning_rate_scale(state, Step()) == 2.0
    assert calls == [
        "first opens",
        "second opens",
        "second closes",
        "first closes",
        "first transforms",
        "second transforms",
        "first settles",
        "second settles",
    ]


def test_a_chain_keeps_a_state_for_each_rule_and_asks_for_what_any_asks() -> None:
    network = tiny_network()
    params = Stepper(network).params
    rule = chain(SelectiveUpdate(refresh="epoch"), UpdateRule(), Named("other", []))
    state = rule.init(params)
    assert rule.pre_pass
    assert not rule.replays
    assert set(state) == {"selective", "rule", "other"}
    rule.observe({name: torch.ones_like(p) for name, p in params.tensors.items()}, params, state)
    assert state["selective"]["observed"] == 1
    assert state["rule"] == state["other"] == {}


class Starting(UpdateRule):
    """A rule that notes what it is given before training."""

    name, takes_rows, trainings, survey_rows = "starting", True, 3, 7

    def begin_run(self, *given: Any) -> None:
        self.begun = given

    def survey(self, *given: Any) -> None:
        self.surveyed = given


def test_a_chain_wants_as_much_as_any_rule_and_takes_rows_where_all_do() -> None:
    rule = Starting()
    both = chain(UpdateRule(), rule)
    assert [(each.trainings, each.survey_rows) for each in (chain(), both)] == [(1, 0), (3, 7)]
    assert chain(rule).takes_rows
    assert not both.takes_rows
    network, own, rng = Network(tiny_network()), {"held": 1}, Streams(0)
    state: State = {"rule": {}, "starting": own}
    both.begin_run(NOTHING, state, rng)
    # Of several that look, each sees all batches, though they come once.
    both.survey(network, iter(()), NOTHING, state, Step(4), rng)
    assert rule.begun == (NOTHING, own, rng)
    assert rule.surveyed == (network, [], NOTHING, own, Step(4), rng)


def test_two_rules_that_claim_one_slot_or_have_one_name_clash() -> None:
    with pytest.raises(CompositionError, match="'selective' and 'selective' both claim the mask"):
        chain(SelectiveUpdate(), SelectiveUpdate(alpha=0.9))
    with pytest.raises(CompositionError, match="'rule' and 'rule' are of one kind"):
        chain(UpdateRule(), UpdateRule())


def method_of(rule: UpdateRule) -> Method:
    return Method("planted", Vanilla(), Clean(), rule)


def test_a_loss_that_is_not_finite_at_the_climbed_weights_is_reported_too() -> None:
    class Exploding(UpdateRule):
        replays = True

        def gradient(
            self, params: Parameters, state: State, compute: Callable[[], Gradients]
        ) -> Gradients:
            grads = compute()
            held = params.tensors["head.bias"].detach().clone()
            with torch.no_grad():
                params.tensors["head.bias"].fill_(float("nan"))
            try:
                compute()
            finally:
                with torch.no_grad():
                    params.tensors["head.bias"].copy_(held)
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
