from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from temper import AT, RAT, UEGR, Dropout, RDrop, Stepper
from temper.errors import CompositionError, DataError
from temper.forward import Noise, Plan, StepContext, SubModels, plain
from temper.forward.perturbations import zeros
from temper.forward.plan import merge
from temper.methods import Method, compose, configure
from temper.methods.adv_embed import AdvEmbed
from temper.methods.freelb import FreeLB
from temper.methods.smart import SMART
from temper.models.network import Network, Site
from temper.seeding import Streams
from temper.types import Batch, LossTerms, Step, Term
from tests.contracts.architectures import inputs_of, tiny
from tests.methods.tiny import (
    TinyNetwork,
    recorded_drops,
    rows,
    tiny_bert,
    tiny_network,
    totals_of,
)


@pytest.mark.parametrize(
    ("method", "forwards", "names"),
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
def test_a_step_runs_its_declared_forwards_and_names_its_terms(
    method: Method, forwards: int, names: set[str]
) -> None:
    model = tiny_network()
    stepper = Stepper(model, method)
    stepper.network.probe(Batch.of(rows(5, 3)))
    with recorded_drops(model) as drops:
        logs = stepper.backward(rows(5, 3))
    assert {len(calls) for calls in drops.values()} == {forwards}
    assert {key.removeprefix("loss/") for key in logs if key.startswith("loss/")} == names


def test_an_epsilon_of_0_does_not_perturb() -> None:
    stepper = Stepper(tiny_network(rate=0.0), AT(epsilon=0.0))
    logs = stepper.backward(rows(5, 3))
    assert logs["loss/adversarial"] == pytest.approx(logs["loss/task"])
    assert logs["attack/relative_size"] == 0.0


class Unused(Dropout):
    """Runs the clean pass and minimizes nothing on it."""

    NAME = "unused"

    def plan(self, now: Step) -> Plan:
        return Plan(clean=True, totals=1, task_weight=0.0)

    def losses(self, step: StepContext) -> Any:
        yield [step.clean.task]
        yield [step.task((step.logits("other"),), name="other")]


def test_a_parameter_that_no_term_uses_has_a_zero_gradient() -> None:
    network = Network(tiny_network())
    total = next(totals_of(Unused(), network, rows(5, 3)))
    assert list(total) == []
    assert total.carried is not None
    total.carried.backward()
    gradients = [weight.grad for weight in network.model.parameters()]
    assert all(gradient is not None and not gradient.any() for gradient in gradients)


def test_computing_the_attack_before_backward_raises_an_error() -> None:
    losses = totals_of(AT(), Network(tiny_network()), rows(5, 3))
    next(losses)
    with pytest.raises(ValueError, match="clean pass has no gradient"):
        next(losses)


@pytest.mark.parametrize(
    "method",
    [
        *map(configure, ("plain", "r_drop", "uegr", "r_at", "pgd", "mixup", "adv_embed")),
        RAT.preset("released"),
        FreeLB(clean_weight=1.0),
        compose("r_drop", "at"),
        compose("freelb", "label_smoothing"),
    ],
)
def test_a_step_has_as_many_totals_as_its_plan_declares(method: Method) -> None:
    network, step = Network(tiny_bert()), Step(units=2)
    result = 0
    for terms in totals_of(method, network, rows(5, 3)):
        terms.total(step).backward()
        result += 1
    assert result == method.plan(step).all_totals


def test_a_term_is_scaled_by_the_rows_of_the_whole_step() -> None:
    rows_of_term = torch.tensor([1.0, 3.0])
    step = Step(units=8, ranks=2)
    assert Term("task", rows_of_term, 0.5).value(step).item() == 0.5 * 2 * 4 / 8
    assert Term("task", rows_of_term, 0.5, "sum").value(step).item() == 0.5 * 2 * 4


def test_terms_of_a_total_have_different_names() -> None:
    term = Term("task", torch.ones(1))
    with pytest.raises(CompositionError, match="must have distinct names"):
        LossTerms([term, term])


def run(method: Method, *, rate: float = 0.3) -> tuple[list[LossTerms], TinyNetwork]:
    """Return the totals of the first step after their backward passes, and the network."""
    model = tiny_network(rate=rate)
    network, step, result = Network(model), Step(units=4), []
    network.probe(Batch.of(rows(5, 3, 4, 2)))
    for each in totals_of(method, network, rows(5, 3, 4, 2)):
        each.total(step).backward()
        result.append(each)
    return result, model


def test_an_ascent_logs_the_increase_of_the_loss() -> None:
    result, _ = run(FreeLB(step_size=0.1, relative=False))
    first, middle, last = result
    assert first.diagnostics == middle.diagnostics == {}
    rise = last.terms[0].rows.mean() - first.terms[0].rows.mean()
    torch.testing.assert_close(last.diagnostics["attack/loss_rise"], rise.detach())


ROAST = AdvEmbed(
    noise=0.3,
    epsilon=0.2,
    clean_weight=1.0,
    divergence_weight=1.0,
    reduction="mean",
    site="word",
)


@pytest.mark.parametrize(
    ("method", "terms"),
    [
        ("r_drop", {"divergence"}),
        (UEGR(epsilon=0.2, mask=False), {"adversarial", "divergence"}),
        (RAT.preset("released"), {"adversarial", "divergence"}),
        (ROAST, {"adversarial", "consistency"}),
        (RDrop() + ROAST, {"divergence", "adversarial", "consistency"}),
        (configure("r3f", {"preset": "noise"}), {"consistency"}),
        (configure("vat", {"ascent": {"steps": 2}}), {"smoothness"}),
        ("pgd", {"adversarial"}),
        ("freelb", {"adversarial"}),
        ("hidden_cut", {"cut", "cut_divergence"}),
        (configure("pgd", {"site": "output", "random_start": True}), {"adversarial"}),
        ("mixup", {"mixup"}),
        (configure("r_drop + mixup", {"mixup": {"level": "pooled", "clean_weight": 1.0}}), None),
        ("smart + distil", {"smoothness", "proximal", "distillation"}),
        (configure("jachess", {"layers": "logits", "strength": {"weight": 1.0}}), None),
    ],
)
def test_each_total_runs_the_distributed_wrapper_once_and_has_its_terms(
    method: Method | str, terms: set[str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It prepares for one backward at each forward; another would wait for gradients in vain.
    wrapped, original = [], Network.logits

    def logits(self: Network, batch: Batch, **settings: Any) -> Tensor:
        wrapped.append(settings.get("wrapped", True))
        return original(self, batch, **settings)

    monkeypatch.setattr(Network, "logits", logits)
    method = configure(method) if isinstance(method, str) else method
    needs_blocks = any(name in method.name for name in ("hidden_cut", "jachess", "pgd"))
    network, step = Network(tiny_bert() if needs_blocks else tiny_network()), Step(units=2)
    if "smart" in method.name:
        method = configure("smart + distil", {"smart": {"site": "word"}})
    network.probe(Batch.of(rows(5, 3)))
    wrapped.clear()
    named: set[str] = set()
    # An average of the weights that is not the weights.
    average = {name: tensor.detach() / 2 for name, tensor in network.model.named_parameters()}
    state = {rule: {"weights": average} for rule in ("average", "teacher")}
    for each in totals_of(method, network, rows(5, 3), state=state):
        assert sum(wrapped) == 1
        wrapped.clear()
        for term in each:
            if term.name in ("jacobian", "hessian"):
                continue
            # Its gradient is logged from the logits that it keeps.
            moving = [z for z in term.logits if z.requires_grad]
            grads = torch.autograd.grad(term.value(step), moving, retain_graph=True)
            assert sum(float(grad.abs().sum()) for grad in grads) > 0
        each.total(step).backward()
        named |= {term.name for term in each}
    if terms is not None:
        assert named - {"task"} == terms


def test_without_dropout_no_part_of_the_divergence_is_due_to_it() -> None:
    # The pass it is measured by is made where the clean pass is made: at the noise.
    ((result,), _) = run(ROAST, rate=0.0)
    assert result.diagnostics["divergence/dropout_fraction"].item() == pytest.approx(0.0, abs=1e-12)
    consistency = next(term for term in result.terms if term.name == "consistency")
    assert consistency.rows.min() > 1e-4


def test_an_attack_on_some_rows_uses_the_dropout_rate_of_single_passes() -> None:
    attack = UEGR(passes=1, adaptive="uniform", fraction=0.5, mask=False)
    model = tiny_network()
    network, batch, step = Network(model), rows(5, 3, 4, 2), Step(units=4)
    network.probe(Batch.of(batch))
    with recorded_drops(model) as drops:
        for each in totals_of(attack + Dropout(rate=0.5), network, batch):
            each.total(step).backward()
    for calls in drops.values():
        assert [len(call) for call in calls] == [4, 2]
        for multipliers in calls:
            assert set(multipliers.unique().tolist()) <= {0.0, 2.0}


def test_unlabeled_rows_train_only_losses_without_labels() -> None:
    batch = rows(5, 3)
    del batch["labels"]
    network = Network(tiny_network())
    method = configure("at + distil", {})
    average = {n: t.detach() / 2 for n, t in network.model.named_parameters()}
    (total,) = totals_of(method, network, batch, state={"teacher": {"weights": average}})
    assert [term.name for term in total] == ["distillation"]
    with pytest.raises(DataError, match="every loss of the method 'at' needs them"):
        next(totals_of(AT(), network, batch))


def test_a_plan_without_losses_keeps_the_settings_of_the_clean_pass() -> None:
    noise = configure("embedding_noise").plan(Step())
    assert noise.without_losses().start is not None
    assert ROAST.plan(Step()).without_losses() == Plan(
        task_weight=1.0, conflicts=frozenset({"perturbation"})
    )


def test_the_context_of_some_rows_differs_only_in_its_batch() -> None:
    network, batch = Network(tiny_network()), Batch.of(rows(5, 3, 4, 2))
    half = SubModels(passes=1, adaptive="fixed", rates=(0.5,))
    step = StepContext(
        network, batch, {"rule": {}}, Step(7), Streams(3), Plan(smoothing=0.1, submodels=half)
    )
    some = step.take(torch.tensor([2, 0]))
    assert torch.equal(some.batch.inputs["input_ids"], batch.inputs["input_ids"][[2, 0]])
    for name in ("network", "state", "now", "streams", "plan", "single_rates", "notes"):
        assert getattr(some, name) is getattr(step, name)


def test_a_clean_loss_of_weight_1_equals_plain_fine_tuning() -> None:
    assert plain(1.0) == Plan()
    assert plain(0.5) == Plan(task_weight=0.5)


def test_plans_merge_setting_by_setting() -> None:
    half, smooth = Plan(task_weight=0.5, totals=1), Plan(smoothing=0.1, clean=True, totals=2)
    result = merge([("one", half), ("two", smooth), ("three", Plan())])
    assert result == Plan(task_weight=0.5, smoothing=0.1, clean=True, totals=3)


@pytest.mark.parametrize("rates", [None, SubModels(passes=1, adaptive="fixed", rates=(0.5,))])
@pytest.mark.parametrize("several", [False, True])
def test_passes_of_the_same_name_share_a_dropout_mask(
    rates: SubModels | None, several: bool
) -> None:
    model = tiny_network()
    network, batch = Network(model), Batch.of(rows(5, 3))
    network.probe(batch)
    step = StepContext(network, batch, {}, Step(units=2), Streams(0), Plan(submodels=rates))
    with recorded_drops(model) as drops:
        for stream in ("one", "two", "one"):
            if several:
                step.passes(SubModels(), stream=stream)
            else:
                step.logits(stream)
    for first, _, again in drops.values():
        torch.testing.assert_close(first, again)
    assert any(not torch.allclose(first, other) for first, other, _ in drops.values())


@pytest.mark.parametrize("several", [False, True])
def test_attention_dropout_depends_on_the_name_of_the_pass(several: bool) -> None:
    """It drops by a function, which draws from the global generator."""
    network, batch = Network(tiny_bert(dropout=0.0, attention=0.5)), Batch.of(rows(9, 7))
    network.probe(batch)
    step = StepContext(network, batch, {}, Step(units=2), Streams(0))

    def logits(stream: str) -> Tensor:
        if several:
            return torch.cat(step.passes(SubModels(), stream=stream))
        return step.logits(stream)

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
        zeros(network, batch, site=site),
        Noise(0.1, site=site).draw(network, batch, seed=0),
    ):
        assert made.shape == (*batch.mask.shape, width)
