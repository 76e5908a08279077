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
from temper.forward.consistency import Consistency, Proximal, SpanCut, Virtual
from temper.forward.distillation import Distillation
from temper.forward.mixup import Mixup
from temper.forward.objective import Objective, add, plain
from temper.forward.smoothness import Smoothness
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


def test_what_no_term_reaches_has_a_gradient_of_0_and_not_none() -> None:
    network, batch = Network(tiny_network()), Batch.of(rows(5, 3))
    objective = Joint(Clean(weight=0.0), (AdversarialLoss(Perturbation(0.1)),))
    total = next(objective.losses(network, batch, {}, Step(rows=2), Streams(0)))
    assert total.carried is not None
    total.carried.backward()
    gradients = [weight.grad for weight in network.model.parameters()]
    assert all(gradient is not None and not gradient.any() for gradient in gradients)


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


def test_an_ascent_says_at_its_end_by_how_much_the_loss_rose() -> None:
    found, _ = run(Joint(Clean(weight=0.0), (FreeAscent(3, 0.1),)))
    first, middle, last = found
    assert first.diagnostics == middle.diagnostics == {}
    rise = last.terms[0].rows.mean() - first.terms[0].rows.mean()
    torch.testing.assert_close(last.diagnostics["attack/loss_rise"], rise.detach())


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
        Joint(parts=(ProjectedAscent(Perturbation(0.2, True, site="output"), 2, True),)),
        Joint(parts=(Mixup(1.0),)),
        Joint(Clean(submodels=SubModels()), (Mixup(1.0, level="pooled"),)),
        Joint(Clean(submodels=SubModels()), (Proximal(Coupling(1.0)), Distillation(1.0))),
        Joint(Clean(submodels=SubModels()), (Smoothness(layers="logits"),)),
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
        if any(isinstance(p, SpanCut | Smoothness) for p in getattr(objective, "parts", ()))
        else None
    )
    network, batch, step = Network(model or tiny_network()), Batch.of(rows(5, 3)), Step(rows=2)
    network.probe(batch)
    wrapped.clear()
    named: set[str] = set()
    # An average of the weights that is not the weights.
    average = {name: tensor.detach() / 2 for name, tensor in network.model.named_parameters()}
    state = {rule: {"weights": average} for rule in ("average", "teacher")}
    for terms in objective.losses(network, batch, state, step, Streams(0)):
        assert sum(wrapped) == 1
        wrapped.clear()
        for term in terms:
            if term.name in ("jacobian", "hessian"):
                continue
            # How hard it pulls can be read off the logits that it keeps.
            moving = [each for each in term.logits if each.requires_grad]
            pulls = torch.autograd.grad(term.value(step), moving, retain_graph=True)
            assert sum(float(each.abs().sum()) for each in pulls) > 0
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


def test_on_rows_without_labels_those_parts_are_left_that_read_none() -> None:
    taught = Distillation(1.0)
    joint = Joint(Clean(smoothing=0.1), (ATTACK, taught))
    assert joint.without_labels() == replace(joint, parts=(taught,))
    assert Joint(parts=(ATTACK,)).without_labels() is None


def test_the_stage_of_some_rows_is_the_stage_but_for_its_batch() -> None:
    network, batch = Network(tiny_network()), Batch.of(rows(5, 3, 4, 2))
    rates = SubModels(passes=1, adaptive="fixed", rates=(0.5,))
    stage = Stage(network, batch, {"rule": {}}, Step(7), Streams(3), 0.1, rates)
    some = stage.of(torch.tensor([2, 0]))
    assert torch.equal(some.batch.inputs["input_ids"], batch.inputs["input_ids"][[2, 0]])
    for name in ("network", "state", "step", "rng", "smoothing", "rates"):
        assert getattr(some, name) is getattr(stage, name)


@pytest.mark.parametrize(
    ("plan", "refused"),
    [
        (Clean(noise=Noise(0.1)), True),
        (Clean(submodels=SubModels(passes=2)), True),
        # One pass at a rate is how all single passes run, those of the parts too.
        (Clean(submodels=SubModels(passes=1, adaptive="fixed", rates=(0.5,))), False),
        (Clean(smoothing=0.1), False),
    ],
)
def test_a_plan_of_a_clean_pass_that_is_not_run_is_refused(plan: Clean, refused: bool) -> None:
    silent: Objective = Joint(Clean(weight=0.0), (Mixup(1.0),))
    named: list[tuple[str, Objective]] = [("one", plan), ("two", silent)]
    if not refused:
        assert add(named) == Joint(replace(plan, weight=0.0), (Mixup(1.0),))
        return
    with pytest.raises(CompositionError, match="'one' plans the clean pass, and 'two' runs none"):
        add(named)


def test_a_clean_loss_of_weight_1_is_plain_fine_tuning_which_has_no_opinion() -> None:
    assert plain(1.0) == Clean()
    assert plain(0.5) == Clean(weight=0.5)


def test_clean_stages_alone_add_to_a_clean_stage() -> None:
    noise, half = Noise(0.1), Clean(weight=0.5)
    found = add([("one", Clean(noise=noise)), ("two", Clean(smoothing=0.1)), ("three", half)])
    assert found == Clean(weight=0.5, noise=noise, smoothing=0.1)


def test_clean_weights_that_differ_and_objectives_of_another_kind_are_named() -> None:
    with pytest.raises(CompositionError, match=r"has weight 0\.5 in 'one' and 2 in 'two'"):
        add([("one", Clean(weight=0.5)), ("two", Clean(weight=2.0))])

    class Odd(Clean):
        """Not a Joint, and more than the clean stage."""

    with pytest.raises(CompositionError, match="objective of 'odd' is a Odd, which cannot be add"):
        add([("one", Clean()), ("odd", Odd())])


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


@pytest.mark.parametrize("several", [False, True])
def test_what_attention_drops_too_follows_from_the_name_of_the_pass(several: bool) -> None:
    """It drops by a function, which draws from the global generator."""
    network, batch = Network(tiny_bert(dropout=0.0, attention=0.5)), Batch.of(rows(9, 7))
    network.probe(batch)
    stage = Stage(network, batch, {}, Step(rows=2), Streams(0))

    def logits(stream: str) -> Tensor:
        if several:
            return torch.cat(stage.passes(SubModels(), stream=stream))
        return stage.logits(stream)

    first, other, again = (logits(stream) for stream in ("one", "two", "one"))
    assert torch.equal(first, again)
    assert not torch.allclose(first, other)


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
