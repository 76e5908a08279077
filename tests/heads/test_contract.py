"""Laws of every head: rows are independent, units are counted once, values are finite."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from peft import TaskType
from torch import Tensor
from transformers import BertConfig
from transformers.models.auto import modeling_auto

from temper.evaluation.predictor import KINDS
from temper.functional.scores import metrics_of
from temper.heads import HEADS, Completions, per_row
from temper.models.blocks import head_settings
from temper.models.kinds import classes_of, head_of
from tests.heads.cases import NAMES, ROWS, Case, case_of
from tests.heads.models import MODELS, model_of

Measure = Callable[[Case], Tensor]


def loss(case: Case) -> Tensor:
    assert case.batch.labels is not None
    return case.head.loss(case.logits()[0], case.batch.labels)


def js(case: Case) -> Tensor:
    return case.head.divergence(*case.logits(), kind="js")


def sym_kl(case: Case) -> Tensor:
    return case.head.divergence(*case.logits(), kind="sym_kl")


def distillation(case: Case) -> Tensor:
    return case.head.distillation(*case.logits(), temperature=2.0)


MEASURES = (loss, js, sym_kl, distillation)
by_head = pytest.mark.parametrize("name", NAMES)
by_measure = pytest.mark.parametrize("measure", MEASURES)


def kept(case: Case, measure: Measure) -> Tensor:
    """Return the sum of each row's units [B]."""
    return per_row(measure(case), case.head.unit_mask(case.batch, case.logits()[0]))


def scaled(case: Case, factor: float) -> Case:
    output, other = (
        SimpleNamespace(**{name: factor * value for name, value in vars(each).items()})
        for each in (case.output, case.other)
    )
    return Case(case.head, case.batch, output, other)


def test_every_head_is_tested() -> None:
    assert set(HEADS) <= set(NAMES)


@by_head
def test_names_of_a_head_exist_in_transformers_and_peft(name: str) -> None:
    head = HEADS[name]
    assert head.name == name
    assert KINDS[head.gives] in HEADS
    assert metrics_of(KINDS[head.gives])
    assert hasattr(modeling_auto, head.auto_class)
    assert head.task_type is None or head.task_type in {task.value for task in TaskType}


@pytest.mark.parametrize("name", MODELS)
def test_a_model_has_the_head_of_its_class_and_config(name: str) -> None:
    assert head_of(model_of(name)[0]).name == name.partition("-")[0]


@pytest.mark.parametrize("name", sorted(name for name in NAMES if HEADS[name].named))
def test_a_new_config_has_the_head_that_it_was_made_for(name: str) -> None:
    config = BertConfig(**head_settings(["a", "b"], kind=name))
    assert head_of(config, sorted(classes_of(HEADS[name].auto_class))) is HEADS[name]


@by_head
def test_metrics_get_one_prediction_per_unit(name: str) -> None:
    case = case_of(name)
    logits, _ = case.logits()
    assert case.head.predictions(logits).shape == logits.shape[:2]
    assert case.head.one_unit == (logits.shape[1] == 1)


@by_head
@by_measure
def test_values_are_one_per_unit_and_finite(name: str, measure: Measure) -> None:
    case = case_of(name)
    logits, _ = case.logits()
    mask = case.head.unit_mask(case.batch, logits)
    assert logits.dim() == 3
    assert mask.dtype == torch.bool
    assert measure(case).shape == mask.shape == logits.shape[:2]
    for factor in (1.0, 1e4):
        assert torch.isfinite(kept(scaled(case, factor), measure)).all()


@by_head
def test_the_units_are_those_of_the_mask(name: str) -> None:
    case = case_of(name)
    mask = case.head.unit_mask(case.batch, case.logits()[0])
    assert case.head.units(case.batch) == int(mask.sum()) > 0


@by_head
@by_measure
def test_micro_batches_add_up_to_the_batch(name: str, measure: Measure) -> None:
    whole = case_of(name)
    parts = [whole.take(torch.tensor(rows)) for rows in ([0], [1, 2], [3])]
    assert sum(each.head.units(each.batch) for each in parts) == whole.head.units(whole.batch)
    total = sum(kept(each, measure).sum().item() for each in parts)
    assert total == pytest.approx(kept(whole, measure).sum().item(), rel=1e-12)


