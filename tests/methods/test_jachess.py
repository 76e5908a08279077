"""JacHess and related methods: active steps, size of the penalty, and refusals."""

from __future__ import annotations

import copy
import statistics
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from temper import Stepper
from temper.errors import ModelError
from temper.methods import configure
from temper.types import Step
from tests.methods.tiny import rows, tiny_bert, tiny_network, totals_of

BATCH = rows(5, 3, 6)
UNIFORM = {"layers": "uniform"}
FIXED: dict[str, Any] = {"strength": {"weight": 0.5}, **UNIFORM}
MEASURED = 8
"""Steps whose gradients set eta."""


def quiet() -> nn.Module:
    return tiny_bert(dropout=0.0, attention=0.0).double()


def unlabeled(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    return {key: tensor for key, tensor in batch.items() if key != "labels"}


def stepper_of(
    settings: dict[str, Any],
    *,
    name: str = "jachess",
    model: nn.Module | None = None,
    number: int = 0,
) -> Stepper:
    stepper = Stepper(model or quiet(), configure(name, settings), seed=1)
    stepper.number = number
    return stepper


def gradients(
    settings: dict[str, Any],
    *,
    name: str = "jachess",
    number: int = 0,
    batch: dict[str, Tensor] = BATCH,
    model: nn.Module | None = None,
) -> dict[str, Tensor]:
    stepper = stepper_of(settings, name=name, model=model, number=number)
    stepper.backward(batch)
    return stepper.params.gradients()


def assert_bit_equal(first: dict[str, Tensor], second: dict[str, Tensor]) -> None:
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


# When it acts


@pytest.mark.parametrize("number", [0, 4, 8])
def test_a_periodic_penalty_is_weighted_by_its_period(number: int) -> None:
    lazy = gradients({**FIXED, "every": 4}, number=number)
    busy, plain = gradients(FIXED, number=number), gradients({}, name="plain", number=number)
    for name, gradient in lazy.items():
        penalty = busy[name] - plain[name]
        torch.testing.assert_close(gradient, plain[name] + 4 * penalty, rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize("number", [1, 2, 3, 5])
def test_steps_without_the_penalty_equal_plain_ones_bit_for_bit(number: int) -> None:
    model = tiny_bert()
    result = gradients({**FIXED, "every": 4}, number=number, model=model)
    assert_bit_equal(result, gradients({}, name="plain", number=number, model=tiny_bert()))


@pytest.mark.parametrize("number", [0, 3])
def test_labeled_batches_of_the_two_phases_are_plain_ones_bit_for_bit(number: int) -> None:
    result = gradients(FIXED, name="jachess_unlabeled", number=number, model=tiny_bert())
    assert_bit_equal(result, gradients({}, name="plain", number=number, model=tiny_bert()))


def test_unlabeled_batches_of_the_two_phases_have_the_penalty_alone() -> None:
    phases = gradients(FIXED, name="jachess_unlabeled", batch=unlabeled(BATCH))
    both, plain = gradients(FIXED), gradients({}, name="plain")
    for name, gradient in both.items():
        penalty = phases.get(name, torch.zeros_like(gradient))
        torch.testing.assert_close(penalty, gradient - plain[name], rtol=1e-7, atol=1e-10)
    reached = {name for name, gradient in phases.items() if gradient.any()}
    assert not any("word_embeddings" in name or "classifier" in name for name in reached)
    assert any("layer.1" in name for name in reached)


def test_unlabeled_rows_have_the_penalty_in_every_step() -> None:
    lazy = gradients({**FIXED, "every": 4}, batch=unlabeled(BATCH), number=1)
    assert_bit_equal(lazy, gradients(FIXED, batch=unlabeled(BATCH), number=1))


# How large it is


def norms_of_both(stepper: Stepper, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Return the norms of the gradients of the task's loss and of the weighted penalty.

    Over the weights that both reach.
    """
    state = copy.deepcopy(stepper.state)
    # Full, so that looking does not measure.
    state["smoothness"]["ratios"] = torch.ones(MEASURED)
    (terms,) = totals_of(
        stepper.method,
        stepper.network,
        batch,
        now=stepper._now(),
        state=state,
        streams=stepper.streams.at(step=stepper.number),
    )
    named = {term.name: term.rows.mean() * term.weight for term in terms}
    weights = list(stepper.network.model.parameters())
    result = []
    for loss in (named.pop("task"), sum(named.values())):
        result.append(torch.autograd.grad(loss, weights, retain_graph=True, allow_unused=True))
    shared = [(a, b) for a, b in zip(*result, strict=True) if a is not None and b is not None]
    assert 0 < len(shared) < len(weights)
    one, other = (torch.cat([each[side].flatten() for each in shared]).norm() for side in (0, 1))
    return one, other


@pytest.mark.parametrize("ratio", [0.1, 1.0])
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("jachess", UNIFORM),
        ("jachess", {**UNIFORM, "scheme": "four_point"}),
        ("jachess", {**UNIFORM, "hessian_weight": 0.3}),
        ("jachess", {**UNIFORM, "jacobian_weight": 1e-9, "hessian_weight": 0.0}),
        ("jacobian", {}),
        ("cross_holder", {}),
    ],
)
def test_the_penalty_gradient_has_the_requested_ratio_to_the_task_gradient(
    name: str, settings: dict[str, Any], ratio: float
) -> None:
    stepper = stepper_of({**settings, "strength": {"ratio": ratio}}, name=name)
    logs = stepper.backward(BATCH)
    assert logs["smoothness/weight"] == pytest.approx(stepper.state["smoothness"]["eta"])
    task, penalty = norms_of_both(stepper, BATCH)
    assert float(penalty / task) == pytest.approx(ratio, rel=1e-9)


def test_the_ratio_is_that_of_the_gradients_of_all_processes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[list[float]] = []

    def all_reduce(sums: Tensor) -> None:
        seen.append(sums.tolist())
        # Squared norms of the task's gradient and the penalty's in the other process.
        sums.add_(torch.tensor([5.0, 7.0], dtype=sums.dtype))

    monkeypatch.setattr(torch.distributed, "all_reduce", all_reduce)
    stepper = stepper_of({**UNIFORM, "strength": {"ratio": 0.5}})
    given = {"state": stepper.state, "streams": stepper.streams.at(step=0)}
    now = Step(units=6, ranks=2)
    next(totals_of(stepper.method, stepper.network, BATCH, now=now, **given))
    ((task, penalty),) = seen
    expected = 0.5 * ((task + 5) / (penalty + 7)) ** 0.5
    assert stepper.state["smoothness"]["eta"] == pytest.approx(expected)


def test_the_ratio_ignores_the_factor_one_half_of_the_jacobian_baseline() -> None:
    etas = [
        stepper_of({"strength": {"ratio": 0.5}, **more}, name="jacobian")
        for more in ({}, {"jacobian_weight": 2.0})
    ]
    for stepper in etas:
        stepper.backward(BATCH)
    one, other = (stepper.state["smoothness"]["eta"] for stepper in etas)
    assert one == pytest.approx(2 * other)
    assert_close_all(etas[0].params.gradients(), etas[1].params.gradients())


def assert_close_all(first: dict[str, Tensor], second: dict[str, Tensor]) -> None:
    for name, gradient in first.items():
        torch.testing.assert_close(second[name], gradient, rtol=1e-6, atol=1e-9)


def test_the_factor_is_the_median_of_the_first_eight_ratios() -> None:
    stepper = stepper_of({**UNIFORM, "strength": {"ratio": 0.5}})
    ratios = []
    for number in range(MEASURED + 3):
        stepper.number = number
        logs = stepper.backward(BATCH)
        kept = stepper.state["smoothness"]["eta"]
        assert logs["smoothness/weight"] == pytest.approx(kept)
        if number < MEASURED:
            task, penalty = norms_of_both(stepper, BATCH)
            # The penalty's norm is proportional to eta, so this is that of eta = 1 over the task's.
            ratios.append(float(task / penalty) * kept)
        assert kept == pytest.approx(0.5 * statistics.median(ratios), rel=1e-9)
        stepper.discard()
        with torch.no_grad():
            for tensor in stepper.params.tensors.values():
                tensor.mul_(1.05)
    assert len(stepper.state["smoothness"]["ratios"]) == MEASURED
    assert max(ratios) > 1.05 * min(ratios)


def test_a_periodic_penalty_measures_its_factor_only_in_its_steps() -> None:
    stepper = stepper_of({**UNIFORM, "every": 4})
    measured = []
    for number in range(13):
        stepper.number = number
        stepper.backward(BATCH)
        stepper.discard()
        measured.append(len(stepper.state["smoothness"]["ratios"]))
    assert measured == [1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4]


def test_the_factor_for_unlabeled_rows_is_measured_on_labeled_ones() -> None:
    stepper = stepper_of(UNIFORM, name="jachess_unlabeled")
    plain = gradients({}, name="plain")
    stepper.backward(BATCH)
    assert_close_all(plain, stepper.params.gradients())
    kept = stepper.state["smoothness"]["eta"]
    stepper.discard()
    stepper.number = 1
    logs = stepper.backward(unlabeled(rows(4, 4, seed=2)))
    assert logs["smoothness/weight"] == pytest.approx(kept)
    assert logs["loss"] == pytest.approx(
        kept * (logs["unweighted/jacobian"] + logs["unweighted/hessian"])
    )
    assert stepper.state["smoothness"]["eta"] == kept


def test_the_first_micro_batch_sets_the_factor_for_all_of_its_step() -> None:
    stepper, alone = stepper_of(UNIFORM), stepper_of(UNIFORM)
    stepper.backward(BATCH, rows(4, 4, seed=2))
    alone.backward(BATCH)
    assert stepper.state["smoothness"]["eta"] == pytest.approx(alone.state["smoothness"]["eta"])
    # Where that one has no labels, nothing is measured in the step.
    stepper.discard()
    stepper.number = 1
    stepper.backward(unlabeled(BATCH), BATCH)
    assert len(stepper.state["smoothness"]["ratios"]) == 1


def test_with_a_frozen_body_the_head_trains_without_the_penalty() -> None:
    model = quiet()
    model.bert.requires_grad_(False)
    stepper = stepper_of(UNIFORM, model=model)
    stepper.backward(BATCH)
    result = stepper.params.gradients()
    assert set(result) == {"classifier.weight", "classifier.bias"}
    plain = gradients({}, name="plain")
    assert_close_all(result, {name: plain[name] for name in result})


@pytest.mark.parametrize("name", ["jachess", "jachess_unlabeled"])
def test_with_lp_ft_the_factor_is_measured_after_probing(name: str) -> None:
    settings = {"lp_ft": {"probe": {"fraction": 0.5}}, name: UNIFORM}
    stepper = Stepper(quiet(), configure(f"lp_ft + {name}", settings), total=4)
    optimizer = torch.optim.SGD(stepper.network.model.parameters(), lr=1e-3)
    factors = []
    for number in range(4):
        stepper.backward(rows(4, 4, seed=number))
        stepper.discard()
        # While it probes, rows without labels must not stop it either.
        logs = stepper.backward(unlabeled(BATCH))
        factors.append(logs["smoothness/weight"])
        stepper.step(optimizer)
    assert factors[:2] == [0.0, 0.0]
    assert factors[2] > 0 < factors[3]


# Precision


@pytest.mark.parametrize("scheme", ["difference", "four_point"])
def test_under_autocast_the_penalty_is_that_of_single_precision(scheme: str) -> None:
    settings = {**FIXED, "scheme": scheme}

    def logs(*, half: bool) -> dict[str, float]:
        stepper = stepper_of(settings, model=quiet().float())
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            return stepper.backward(BATCH)

    single, mixed = logs(half=False), logs(half=True)
    for term in ("loss/jacobian", "loss/hessian"):
        assert mixed[term] == pytest.approx(single[term], rel=1e-3)
    # The task's loss is in half, or the test would compare a thing with itself.
    assert mixed["loss/task"] != single["loss/task"]


def test_under_autocast_the_table_has_the_gradient_of_the_task_alone() -> None:
    grads = {}
    for name, settings in (("jachess", FIXED), ("plain", {})):
        stepper = stepper_of(settings, name=name, model=quiet().float())
        with torch.autocast("cpu", torch.bfloat16):
            stepper.backward(BATCH)
        grads[name] = stepper.params.gradients()
    table = "bert.embeddings.word_embeddings.weight"
    assert torch.equal(grads["jachess"][table], grads["plain"][table])
    weight = "bert.encoder.layer.0.output.dense.weight"
    assert not torch.allclose(grads["jachess"][weight], grads["plain"][weight], rtol=0.01)


# Settings


def test_a_recomputed_step_measures_the_factor_once() -> None:
    settings = {"adv_weight": {"rho": 0.5}, "jachess": UNIFORM}
    stepper = Stepper(quiet(), configure("adv_weight + jachess", settings), seed=1)
    kept = []
    for number in range(3):
        stepper.number = number
        stepper.backward(BATCH)
        stepper.discard()
        kept.append(len(stepper.state["smoothness"]["ratios"]))
    assert kept == [1, 2, 3]


@pytest.mark.parametrize("scheme", ["difference", "four_point"])
def test_a_row_without_a_real_token_does_not_affect_gradients(scheme: str) -> None:
    batch = {name: value.clone() for name, value in BATCH.items()}
    batch["attention_mask"][1] = 0
    stepper = stepper_of({**FIXED, "scheme": scheme})
    stepper.backward(batch)
    assert all(bool(g.isfinite().all()) for g in stepper.params.gradients().values())


class Widening(nn.Module):
    """A block that gives a number of further channels."""

    def __init__(self, block: nn.Module, more: int) -> None:
        super().__init__()
        self.block, self.more = block, nn.Linear(4, more) if more else None

    def forward(self, hidden_states: Tensor) -> Tensor:
        own = self.block(hidden_states)
        if self.more is None:
            return own
        return torch.cat([own, self.more(hidden_states).tanh()], -1)


def test_blocks_of_different_widths_need_the_four_point_scheme() -> None:
    model = tiny_network(rate=0.0)
    first, second = model.layers
    model.layers = nn.ModuleList([Widening(first, 0), Widening(second, 2)]).double()
    model.head = nn.Linear(6, 3).double()
    stepper = stepper_of(FIXED, model=model)
    with pytest.raises(ModelError, match=r"differ in width \(\[4, 6\]\).*scheme='four_point'"):
        stepper.backward(BATCH)
    stepper.remove_hooks()
    logs = stepper_of({**FIXED, "scheme": "four_point"}, model=model).backward(BATCH)
    assert logs["loss/hessian"] > 0


def test_a_run_that_resumes_between_penalty_steps_measures_at_once() -> None:
    stepper = stepper_of(UNIFORM, number=7)
    stepper.backward(BATCH)
    task, penalty = norms_of_both(stepper, BATCH)
    assert float(penalty / task) == pytest.approx(1.0, rel=1e-6)
