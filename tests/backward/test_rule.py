from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import TrainingArguments

from temper import RobustTrainer, Stepper, Vanilla
from temper.backward import Chain, SelectiveUpdate, UpdateRule, chain
from temper.errors import CompositionError, NonFiniteError
from temper.forward.objective import Clean
from temper.methods import Method
from temper.models.network import Parameters
from temper.seeding import Streams
from temper.types import Gradients, State, Step
from tests.methods.tiny import recorded_drops, rows, tiny_bert, tiny_network

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


def test_a_chain_opens_the_chains_inside() -> None:
    rule = SelectiveUpdate()
    assert chain(rule).rules == (rule,)
    assert chain(chain(rule), chain()).rules == (rule,)


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


def test_two_rules_that_claim_one_slot_or_have_one_name_clash() -> None:
    with pytest.raises(CompositionError, match="'selective' and 'selective' both claim the mask"):
        chain(SelectiveUpdate(), SelectiveUpdate(clipping="before"))
    with pytest.raises(CompositionError, match="'rule' and 'rule' are of one kind"):
        chain(UpdateRule(), UpdateRule())


class Ascending(UpdateRule):
    """A toy SAM: climb along the gradient, take the gradient there, climb down by copying."""

    replays = True

    def __init__(self, *, rho: float = 0.1, fails: bool = False) -> None:
        self.rho, self.fails = rho, fails
        self.seen: list[Gradients] = []

    def gradient(
        self, params: Parameters, state: State, compute: Callable[[], Gradients]
    ) -> Gradients:
        first = compute()
        self.seen.append({name: gradient.clone() for name, gradient in first.items()})
        before = {name: tensor.detach().clone() for name, tensor in params.tensors.items()}
        norm = torch.stack([gradient.norm() for gradient in first.values()]).norm()
        try:
            with torch.no_grad():
                for name, gradient in first.items():
                    params.tensors[name].add_(gradient, alpha=self.rho / float(norm))
            if self.fails:
                raise ArithmeticError("planted")
            return {name: gradient.clone() for name, gradient in compute().items()}
        finally:
            with torch.no_grad():
                for name, tensor in params.tensors.items():
                    tensor.copy_(before[name])


def method_of(rule: UpdateRule) -> Method:
    return Method("planted", Vanilla(), Clean(), rule)


def weights_of(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in model.named_parameters()}


def test_a_replaying_rule_sees_the_same_dropout_in_both_passes_and_all_micro_batches() -> None:
    model, rule = tiny_network(), Ascending()
    stepper = Stepper(model, method_of(rule), seed=2)
    batches = [rows(5, 3), rows(6, seed=1)]
    stepper.backward(batches[0])
    stepper.discard()
    with recorded_drops(model) as drops:
        before = weights_of(model)
        logs = stepper.backward(*batches)
    for calls in drops.values():
        first, other, again, other_again = calls
        # The inputs differ at the climbed weights, so that the ratios differ in their last bits.
        assert torch.equal(first == 0, again == 0)
        assert torch.equal(other == 0, other_again == 0)
        assert first.shape != other.shape
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())
    # The reported loss is that at the weights themselves, once.
    plain = Stepper(tiny_network(), "vanilla", seed=2)
    expected = plain.backward(*batches)
    assert logs == pytest.approx(expected)
    for name, gradient in plain.params.gradients().items():
        torch.testing.assert_close(rule.seen[-1][name], gradient)
        assert not torch.allclose(stepper.params.tensors[name].grad, gradient)


def test_the_gradient_at_the_climbed_weights_is_what_the_optimiser_gets() -> None:
    batches = [rows(5, 3), rows(6, seed=1)]
    rule, model = Ascending(rho=0.5), tiny_network()
    stepper = Stepper(model, method_of(rule), seed=2)
    stepper.backward(*batches)
    climbed = tiny_network()
    norm = torch.stack([g.norm() for g in rule.seen[0].values()]).norm()
    with torch.no_grad():
        for name, tensor in climbed.named_parameters():
            tensor.add_(0.5 * rule.seen[0][name] / norm)
    expected = Stepper(climbed, "vanilla", seed=2)
    expected.backward(*batches)
    for name, tensor in model.named_parameters():
        torch.testing.assert_close(tensor.grad, expected.params.tensors[name].grad)


