"""Attacks on some steps, on some rows, or with a consistency loss with the clean pass."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from temper import UEGR, Stepper
from temper.forward import SubModels
from temper.methods import Method
from temper.methods.plain import Plain
from temper.models.network import Network
from temper.seeding import Streams
from temper.types import Batch, LossTerms, Step
from tests.methods.tiny import recorded_drops, rows, tiny_network, totals_of

Rates = dict[object, Tensor]

BATCH = rows(5, 3, 4, 2)
ROWS = 4


def terms(number: int = 0, *, rate: float = 0.0, **settings: object) -> list[LossTerms]:
    """Return the totals of a step whose backwards have run."""
    settings = {"mask": "off", "adaptive": "uniform", **settings}
    method = UEGR(**settings)  # type: ignore[arg-type]
    network, step = Network(tiny_network(rate=rate)), Step(number=number, units=ROWS)
    result = []
    for each in totals_of(method, network, BATCH, now=step, streams=Streams(0).at(step=number)):
        each.total(step).backward()
        result.append(each)
    return result


def gradients(method: Method, *, number: int) -> list[Tensor]:
    model = tiny_network()
    stepper = Stepper(model, method)
    stepper.number = number
    stepper.backward(BATCH)
    result = [parameter.grad for parameter in model.parameters()]
    return [each for each in result if each is not None]


@contextmanager
def recorded_rates() -> Iterator[list[Rates]]:
    """Note the adaptive rates [B, D] at every site, plan by plan."""
    noted: list[Rates] = []
    plan = SubModels.plan

    def noting(self: SubModels, *given: Any, **settings: Any) -> Any:
        made = plan(self, *given, **settings)
        noted.append({key: rate for key, rate in (made.rates or {}).items() if rate is not None})
        return made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SubModels, "plan", noting)
        yield noted


@pytest.mark.parametrize("number", [1, 2, 4, 5])
def test_a_skipped_attack_step_equals_plain_fine_tuning_bit_for_bit(number: int) -> None:
    lazy, plain = (
        gradients(UEGR(mask="off", every=3), number=number),
        gradients(Plain(), number=number),
    )
    assert all(torch.equal(one, other) for one, other in zip(lazy, plain, strict=True))


@pytest.mark.parametrize("number", [0, 3, 6])
def test_a_periodic_attack_is_weighted_by_its_period(number: int) -> None:
    lazy, busy = (gradients(UEGR(mask="off", every=k), number=number) for k in (3, 1))
    plain = gradients(Plain(), number=number)
    for clean, always, result in zip(plain, busy, lazy, strict=True):
        torch.testing.assert_close(result, clean + 3 * (always - clean), rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize("fraction", [0.2, 0.5, 0.75])
def test_attacking_a_fraction_of_rows_gives_them_the_same_losses(fraction: float) -> None:
    # Held to the clean pass too: each to its own row of it.
    settings: dict[str, Any] = {"passes": 1, "divergence_weight": 2.0, "with_clean": True}
    (_, everything) = terms(**settings)
    count, seen = max(1, round(fraction * ROWS)), set()
    for number in range(24):
        (_, some) = terms(number, fraction=fraction, **settings)
        positions = []
        for term, whole in zip(some.terms, everything.terms, strict=True):
            assert term.weight == pytest.approx(whole.weight * ROWS / count)
            nearest = (term.rows[:, None] - whole.rows).abs().min(1)
            assert nearest.values.max() < 1e-12
            positions.append(nearest.indices.tolist())
        assert positions[0] == positions[1]
        assert len(set(positions[0])) == count
        seen |= set(positions[0])
    assert seen == set(range(ROWS))


def test_rates_of_some_rows_follow_their_own_gradients() -> None:
    with recorded_rates() as noted:
        terms(adaptive={"low": 0.0, "high": 0.9}, rate=0.3)
        terms(adaptive={"low": 0.0, "high": 0.9}, rate=0.3, fraction=0.5)
    everything, some = noted
    assert everything.keys() == some.keys()
    for key, rates in some.items():
        assert len(rates) == ROWS // 2
        assert all(any(torch.equal(row, each) for each in everything[key]) for row in rates)


def test_a_single_attacked_pass_is_compared_with_the_detached_clean_pass() -> None:
    settings = {"passes": 1, "divergence_weight": 2.0}
    clean, attacked = terms(with_clean=True, **settings)
    result = {term.name: term for term in attacked.terms}
    one = clean.terms[0].logits[0].detach()[:, 0].softmax(-1)
    other = result["adversarial"].logits[0].detach()[:, 0].softmax(-1)
    middle = (one + other) / 2
    parts = [(each * (each / middle).log()).sum(-1) for each in (one, other)]
    torch.testing.assert_close(result["divergence"].rows.detach(), sum(parts) / 2)
    constant, moving = result["divergence"].logits
    assert not constant.requires_grad
    assert moving.requires_grad
    # Without it one pass has nothing to be compared with.
    assert [term.name for term in terms(**settings)[1].terms] == ["adversarial"]


@pytest.mark.parametrize(
    ("settings", "forwards"),
    [({"every": 2}, [2, 1, 2, 1]), ({"fraction": 0.5, "every": 3}, [2, 1, 1, 2])],
)
def test_skipped_attack_steps_run_no_extra_pass(
    settings: dict[str, float], forwards: list[int]
) -> None:
    model = tiny_network()
    stepper = Stepper(model, UEGR(mask="off", **settings))
    stepper.network.probe(Batch.of(BATCH))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    for expected in forwards:
        with recorded_drops(model) as drops:
            stepper.backward(BATCH)
        stepper.step(optimizer)
        assert {len(calls) for calls in drops.values()} == {expected}
