from __future__ import annotations

import math

import hypothesis.strategies as st
import pytest
import torch
from torch import Tensor

from temper.errors import DataError, SettingError
from temper.functional.losses import (
    OwnLoss,
    jensen_shannon,
    pairwise_divergence,
    squared_difference,
    symmetric_kl,
    task_loss,
)

LN2 = math.log(2)


def logits_of(*probabilities: float) -> Tensor:
    return torch.tensor([probabilities], dtype=torch.float64).log()


scores = st.lists(st.floats(-60, 60, allow_nan=False, width=32), min_size=3, max_size=3).map(
    lambda values: torch.tensor([values])
)


def test_class_weights_multiply_rows_and_are_not_renormalised() -> None:
    logits = torch.zeros(3, 2)
    labels = torch.tensor([0, 1, 1])
    loss = task_loss(logits, labels, class_weights=torch.tensor([2.0, 0.5]))
    assert loss.tolist() == pytest.approx([2 * LN2, LN2 / 2, LN2 / 2])


@pytest.mark.parametrize(
    ("logits", "labels", "weights", "message"),
    [
        (torch.zeros(1, 1), torch.zeros(1), torch.ones(2), "have no classes"),
        (torch.zeros(2, 1), torch.tensor([0, 0]), None, "one number a row"),
        (torch.zeros(2, 3), torch.zeros(2), None, r"shape \(2, 3\) for 2 rows"),
    ],
)
def test_labels_of_another_kind_of_task_are_refused(
    logits: Tensor, labels: Tensor, weights: Tensor | None, message: str
) -> None:
    with pytest.raises((DataError, SettingError), match=message):
        task_loss(logits, labels, class_weights=weights)


@pytest.mark.parametrize("labels", [[1, 5], [5, 1], [-1, 5]])
def test_a_label_that_is_no_class_is_named(labels: list[int]) -> None:
    wrong = next(label for label in labels if label not in (0, 1))
    said = rf"Label {wrong} is out of range: the model has 2 classes.*in 0 to 1.*num_labels"
    with pytest.raises(DataError, match=said):
        task_loss(torch.zeros(2, 2), torch.tensor(labels))
    with pytest.raises(DataError, match=said):
        OwnLoss()(torch.zeros(2, 2), torch.tensor(labels), smoothing=0.0)


def test_a_row_that_cross_entropy_leaves_out_has_no_loss() -> None:
    assert task_loss(torch.zeros(2, 2), torch.tensor([-100, 1]))[0] == 0


@pytest.mark.parametrize(
    ("given_dtype", "expected"),
    [
        (torch.bfloat16, torch.float32),
        (torch.float16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ],
)
def test_losses_are_at_least_in_single_precision(
    given_dtype: torch.dtype, expected: torch.dtype
) -> None:
    logits = torch.tensor([[0.5, -1.0]], dtype=given_dtype)
    weights = torch.ones(2)
    assert task_loss(logits, torch.tensor([1]), class_weights=weights).dtype == expected
    assert jensen_shannon(logits, -logits).dtype == expected
    assert symmetric_kl(logits, -logits).dtype == expected
    assert squared_difference(logits[:, :1], logits[:, 1:]).dtype == expected


def test_jensen_shannon_by_hand() -> None:
    # P = (1/2, 1/2), Q = (1/4, 3/4), M = (3/8, 5/8).
    first = 0.5 * math.log(4 / 3) + 0.5 * math.log(4 / 5)
    second = 0.25 * math.log(2 / 3) + 0.75 * math.log(6 / 5)
    found = jensen_shannon(logits_of(0.5, 0.5), logits_of(0.25, 0.75))
    assert found.tolist() == pytest.approx([(first + second) / 2], rel=1e-12)


def test_symmetric_kl_is_half_the_sum_of_both_directions() -> None:
    # KL(P||Q) = ln(2)/2 + ln(2/3)/2, KL(Q||P) = ln(1/2)/4 + 3 ln(3/2)/4.
    there = 0.5 * math.log(2) + 0.5 * math.log(2 / 3)
    back = 0.25 * math.log(1 / 2) + 0.75 * math.log(3 / 2)
    found = symmetric_kl(logits_of(0.5, 0.5), logits_of(0.25, 0.75))
    assert found.tolist() == pytest.approx([(there + back) / 2], rel=1e-12)


def test_extreme_scores_give_finite_losses_and_gradients() -> None:
    p = torch.tensor([[1e4, -1e4, 0.0]], requires_grad=True)
    q = torch.tensor([[-1e4, 1e4, 0.0]], requires_grad=True)
    (jensen_shannon(p, q) + symmetric_kl(p, q) + task_loss(p, torch.tensor([1]))).sum().backward()
    assert torch.isfinite(p.grad).all()
    assert torch.isfinite(q.grad).all()


def test_one_sub_model_has_no_pairs() -> None:
    assert pairwise_divergence([torch.ones(2, 3)], divergence="js").tolist() == [0.0, 0.0]
