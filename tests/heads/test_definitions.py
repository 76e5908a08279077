"""Losses and divergences of heads equal float64 references written from the equations."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from torch import Tensor
from torch.nn.functional import cross_entropy

from temper.functional import losses
from temper.heads import UNLABELED, Classification, MultiLabel, Regression, Tokens
from tests.heads import definitions
from tests.heads.cases import case_of

EXACT = 1e-9


class Units(Classification):
    """Accepts labels [B, U] unchanged."""

    def unit_labels(self, logits: Tensor, labels: Tensor) -> Tensor:
        return labels


class Numbers(Regression):
    """Accepts numbers [B, U] unchanged."""

    def unit_labels(self, logits: Tensor, labels: Tensor) -> Tensor:
        return labels


@st.composite
def logits_of(draw: Any, *, least: int = 2) -> tuple[Tensor, Tensor, Tensor]:
    """Draw logits [B, U, C] of two passes, and labels [B, U]."""
    rows, units, classes = draw(st.integers(1, 4)), draw(st.integers(1, 4)), draw(st.integers(2, 5))
    classes = max(least, classes)
    draws = torch.Generator().manual_seed(draw(st.integers(0, 10**6)))
    scale = draw(st.sampled_from([0.1, 1.0, 8.0]))
    first, second = scale * torch.randn(
        2, rows, units, classes, generator=draws, dtype=torch.float64
    )
    return first, second, torch.randint(classes, (rows, units), generator=draws)


def by_unit(measure: Callable[..., float], *tensors: Tensor) -> Tensor:
    """Compute the value of each unit [B, U] in plain Python."""
    rows = zip(*(each.tolist() for each in tensors), strict=True)
    values = [[measure(*unit) for unit in zip(*row, strict=True)] for row in rows]
    return torch.tensor(values, dtype=torch.float64)


def assert_equal(result: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(result, expected, rtol=EXACT, atol=EXACT)


@given(logits_of(), st.sampled_from([0.0, 0.1, 1.0]), st.booleans())
def test_classification_is_the_weighted_smoothed_cross_entropy(
    drawn: tuple[Tensor, Tensor, Tensor], smoothing: float, weighted: bool
) -> None:
    logits, _, labels = drawn
    weights = [0.25 + index for index in range(logits.shape[-1])] if weighted else None
    head = Units(class_weights=None if weights is None else torch.tensor(weights))
    result = head.loss(logits, labels, smoothing=smoothing)

    def of_unit(scores: list[float], label: int) -> float:
        return definitions.cross_entropy(scores, label, weights, smoothing)

    assert_equal(result, by_unit(of_unit, logits, labels))


@given(logits_of(), st.floats(0.5, 4.0))
def test_divergences_of_classes_are_those_of_the_equations(
    drawn: tuple[Tensor, Tensor, Tensor], temperature: float
) -> None:
    first, second, _ = drawn
    head = Classification()
    for kind, measure in (("js", definitions.js), ("sym_kl", definitions.sym_kl)):
        result = head.divergence(first, second, kind=kind)
        assert_equal(result, by_unit(measure, first, second))

    def taught(student: list[float], teacher: list[float]) -> float:
        return definitions.distillation(student, teacher, temperature)

    result = head.distillation(first, second, temperature=temperature)
    assert_equal(result, by_unit(taught, first, second))
    by_logarithm = head.distillation(first, second.log_softmax(-1), temperature=temperature)
    assert_equal(by_logarithm, result)


@given(logits_of())
def test_numbers_have_squared_errors_and_differences(drawn: tuple[Tensor, Tensor, Tensor]) -> None:
    first, second = (each[..., :1] for each in drawn[:2])
    head = Numbers()
    expected = by_unit(lambda a, b: (a[0] - b[0]) ** 2, first, second)
    assert_equal(head.loss(first, second[..., 0]), expected)
    assert_equal(head.divergence(first, second, kind="js"), expected)
    assert_equal(head.divergence(first, second, kind="sym_kl"), expected)
    assert_equal(head.distillation(first, second, temperature=3.0), expected)


@given(logits_of())
def test_probabilities_are_the_softmax(drawn: tuple[Tensor, Tensor, Tensor]) -> None:
    result = Classification().decode(drawn[0].numpy())
    expected = [[definitions.softmax(unit) for unit in row] for row in drawn[0].tolist()]
    assert result == pytest.approx(torch.tensor(expected, dtype=torch.float64).numpy(), rel=EXACT)


def test_tokens_without_a_label_have_no_loss_and_do_not_count() -> None:
    case = case_of("tokens")
    assert isinstance(case.head, Tokens)
    assert case.batch.labels is not None
    logits, _ = case.logits()
    result = case.head.loss(logits, case.batch.labels)
    counted = 0
    for row, labels in enumerate(case.batch.labels.tolist()):
        for index, label in enumerate(labels):
            counted += label != UNLABELED
            expected = 0.0
            if label != UNLABELED:
                expected = definitions.cross_entropy(logits[row, index].tolist(), label)
            assert result[row, index].item() == pytest.approx(expected, rel=EXACT)
    assert case.head.units(case.batch) == counted


def test_several_labels_have_the_binary_cross_entropy_of_each() -> None:
    case = case_of("multi_label")
    assert isinstance(case.head, MultiLabel)
    assert case.batch.labels is not None
    result = case.head.loss(case.logits()[0], case.batch.labels)
    known = case.head.unit_mask(case.batch, result)
    labels = case.batch.labels.clamp(min=0)
    expected = by_unit(definitions.binary_cross_entropy, case.output.logits, labels)
    assert_equal(result, torch.where(known, expected, 0.0))


def test_several_labels_weigh_and_smooth_those_that_apply() -> None:
    """``-w q log s(z) - (1 - q) log(1 - s(z))`` with ``q = (1 - s) y + s / 2``."""
    case, weights = case_of("multi_label"), [0.5, 1.0, 2.0, 3.0, 4.0]
    assert case.batch.labels is not None
    head = MultiLabel(class_weights=torch.tensor(weights))
    result = head.loss(head.logits(case.output, case.batch), case.batch.labels, smoothing=0.2)
    for row, labels in enumerate(case.batch.labels.tolist()):
        for index, label in enumerate(labels):
            if label == UNLABELED:
                continue
            z, q = float(case.output.logits[row, index]), 0.8 * label + 0.1
            yes, no = definitions.binary_cross_entropy(z, 1), definitions.binary_cross_entropy(z, 0)
            expected = weights[index] * q * yes + (1 - q) * no
            assert result[row, index].item() == pytest.approx(expected, rel=1e-6)


def test_a_span_is_chosen_among_the_positions_of_the_text() -> None:
    case = case_of("spans")
    assert case.batch.labels is not None
    result, apart = (
        case.head.loss(case.logits()[0], case.batch.labels),
        case.head.divergence(*case.logits(), kind="js"),
    )
    for row, (start, end) in enumerate(case.batch.labels.tolist()):
        real = int(case.batch.mask[row].sum())
        for unit, (name, label) in enumerate((("start_logits", start), ("end_logits", end))):
            scores, others = (
                getattr(each, name)[row, :real].tolist() for each in (case.output, case.other)
            )
            if label >= case.batch.ids.shape[1]:
                assert result[row, unit].item() == 0.0
                continue
            expected = definitions.cross_entropy(scores, label)
            assert result[row, unit].item() == pytest.approx(expected, rel=EXACT)
            expected = definitions.js(scores, others)
            assert apart[row, unit].item() == pytest.approx(expected, rel=EXACT)


# One unit per row: the same bits as torch's functions of [B, C]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("weighted", [False, True])
def test_one_unit_per_row_equals_rows_bit_for_bit(
    dtype: torch.dtype, smoothing: float, weighted: bool
) -> None:
    draws = torch.Generator().manual_seed(0)
    logits, others = torch.randn(2, 257, 7, generator=draws, dtype=dtype)
    labels = torch.randint(7, (257,), generator=draws)
    labels[3] = UNLABELED
    weights = torch.rand(7, generator=draws) + 0.5 if weighted else None
    head = Classification(class_weights=weights)

    def gradient(rows: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        leaf = logits.clone().requires_grad_()
        values = rows(leaf)
        values.sum().backward()
        assert leaf.grad is not None
        return values.detach(), leaf.grad

    def of_rows(leaf: Tensor) -> Tensor:
        cast = None if weights is None else weights.to(dtype)
        return cross_entropy(leaf, labels, cast, reduction="none", label_smoothing=smoothing)

    pairs: list[tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = [
        (of_rows, lambda z: head.loss(z[:, None], labels, smoothing=smoothing)[:, 0]),
        (
            lambda z: losses.jensen_shannon(z, others),
            lambda z: head.divergence(z[:, None], others[:, None], kind="js")[:, 0],
        ),
        (
            lambda z: losses.symmetric_kl(z, others),
            lambda z: head.divergence(z[:, None], others[:, None], kind="sym_kl")[:, 0],
        ),
        (
            lambda z: losses.distillation(z, others, temperature=3.0),
            lambda z: head.distillation(z[:, None], others[:, None], temperature=3.0)[:, 0],
        ),
    ]
    for rows, units in pairs:
        for expected, result in zip(gradient(rows), gradient(units), strict=True):
            assert torch.equal(expected, result)


def test_extreme_scores_give_finite_gradients() -> None:
    p = torch.tensor([[[1e4, -1e4, 0.0]]], requires_grad=True)
    q = torch.tensor([[[-1e4, 1e4, 0.0]]], requires_grad=True)
    head = Classification()
    apart = [head.divergence(p, q, kind=kind) for kind in ("js", "sym_kl")]
    (sum(apart) + head.loss(p, torch.tensor([1]))).sum().backward()
    for leaf in (p, q):
        assert leaf.grad is not None
        assert torch.isfinite(leaf.grad).all()


def test_reference_definitions_equal_hand_computed_values() -> None:
    """The definitions themselves: P = (1/2, 1/2), Q = (1/4, 3/4), M = (3/8, 5/8)."""
    p, q = [0.0, 0.0], [math.log(1.0), math.log(3.0)]
    to_middle = 0.5 * math.log(4 / 3) + 0.5 * math.log(4 / 5)
    from_middle = 0.25 * math.log(2 / 3) + 0.75 * math.log(6 / 5)
    assert definitions.js(p, q) == pytest.approx((to_middle + from_middle) / 2)
    there = 0.5 * math.log(2) + 0.5 * math.log(2 / 3)
    back = 0.25 * math.log(1 / 2) + 0.75 * math.log(3 / 2)
    assert definitions.sym_kl(p, q) == pytest.approx((there + back) / 2)
    assert definitions.distillation(p, q, 1.0) == pytest.approx(back)
    assert definitions.cross_entropy(q, 0) == pytest.approx(math.log(4))
    assert definitions.cross_entropy(q, 0, [2.0, 1.0], 1.0) == pytest.approx(
        math.log(4) + math.log(4 / 3) / 2
    )
