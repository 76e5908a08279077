from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from temper import AT, RAT, UEGR, Stepper
from temper.errors import CompositionError
from temper.forward import (
    AdversarialLoss,
    Clean,
    Coupling,
    Joint,
    Noise,
    Perturbation,
    SubModels,
)
from temper.forward.adversarial import FreeAscent, ProjectedAscent
from temper.forward.consistency import Consistency, SpanCut, Virtual
from temper.forward.mixup import Mixup
from temper.forward.objective import add
from temper.forward.stage import Stage
from temper.methods import MethodConfig
from temper.methods.smart import SMART
from temper.models.network import Network, Site
from temper.seeding import Streams
from temper.types import Batch, LossTerms, Step, Term
from tests.contracts.architectures import inputs_of, tiny
from tests.methods.tiny import TinyNetwork, recorded_drops, rows, tiny_bert, tiny_network


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


def run(objective: Clean | Joint, *, rate: float = 0.3) -> tuple[list[LossTerms], TinyNetwork]:
    """Return the totals of the first step, their backwards run, and the network."""
    model = tiny_network(rate=rate)
    network, batch, step, found = Network(model), Batch.of(rows(5, 3, 4, 2)), Step(rows=4), []
    network.probe(batch)
    for each in objective.losses(network, batch, {}, step, Streams(0)):
        each.total(step).backward()
        found.append(each)
    return found, model


ATTACK = AdversarialLoss(Perturbation(0.2), SubModels(), coupling=Coupling(1.0))
ROAST = Consistency(
    Noise(0.3, law="positive"), Perturbation(0.2), weight=1.0, coupling=Coupling(1.0)
)


@pytest.mark.parametrize(
    "objective",
    [
        Clean(submodels=SubModels(), coupling=Coupling(1.0)),
        Joint(parts=(ATTACK,)),
        Joint(parts=(ROAST,)),
        Joint(Clean(submodels=SubModels(), coupling=Coupling(1.0)), (ROAST,)),
        Joint(parts=(replace(ROAST, perturbation=None),)),
        Joint(parts=(Virtual(Perturbation(0.2, steps=2), 1e-3, Coupling(1.0)),)),
        Joint(parts=(ProjectedAscent(Perturbation(0.2), steps=2),)),
        Joint(Clean(weight=0.0), (FreeAscent(3, 0.1),)),
        Joint(parts=(SpanCut(coupling=Coupling(1.0)),)),
    ],
)
def test_each_total_goes_through_the_distributed_wrapper_once_and_has_the_terms_it_says(
    objective: Clean | Joint, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It prepares for one backward at each forward; another would wait for gradients in vain.
    wrapped, plain = [], Network.logits

    def logits(self: Network, batch: Batch, **settings: Any) -> Tensor:
        wrapped.append(settings.get("wrapped", True))
        return plain(self, batch, **settings)

    monkeypatch.setattr(Network, "logits", logits)
    model = (
        tiny_bert()
        if any(isinstance(p, SpanCut) for p in getattr(objective, "parts", ()))
        else None
    )
    network, batch, step = Network(model or tiny_network()), Batch.of(rows(5, 3)), Step(rows=2)
    network.probe(batch)
    wrapped.clear()
    named: set[str] = set()
    for terms in objective.losses(network, batch, {}, step, Streams(0)):
        assert sum(wrapped) == 1
        wrapped.clear()
        terms.total(step).backward()
        named |= {term.name for term in terms.terms}
    joint = objective if isinstance(objective, Joint) else Joint(objective)
    said = {name for part in joint.parts for name in part.terms}
    said |= {"divergence"} if joint.clean.coupling.weight else set()
    assert named - {"task"} == said


def test_without_dropout_nothing_of_a_divergence_is_due_to_it() -> None:
    # The pass it is measured by stands where the clean pass stands: at the noise.
    ((found,), _) = run(Joint(parts=(ROAST,)), rate=0.0)
    assert found.diagnostics["divergence/dropout_share"].item() == pytest.approx(0.0, abs=1e-12)
    consistency = next(term for term in found.terms if term.name == "consistency")
    assert consistency.rows.min() > 1e-4


def test_an_attack_on_some_rows_drops_at_the_rate_that_is_set_for_single_passes() -> None:
    half = SubModels(passes=1, adaptive="fixed", rates=(0.5,))
    objective = Joint(Clean(submodels=half), (AdversarialLoss(Perturbation(0.1), share=0.5),))
    model = tiny_network()
    network, batch, step = Network(model), Batch.of(rows(5, 3, 4, 2)), Step(rows=4)
    network.probe(batch)
    with recorded_drops(model) as drops:
        for each in objective.losses(network, batch, {}, step, Streams(0)):
            each.total(step).backward()
    for calls in drops.values():
        assert [len(call) for call in calls] == [4, 2]
        for multipliers in calls:
            assert set(multipliers.unique().tolist()) <= {0.0, 2.0}


COUPLED = Clean(coupling=Coupling(1.0))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (COUPLED, COUPLED),
        (COUPLED, Joint(parts=(ATTACK,))),
        (Joint(parts=(ATTACK,)), COUPLED),
        (Joint(COUPLED, (Mixup(1.0),)), Joint(parts=(ATTACK,))),
        (Joint(parts=(ATTACK,)), Joint(COUPLED, (Mixup(1.0),))),
    ],
)
def test_two_divergences_are_named_with_both_methods(
    first: Clean | Joint, second: Clean | Joint
) -> None:
    with pytest.raises(CompositionError, match=r"'one' and 'two' both yield a term 'divergence'"):
        add([("one", first), ("two", second)])


def test_a_term_that_two_parts_yield_is_found_beside_a_divergence() -> None:
    with pytest.raises(CompositionError, match="both yield a term 'mixup'"):
        add([("one", Joint(parts=(Mixup(1.0),))), ("two", Joint(COUPLED, (Mixup(1.0),)))])
    with pytest.raises(CompositionError, match="both yield a term 'mixup'"):
        add([("one", Joint(COUPLED, (Mixup(1.0),))), ("two", Joint(parts=(Mixup(1.0),)))])


@pytest.mark.parametrize("rates", [None, SubModels(passes=1, adaptive="fixed", rates=(0.5,))])
@pytest.mark.parametrize("several", [False, True])
def test_passes_of_one_name_drop_the_same_units_and_others_do_not(
    rates: SubModels | None, several: bool
) -> None:
    model = tiny_network()
    network, batch = Network(model), Batch.of(rows(5, 3))
    network.probe(batch)
    stage = Stage(network, batch, {}, Step(rows=2), Streams(0), rates=rates)
    with recorded_drops(model) as drops:
        for stream in ("one", "two", "one"):
            if several:
                stage.passes(SubModels(), stream=stream)
            else:
                stage.logits(stream)
    for first, _, again in drops.values():
        torch.testing.assert_close(first, again)
    assert any(not torch.allclose(first, other) for first, other, _ in drops.values())


@pytest.mark.parametrize("site", ["word", "output"])
def test_a_perturbation_is_as_wide_as_the_embeddings_at_its_site(site: Site) -> None:
    network, batch = Network(tiny("albert")), Batch.of(inputs_of("albert"))
    config = network.model.config
    assert config.embedding_size != config.hidden_size
    network.probe(batch)
    width = config.embedding_size if site == "word" else config.hidden_size
    for made in (
        Perturbation(0.1, site=site).zeros(network, batch),
        Noise(0.1, site=site).draw(network, batch, seed=0),
    ):
        assert made.shape == (*batch.mask.shape, width)
