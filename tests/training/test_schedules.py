"""Settings that change over the run: each step is that of a method with the step's numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from temper import Stepper
from temper.errors import SettingError
from temper.functional.schedules import Cosine, Linear, WarmUp
from temper.methods import configure
from temper.methods.at import AT
from temper.methods.method import smoothed
from temper.methods.r_drop import RDrop
from temper.methods.smart import SMART
from temper.methods.uegr import UEGR
from temper.methods.w_cons import WCons
from temper.seeding import Streams
from temper.types import Batch
from tests.methods.tiny import rows, tiny_bert

TOTAL = 4


def batches(step: int) -> list[dict[str, Tensor]]:
    return [rows(5, 3, seed=step), rows(4, seed=step + 10)]


def trained(model: nn.Module, method: Any, *, stop: int | None = None, saved: Any = None) -> Any:
    """Take the steps of a run; with ``stop`` only up to it, returning what a checkpoint holds."""
    stepper = Stepper(model, method, seed=3, total=TOTAL)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    if saved is None:
        stepper.prepare([rows(5, 3)])
    else:
        stepper.load_state_dict(saved)
    stepper.begin_epoch(0)
    for step in range(stepper.number, TOTAL if stop is None else stop):
        optimizer.zero_grad()
        stepper.backward(*batches(step))
        stepper.step(optimizer)
    if stop is None:
        stepper.finish()
    state = stepper.state_dict()
    stepper.release()
    return state


def equal(one: nn.Module, other: nn.Module) -> bool:
    return all(torch.equal(p, q) for p, q in zip(one.parameters(), other.parameters(), strict=True))


SCHEDULED = {
    "uegr": UEGR(
        epsilon=WarmUp(0.1, 0.5),
        divergence_weight=Linear(0.0, 0.2),
        adaptive={"low": 0.1, "high": Linear(0.1, 0.4)},
        mask={"alpha": Cosine(0.2, 0.8)},
    ),
    "smart": SMART(proximal_weight=Linear(0.0, 1.0, begin=0.3)),
    "w_cons": WCons(weight=WarmUp(0.1)),
    "r_drop + awp": RDrop(weight=WarmUp(1.0)) + configure("awp", {"gamma": Linear(0.02, 0.0)}),
}


@pytest.mark.parametrize("name", SCHEDULED)
def test_every_step_is_that_of_a_method_with_the_step_s_numbers(name: str) -> None:
    model = tiny_bert()
    stepper = Stepper(model, SCHEDULED[name], seed=3, total=TOTAL)
    for number in range(TOTAL):
        stepper.number = number
        logs = stepper.backward(*batches(number))
        found = {key: each.clone() for key, each in stepper.params.gradients().items()}
        stepper.discard()
        still = Stepper(tiny_bert(), SCHEDULED[name].at(number / TOTAL), seed=3, total=TOTAL)
        still.number = number
        still.backward(*batches(number))
        expected = still.params.gradients()
        for key, gradient in expected.items():
            assert torch.equal(found[key], gradient), key
        for setting, schedule in stepper.method.schedules.items():
            assert logs[f"schedule/{setting}"] == schedule.at(number / TOTAL)


@pytest.mark.parametrize("name", SCHEDULED)
def test_a_run_that_stops_halfway_goes_on_as_if_it_had_not(name: str) -> None:
    whole, halves = tiny_bert(), tiny_bert()
    trained(whole, SCHEDULED[name])
    saved = trained(halves, SCHEDULED[name], stop=2)
    trained(halves, SCHEDULED[name], saved=saved)
    assert equal(whole, halves)


def test_a_step_of_weight_0_runs_no_pass_and_draws_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    method = AT(adversarial_weight=Linear(0.0, 1.0, begin=0.5))
    model, plain = tiny_bert(), tiny_bert()
    calls: list[None] = []
    model.register_forward_hook(lambda *_: calls.append(None))
    drawn: set[str] = set()
    draw = Streams.local

    def noted(self: Streams, stream: str, *key: object) -> int:
        drawn.add(" ".join([stream, *map(str, key)]))
        return draw(self, stream, *key)

    monkeypatch.setattr(Streams, "local", noted)
    stepper = Stepper(model, method, seed=3, total=TOTAL)
    vanilla = Stepper(plain, "vanilla", seed=3, total=TOTAL)
    stepper.network.probe(Batch.of(rows(5, 3)))
    calls.clear()
    stepper.backward(rows(5, 3))
    assert (len(calls), drawn) == (1, {"dropout clean"})
    vanilla.backward(rows(5, 3))
    for key, gradient in vanilla.params.gradients().items():
        assert torch.equal(stepper.params.gradients()[key], gradient)
    stepper.discard()
    stepper.number = 3
    assert "loss/adversarial" in stepper.backward(rows(5, 3))


def test_a_rule_without_a_schedule_stays_while_what_reads_it_has_weight_0() -> None:
    method = SMART(proximal_weight=Linear(0.0, 1.0)).build()
    assert [rule.name for rule in method.at(0.0).rule.rules] == ["average"]
    pulled = WCons(weight=WarmUp(0.1)).build()
    assert [[rule.name for rule in pulled.at(s).rule.rules] for s in (0.0, 0.5)] == [[], ["anchor"]]


def test_labels_that_training_smooths_are_smoothed_in_every_step() -> None:
    method = smoothed(AT(epsilon=WarmUp(0.1)).build(), 0.2)
    assert method.at(0.5).objective.clean.smoothing == 0.2  # type: ignore[attr-defined]


def test_a_run_of_unknown_length_and_values_out_of_bounds_are_refused() -> None:
    with pytest.raises(SettingError, match="has schedules and must know how many steps"):
        Stepper(tiny_bert(), AT(epsilon=WarmUp(0.1))).backward(rows(5, 3))
    with pytest.raises(SettingError, match=r"`AT.epsilon` must be >= 0"):
        AT(epsilon=Linear(-0.1, 0.1))
    with pytest.raises(SettingError, match="low must be at most high"):
        UEGR(adaptive={"low": Linear(0.0, 0.3), "high": 0.2})
    with pytest.raises(SettingError, match=r"`method.weight`: Unknown schedule 'liner'"):
        configure("r_drop", {"weight": {"schedule": "liner"}}, prefix="method.")