@by_head
@by_measure
def test_a_row_s_values_do_not_depend_on_other_rows(name: str, measure: Measure) -> None:
    case, other = case_of(name), case_of(name, seed=1)
    for row in range(ROWS):
        mixed = case_of(name)
        changed = torch.arange(ROWS) != row
        for mine, theirs in ((mixed.output, other.output), (mixed.other, other.other)):
            for field, value in vars(mine).items():
                value[changed] = vars(theirs)[field][changed]
        assert torch.equal(measure(mixed)[row], measure(case)[row])
        assert not torch.equal(measure(mixed), measure(case))


@by_head
@by_measure
def test_a_row_s_gradient_stays_in_the_row(name: str, measure: Measure) -> None:
    case = case_of(name)
    outputs = list(vars(case.output).values())
    for output in outputs:
        output.requires_grad_()
    kept(case, measure)[1].backward()
    for output in outputs:
        assert output.grad is not None
        reached = output.grad.flatten(1).abs().sum(1) > 0
        assert reached.tolist() == [False, True, False, False]


@by_head
@by_measure
def test_permuted_rows_give_permuted_values(name: str, measure: Measure) -> None:
    case, order = case_of(name), torch.tensor([2, 0, 3, 1])
    # An element's place decides which of the processor's instructions computes it.
    expected = measure(case)[order]
    torch.testing.assert_close(measure(case.take(order)), expected, rtol=1e-12, atol=1e-15)


@by_head
@pytest.mark.parametrize("kind", ["js", "sym_kl"])
def test_a_divergence_is_symmetric_and_zero_of_equal_passes(name: str, kind: str) -> None:
    case = case_of(name)
    first, second = case.logits()
    there = case.head.divergence(first, second, kind=kind)
    torch.testing.assert_close(there, case.head.divergence(second, first, kind=kind))
    assert case.head.divergence(first, first, kind=kind).abs().max() < 1e-12
    assert per_row(there, case.head.unit_mask(case.batch, first)).min() > 0
    third = case.head.logits(case_of(name, seed=2).output, case.batch)
    pairs = [(first, second), (first, third), (second, third)]
    expected = sum(case.head.divergence(*pair, kind=kind) for pair in pairs)
    result = case.head.pairwise([first, second, third], kind=kind)
    torch.testing.assert_close(result, expected)
    single = case.head.pairwise([first.bfloat16()], kind=kind)
    assert (single.dtype, single.any().item()) == (torch.float32, False)


@by_head
def test_distillation_from_an_equal_teacher_is_zero(name: str) -> None:
    case = case_of(name)
    first, _ = case.logits()
    assert case.head.distillation(first, first, temperature=3.0).abs().max() < 1e-12


@pytest.mark.parametrize("name", sorted(HEADS))
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_values_are_at_least_in_single_precision(name: str, dtype: torch.dtype) -> None:
    case = case_of(name, dtype=dtype)
    expected = torch.float64 if dtype == torch.float64 else torch.float32
    if not isinstance(case.head, Completions):  # its losses convert some units at a time
        assert {each.dtype for each in case.logits()} == {expected}
    assert {measure(case).dtype for measure in MEASURES} == {expected}
    raw = case.logits()[0].to(dtype)
    assert case.batch.labels is not None
    assert case.head.loss(raw, case.batch.labels).dtype == expected
    assert case.head.divergence(raw, raw, kind="js").dtype == expected


@by_head
def test_predictions_have_the_logits_shape(name: str) -> None:
    case = case_of(name)
    logits, _ = case.logits()
    result = case.head.decode(logits.numpy())
    assert result.shape == tuple(logits.shape)
    if case.head.has_classes:
        assert result.sum(-1) == pytest.approx(1.0)
    else:
        assert torch.equal(torch.from_numpy(result), logits)
    for position in ((0, 0), (1, 0)):
        assert case.head.decode(logits.numpy()[position][None]) == pytest.approx(
            result[position][None]
        )


def test_ignored_units_may_be_nan() -> None:
    values = torch.tensor([[1.0, float("nan"), 3.0], [4.0, 5.0, float("inf")]], requires_grad=True)
    mask = torch.tensor([[True, False, True], [True, True, False]])
    per_row(values, mask).sum().backward()
    assert per_row(values, mask).tolist() == [4.0, 9.0]
    assert values.grad is not None
    assert torch.equal(values.grad, mask.float())
