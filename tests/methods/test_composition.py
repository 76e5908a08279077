from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from temper import AT, UEGR, Dropout, Plain, RDrop, Stepper
from temper.errors import CompositionError, SettingError
from temper.forward import Losses, Plan, StepContext, SubModels
from temper.forward.plan import merge
from temper.forward.totals import step_totals
from temper.methods import Method, build, compose, configure, names
from temper.methods.composition import Composed
from temper.methods.embedding_noise import EmbeddingNoise
from temper.seeding import Streams
from temper.training.config import RunConfig
from temper.types import Batch, Step
from tests.methods.tiny import recorded_drops, rows, tiny_bert, tiny_network
from tests.methods.weights import copies


def logs_of(method: Method | str, **network: Any) -> dict[str, float]:
    """Return what one step of a tiny network in double precision logs."""
    stepper = Stepper(tiny_network(**network), method, seed=1)
    return stepper.backward(rows(5, 3, 6))


def gradients_of(method: Method | str, **network: Any) -> dict[str, torch.Tensor]:
    stepper = Stepper(tiny_network(**network), method, seed=1)
    stepper.backward(rows(5, 3, 6))
    return stepper.params.gradients()


# The law of the sum


def test_a_composed_loss_is_the_sum_less_the_clean_loss_that_both_have() -> None:
    one, other = RDrop(weight=0.7), AT(epsilon=0.3)
    both = compose(one, other)
    plain = gradients_of("plain", rate=0.0)
    left, right = gradients_of(one, rate=0.0), gradients_of(other, rate=0.0)
    for name, gradient in gradients_of(both, rate=0.0).items():
        torch.testing.assert_close(gradient, left[name] + right[name] - plain[name])
    logs = {
        key: logs_of(method, rate=0.0)["loss"]
        for key, method in {"both": both, "one": one, "other": other, "plain": Plain()}.items()
    }
    assert logs["both"] == pytest.approx(logs["one"] + logs["other"] - logs["plain"])


def test_the_clean_pass_that_both_need_is_run_once() -> None:
    model = tiny_network()
    stepper = Stepper(model, compose(RDrop(), AT()))
    stepper.network.probe(Batch.of(rows(5, 3)))
    with recorded_drops(model) as drops:
        stepper.backward(rows(5, 3))
    # One clean forward of two passes, one attacked forward.
    assert [len(calls) for calls in drops.values()] == [2] * len(drops)
    assert [len(call) for call in drops["before_head"]] == [4, 2]


def test_the_attack_maximizes_the_task_loss_and_not_the_divergence() -> None:
    stepper = Stepper(tiny_network(), compose(RDrop(weight=1e6), AT(epsilon=0.3)), seed=1)
    seen: list[torch.Tensor] = []
    plain = AT.attack_step

    def noted(
        self: Any, step: StepContext, gradient: torch.Tensor, *rest: Any, **settings: Any
    ) -> torch.Tensor:
        seen.append(gradient)
        return plain(self, step, gradient, *rest, **settings)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AT, "attack_step", noted)
        stepper.backward(rows(5, 3))
        mild = Stepper(tiny_network(), compose(RDrop(weight=1e-9), AT(epsilon=0.3)), seed=1)
        mild.backward(rows(5, 3))
    torch.testing.assert_close(seen[0], seen[1])


def test_the_order_of_methods_changes_nothing() -> None:
    first, second = gradients_of(RDrop() + AT()), gradients_of(AT() + RDrop())
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_composing_with_plain_changes_no_gradient() -> None:
    alone, beside = gradients_of(UEGR()), gradients_of(compose(Plain(), UEGR()))
    assert all(torch.equal(alone[name], beside[name]) for name in alone)


