from __future__ import annotations

import pytest
import torch

from temper import AT, RAT, UEGR, Stepper
from temper.errors import CompositionError
from temper.forward import AdversarialLoss, Clean, Coupling, Joint, Perturbation, SubModels
from temper.methods import MethodConfig
from temper.methods.smart import SMART
from temper.models.network import Network
from temper.seeding import Streams
from temper.types import Batch, LossTerms, Step, Term
from tests.methods.tiny import recorded_drops, rows, tiny_bert, tiny_network


@pytest.mark.parametrize(
    ("config", "forwards", "names"),
    [
        (AT(ascent={"steps": 3}), 4, {"task", "adversarial"}),
        (RAT.preset("released"), 3, {"task", "adversarial", "divergence"}),
        (UEGR(divergence_weight=0.0), 2, {"task", "adversarial"}),
        (SMART(ascent={"steps": 2}), 5, {"task", "smoothness", "proximal"}),
        (SMART(proximal_weight=0.0), 3, {"task", "smoothness"}),
        (SMART(weight=0.0), 2, {"task", "proximal"}),
        (UEGR(adversarial_weight=0.0, divergence_weight=0.01), 2, {"task", "divergence"}),
    ],
)
def test_a_step_costs_the_forwards_it_says_and_names_its_terms(
    config: MethodConfig, forwards: int, names: set[str]
) -> None:
    model = tiny_network()
    stepper = Stepper(model, config)
    stepper.network.probe(Batch.of(rows(5, 3)))
    with recorded_drops(model) as drops:
        logs = stepper.backward(rows(5, 3))
    assert {len(calls) for calls in drops.values()} == {forwards}
    assert {key.removeprefix("loss/") for key in logs if key.startswith("loss/")} == names


def test_an_epsilon_of_0_leaves_the_clean_point() -> None:
    stepper = Stepper(tiny_network(rate=0.0), AT(epsilon=0.0))
    logs = stepper.backward(rows(5, 3))
    assert logs["loss/adversarial"] == pytest.approx(logs["loss/task"])
    assert logs["attack/relative_size"] == 0.0


def test_asking_for_the_attack_before_backward_is_refused() -> None:
    network, batch = Network(tiny_network()), Batch.of(rows(5, 3))
    objective = Joint(parts=(AdversarialLoss(Perturbation(0.1)),))
    losses = objective.losses(network, batch, {}, Step(rows=2), Streams(0))
    next(losses)
    with pytest.raises(ValueError, match="Backward must run on the clean total"):
        next(losses)


@pytest.mark.parametrize(
    "objective",
    [
        Clean(),
        Clean(submodels=SubModels(), coupling=Coupling(1.0)),
        Joint(parts=(AdversarialLoss(Perturbation(0.1), SubModels()),)),
        Joint(parts=(AdversarialLoss(Perturbation(0.1), SubModels(), reuse=False),)),
    ],
)
def test_an_objective_yields_as_many_totals_as_it_says(objective: Clean) -> None:
    network, batch, step = Network(tiny_bert()), Batch.of(rows(5, 3)), Step(rows=2)
    count = 0
    for terms in objective.losses(network, batch, {}, step, Streams(0)):
        terms.total(step).backward()
        count += 1
    assert count == objective.passes(step)


def test_a_term_weighs_its_rows_by_the_whole_step() -> None:
    rows_of_term = torch.tensor([1.0, 3.0])
    step = Step(rows=8, ranks=2)
    assert Term("task", rows_of_term, 0.5).value(step).item() == 0.5 * 2 * 4 / 8
    assert Term("task", rows_of_term, 0.5, "sum").value(step).item() == 0.5 * 2 * 4


def test_a_term_stands_once() -> None:
    term = Term("task", torch.ones(1))
    with pytest.raises(CompositionError, match="present twice"):
        LossTerms.of([term, term])
