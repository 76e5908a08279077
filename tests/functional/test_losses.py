from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from temper.functional.losses import (
    distillation,
    jensen_shannon,
    squared_difference,
    symmetric_kl,
)


def logits_of(*probabilities: float) -> Tensor:
    return torch.tensor([probabilities], dtype=torch.float64).log()


@pytest.mark.parametrize(
    ("given_dtype", "expected"),
    [
        (torch.bfloat16, torch.float32),
        (torch.float16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ],
)
def test_divergences_are_at_least_in_single_precision(
    given_dtype: torch.dtype, expected: torch.dtype
) -> None:
    logits = torch.tensor([[0.5, -1.0]], dtype=given_dtype)
    assert jensen_shannon(logits, -logits).dtype == expected
    assert symmetric_kl(logits, -logits).dtype == expected
    assert squared_difference(logits[:, :1], logits[:, 1:]).dtype == expected


def test_jensen_shannon_by_hand() -> None:
    # P = (1/2, 1/2), Q = (1/4, 3/4), M = (3/8, 5/8).
    first = 0.5 * math.log(4 / 3) + 0.5 * math.log(4 / 5)
    second = 0.25 * math.log(2 / 3) + 0.75 * math.log(6 / 5)
    result = jensen_shannon(logits_of(0.5, 0.5), logits_of(0.25, 0.75))
    assert result.tolist() == pytest.approx([(first + second) / 2], rel=1e-12)


def test_symmetric_kl_is_half_the_sum_of_both_directions() -> None:
    # KL(P||Q) = ln(2)/2 + ln(2/3)/2, KL(Q||P) = ln(1/2)/4 + 3 ln(3/2)/4.
    there = 0.5 * math.log(2) + 0.5 * math.log(2 / 3)
    back = 0.25 * math.log(1 / 2) + 0.75 * math.log(3 / 2)
    result = symmetric_kl(logits_of(0.5, 0.5), logits_of(0.25, 0.75))
    assert result.tolist() == pytest.approx([(there + back) / 2], rel=1e-12)


def test_extreme_scores_give_finite_divergences_and_gradients() -> None:
    p = torch.tensor([[1e4, -1e4, 0.0]], requires_grad=True)
    q = torch.tensor([[-1e4, 1e4, 0.0]], requires_grad=True)
    (jensen_shannon(p, q) + symmetric_kl(p, q)).sum().backward()
    assert torch.isfinite(p.grad).all()
    assert torch.isfinite(q.grad).all()


def test_a_softened_prediction_by_the_sum_over_classes() -> None:
    student = torch.tensor([[1.0, -2.0, 0.5], [0.0, 3.0, 1.0]], dtype=torch.float64)
    teacher = torch.tensor([[0.0, 0.5, -1.0], [2.0, 2.0, -4.0]], dtype=torch.float64)
    result = distillation(student, teacher, temperature=3.0)
    for row in range(2):
        p = [math.exp(float(t) / 3) for t in teacher[row]]
        q = [math.exp(float(z) / 3) for z in student[row]]
        kl = sum(a / sum(p) * math.log(a / sum(p) * sum(q) / b) for a, b in zip(p, q, strict=True))
        assert result[row].item() == pytest.approx(9 * kl, rel=1e-12)
    assert distillation(student.bfloat16(), teacher.bfloat16()).dtype == torch.float32


def test_the_size_of_a_distillation_s_gradient_does_not_fall_with_the_temperature() -> None:
    # T large: T^2 KL -> |z' - t'|^2 / (2 C), of logits less their mean (Hinton et al., 2.1).
    student = torch.tensor([[1.0, -2.0, 0.5]], dtype=torch.float64)
    teacher = torch.tensor([[0.0, 0.5, -1.0]], dtype=torch.float64)
    apart = (student - student.mean()) - (teacher - teacher.mean())
    result = distillation(student, teacher, temperature=1e4)
    assert result.item() == pytest.approx(apart.square().sum().item() / 6, rel=1e-3)


def test_a_squared_difference_is_of_each_row() -> None:
    first, second = torch.tensor([[1.0], [2.0]]), torch.tensor([[4.0], [0.0]])
    assert squared_difference(first, second).tolist() == [9.0, 4.0]