def test_an_exception_in_the_replay_leaves_weights_and_network_as_they_were() -> None:
    model = tiny_network().eval()
    stepper = Stepper(model, method_of(Ascending(fails=True)))
    before = weights_of(model)
    batch = rows(5, 3)
    plain = model(batch["input_ids"], batch["attention_mask"])
    with pytest.raises(ArithmeticError, match="planted"):
        stepper.backward(batch)
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())
    assert torch.equal(model(batch["input_ids"], batch["attention_mask"]), plain)


def test_an_exception_under_attack_leaves_no_perturbation_behind() -> None:
    model, batch = tiny_network().eval(), rows(5, 3)
    plain = model(batch["input_ids"], batch["attention_mask"])
    stepper = Stepper(model, "at")
    planted = model.head.register_forward_hook(_fail_on_second_call())
    with pytest.raises(ArithmeticError, match="second call"):
        stepper.backward(batch)
    planted.remove()
    assert torch.equal(model(batch["input_ids"], batch["attention_mask"]), plain)


def _fail_on_second_call() -> Callable[..., None]:
    calls: list[int] = []

    def hook(module: nn.Module, *_: object) -> None:
        # The first call is the probing forward, the second the clean pass.
        calls.append(1)
        if len(calls) == 3:
            raise ArithmeticError("second call")

    return hook


def test_a_loss_that_is_not_finite_at_the_climbed_weights_is_reported_too() -> None:
    class Exploding(Ascending):
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


def test_a_replaying_rule_does_the_same_in_the_trainer(tmp_path: Path) -> None:
    rule, model = Ascending(), tiny_bert()
    seen: list[dict[str, torch.Tensor]] = []

    class Watching(Clean):
        def losses(self, network, batch, state, step, rng):  # type: ignore[no-untyped-def]
            seen.append({**batch.inputs, "labels": batch.labels})
            yield from super().losses(network, batch, state, step, rng)

    method = Method("planted", Vanilla(), Watching(), rule)
    trainer = RobustTrainer(
        model, arguments(tmp_path), method=method, train_dataset=dataset(), bucket_by_length=False
    )
    trainer.train()
    # Two steps of two micro-batches, each seen twice.
    assert len(seen) == 8
    for first, again in ((0, 2), (1, 3), (4, 6), (5, 7)):
        assert torch.equal(seen[first]["input_ids"], seen[again]["input_ids"])
    other = tiny_bert()
    stepper = Stepper(other, method_of(Ascending()), seed=3)
    optimizer = torch.optim.SGD(other.parameters(), lr=1e-1)
    for step in (0, 4):
        optimizer.zero_grad()
        stepper.backward(seen[step], seen[step + 1])
        stepper.step(optimizer)
    for (name, found), expected in zip(model.named_parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6, msg=name)


def test_a_learning_rate_s_factor_holds_for_one_step_and_is_undone() -> None:
    model = tiny_network()
    calls: list[str] = []
    rule = Named("halving", calls, 0.5)
    rule.transform = lambda grads, *_: grads  # type: ignore[method-assign]
    stepper = Stepper(model, method_of(rule))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    stepper.backward(rows(5, 3))
    before = weights_of(model)
    stepper.step(optimizer)
    for name, tensor in model.named_parameters():
        torch.testing.assert_close(tensor, before[name] - 0.1 * tensor.grad)
    assert optimizer.param_groups[0]["lr"] == 0.2


def test_the_default_chain_type_is_a_rule() -> None:
    assert isinstance(chain(UpdateRule()), Chain)