def test_set_dropout_rates_hold_for_the_attacked_pass_too() -> None:
    model = tiny_network(rate=0.0)
    stepper = Stepper(model, compose(AT(), Dropout(rate=0.5)), seed=1)
    stepper.network.probe(Batch.of(rows(6)))
    with recorded_drops(model) as drops:
        stepper.backward(rows(6, 6, 6, 6))
    for clean, attacked in drops.values():
        for ratio in (clean, attacked):
            kept = ratio[torch.isfinite(ratio)]
            assert set(kept.round(decimals=6).tolist()) == {0.0, 2.0}
        assert not torch.equal(clean, attacked)


# Settings and names


def test_settings_switch_the_losses_or_the_rule_of_a_method_off() -> None:
    losses = UEGR(mask=False) + "adv_weight"
    assert [rule.name for rule in losses.rule.rules] == ["ascent"]
    rule = UEGR(adversarial_weight=0.0, divergence_weight=0.0) + AT()
    assert rule.plan(Step()) == AT().plan(Step())
    assert [each.name for each in rule.rule.rules] == ["selective"]


def test_a_composition_reads_and_writes_its_settings() -> None:
    method = configure("r_drop + at", {"r_drop": {"weight": 2.0}, "at": {"epsilon": 0.5}})
    assert method.settings()["r_drop"]["weight"] == 2.0
    again = configure("r_drop + at", method.settings())
    assert again == method
    assert build(method).name == "r_drop + at"
    presets = configure("uegr + ema", {"uegr": {"preset": "paper"}})
    assert presets.settings()["uegr"]["epsilon"] == 0.1


def test_a_composition_is_part_of_a_run_s_settings_and_key() -> None:
    def config(weight: float) -> RunConfig:
        tree = {
            "model": "minilm",
            "data": {"source": "demo"},
            "method": {"name": "r_drop + at", "r_drop": {"weight": weight}},
        }
        return RunConfig.of(tree)

    one, other = config(1.0), config(2.0)
    assert one.method_config() == configure("r_drop + at")
    keys = {each.key(model="m", train_hash="t", dev_hash="d") for each in (one, other)}
    assert len(keys) == 2


def test_a_composition_of_methods_that_are_off_is_plain() -> None:
    method = compose(RDrop(**RDrop.OFF), AT(**AT.OFF))
    assert method.plan(Step()) == Plan()
    assert method.rule.rules == ()


def test_method_names_compose_with_default_settings() -> None:
    assert compose("r_drop", AT()) == RDrop() + AT()
    assert RDrop() + "at" == RDrop() + AT()


def test_a_composition_of_no_methods_raises_an_error() -> None:
    for composed in (compose, lambda: Composed(methods=())):
        with pytest.raises(CompositionError, match="at least one method"):
            composed()


# Clashes


@pytest.mark.parametrize(
    ("methods", "message"),
    [
        ("at + uegr", "'at' and 'uegr' both use the perturbation .*losses"),
        ("r_drop + r_at", "'r_drop' and 'r_at' both use the sub-models in their losses"),
        ("r_drop + dropout", "'r_drop' and 'dropout' both use the sub-models"),
        (
            "uegr + child_tuning_f",
            "'uegr' and 'child_tuning_f' both use the mask .*update rules",
        ),
        ("at + at", "The method 'at' is named twice in 'at . at'"),
    ],
)
def test_incompatible_methods_raise_an_error_with_the_reason(methods: str, message: str) -> None:
    with pytest.raises(CompositionError, match=message):
        configure(methods)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("r_dorp + at", {}, "Unknown method 'r_dorp'. Did you mean 'r_drop'"),
        ("uegr.rule", {}, "Unknown method 'uegr.rule'"),
        ("", {}, "Unknown method ''"),
        ("at +", {}, r"name is missing in 'at \+'"),
        ("+", {}, r"name is missing in '\+'"),
        ("r_drop + at", {"weight": 2.0}, r"`method.weight` cannot be set"),
        ("r_drop + at", {"at": 1}, "`method.at` must be a table .*got 1"),
        (
            "r_drop + at",
            {"at": {"epsilon": -1}, "r_drop": {"weight": -1}},
            r"(?s)RDrop.weight.*AT.epsilon",
        ),
    ],
)
def test_all_wrong_settings_of_a_composition_are_reported_at_once(
    name: str, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(SettingError, match=message):
        configure(name, settings)


class Scaled(Plain):
    """The clean loss once more, under a name."""

    NAME = "scaled"
    term: str = "adversarial"
    task_weight: float | None = None

    def plan(self, now: Step) -> Plan:
        return Plan(clean=True, task_weight=self.task_weight)

    def losses(self, step: StepContext) -> Iterator[Losses]:
        yield [step.task(step.clean.logits, name=self.term)]


def test_clean_weights_that_differ_are_named() -> None:
    plans = [("mine", Plan(task_weight=0.5)), ("other", AT().plan(Step()))]
    with pytest.raises(CompositionError, match=r"clean_weight=0.5 in 'mine' and 1 in 'other'"):
        merge(plans)


def test_changing_a_clean_pass_that_does_not_run_raises_an_error() -> None:
    silent = ("mine", Plan(totals=1, task_weight=0.0))
    with pytest.raises(CompositionError, match="'other' trains on .*clean pass, and 'mine'"):
        merge([silent, ("other", Plan(submodels=SubModels(passes=2)))])
    with pytest.raises(CompositionError, match="'other' trains on .*clean pass, and 'mine'"):
        merge([silent, ("other", EmbeddingNoise().plan(Step()))])
    # One pass at a rate is how all single passes run, those of other methods too.
    assert merge([silent, ("other", Dropout().plan(Step()))]).submodels is not None


def test_a_term_that_two_methods_yield_raises_an_error_at_the_first_step() -> None:
    stepper = Stepper(tiny_network(), Plain())
    step = StepContext(stepper.network, Batch.of(rows(5, 3)), {}, Step(units=2), Streams(0))
    totals = step_totals([AT(), Scaled()], step)
    next(totals).total(Step(units=2)).backward()
    with pytest.raises(
        CompositionError, match="'scaled' and 'at' both have a loss named 'adversarial'"
    ):
        next(totals)


# Every pair


def clash_of(one: str, other: str) -> str | None:
    """Return why two methods do not compose; None where they do."""
    try:
        build(f"{one} + {other}")
    except CompositionError as error:
        return str(error)
    return None


EVERY = [name for name in names() if name != "plain"]


def test_a_pair_of_methods_composes_or_the_conflict_names_both() -> None:
    clashes = {pair: clash_of(*pair) for pair in itertools.combinations(EVERY, 2)}
    assert all(
        clash is None or (repr(one) in clash and repr(other) in clash)
        for (one, other), clash in clashes.items()
    )


@pytest.mark.parametrize("one", EVERY)
def test_every_method_trains_in_a_composition(one: str) -> None:
    index = EVERY.index(one) + 1
    others = [*EVERY[index:], *EVERY[: index - 1]]
    other = next(other for other in others if clash_of(one, other) is None)
    method = build(f"{one} + {other}")
    model = tiny_bert()
    modules = [type(module) for module in model.modules()]
    stepper = Stepper(model, method, seed=1, total=2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    batches = [rows(5, 3, seed=step) for step in range(2)]
    stepper.prepare(batches)
    before = copies(model)
    for epoch, batch in enumerate(batches):
        stepper.begin_epoch(epoch)
        optimizer.zero_grad()
        logs = stepper.backward(batch)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        stepper.step(optimizer)
        assert all(torch.isfinite(torch.tensor(value)) for value in logs.values())
    stepper.finish()
    stepper.remove_hooks()
    assert any(not torch.equal(tensor, before[name]) for name, tensor in model.named_parameters())
    assert [type(module) for module in model.modules()] == modules
    assert all(parameter.requires_grad for parameter in model.parameters())
