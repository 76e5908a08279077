from __future__ import annotations

import math
from collections.abc import Callable

import hypothesis.strategies as st
import pytest
import torch
from torch import Tensor

from temper.errors import DataError, SettingError
from temper.functional.losses import (
    Divergence,
    GivenLoss,
    OwnLoss,
    distillation,
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


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float32, torch.float64])
def test_the_loss_of_a_regression_is_the_squared_error_of_each_row(kind: torch.dtype) -> None:
    values, targets = torch.tensor([[1.0], [-2.0], [0.5]], dtype=kind), [3.0, 1.0, 0.5]
    for labels in (torch.tensor(targets), torch.tensor(targets, dtype=torch.float64)[:, None]):
        found = task_loss(values, labels)
        assert found.dtype == (torch.float64 if kind == torch.float64 else torch.float32)
        assert found.tolist() == [4.0, 9.0, 0.0]


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
        (torch.zeros(2, 3), torch.zeros(2, 3).long(), None, r"row, \[2\], .* of shape \(2, 3\)"),
    ],
)
def test_labels_of_another_kind_of_task_are_refused(
    logits: Tensor, labels: Tensor, weights: Tensor | None, message: str
) -> None:
    with pytest.raises((DataError, SettingError), match=message):
        task_loss(logits, labels, class_weights=weights)


def test_numbers_cannot_be_smoothed() -> None:
    with pytest.raises(SettingError, match="Label smoothing needs classes"):
        task_loss(torch.zeros(2, 1), torch.zeros(2), smoothing=0.1)


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
    found = pairwise_divergence([torch.ones(2, 3, dtype=torch.bfloat16)], divergence="js")
    assert (found.dtype, found.tolist()) == (torch.float32, [0.0, 0.0])


def test_sub_models_diverge_by_the_sum_over_all_their_pairs() -> None:
    one, two, three = torch.randn(3, 2, 4, dtype=torch.float64)
    measures: list[tuple[Divergence, Callable[[Tensor, Tensor], Tensor]]]
    measures = [("js", jensen_shannon), ("sym_kl", symmetric_kl)]
    for name, measure in measures:
        wanted = measure(one, two) + measure(one, three) + measure(two, three)
        torch.testing.assert_close(pairwise_divergence([one, two, three], divergence=name), wanted)


def test_a_softened_prediction_by_the_sum_over_classes() -> None:
    student = torch.tensor([[1.0, -2.0, 0.5], [0.0, 3.0, 1.0]], dtype=torch.float64)
    teacher = torch.tensor([[0.0, 0.5, -1.0], [2.0, 2.0, -4.0]], dtype=torch.float64)
    found = distillation(student, teacher, temperature=3.0)
    for row in range(2):
        p = [math.exp(float(t) / 3) for t in teacher[row]]
        q = [math.exp(float(z) / 3) for z in student[row]]
        kl = sum(a / sum(p) * math.log(a / sum(p) * sum(q) / b) for a, b in zip(p, q, strict=True))
        assert found[row].item() == pytest.approx(9 * kl, rel=1e-12)
    assert distillation(student.bfloat16(), teacher.bfloat16()).dtype == torch.float32


def test_the_size_of_a_distillation_s_gradient_does_not_fall_with_the_temperature() -> None:
    # T large: T^2 KL -> |z' - t'|^2 / (2 C), of logits less their mean (Hinton et al., 2.1).
    student = torch.tensor([[1.0, -2.0, 0.5]], dtype=torch.float64)
    teacher = torch.tensor([[0.0, 0.5, -1.0]], dtype=torch.float64)
    apart = (student - student.mean()) - (teacher - teacher.mean())
    found = distillation(student, teacher, temperature=1e4)
    assert found.item() == pytest.approx(apart.square().sum().item() / 6, rel=1e-3)


def test_a_squared_difference_and_a_pair_s_divergence_are_of_each_row() -> None:
    first, second = torch.tensor([[1.0], [2.0]]), torch.tensor([[4.0], [0.0]])
    assert squared_difference(first, second).tolist() == [9.0, 4.0]
    three = [first, second, torch.tensor([[0.0], [0.0]])]
    assert pairwise_divergence(three, divergence="js", regression=True).tolist() == [26.0, 8.0]


def test_a_given_loss_is_one_a_row_or_a_mean_that_counts_for_each() -> None:
    logits, labels = torch.tensor([[1.0, 2.0], [3.0, 5.0]]), torch.tensor([[0], [1]])
    a_row = GivenLoss(lambda z, y: z[torch.arange(2), y])
    assert a_row(logits, labels, smoothing=0.0).tolist() == [1.0, 5.0]
    mean = GivenLoss(lambda z, y: z.mean())
    assert mean(logits.bfloat16(), labels, smoothing=0.0).tolist() == [2.75, 2.75]
    assert mean(logits.bfloat16(), labels, smoothing=0.0).dtype == torch.float32


@pytest.mark.parametrize(
    ("function", "smoothing", "came"),
    [
        (lambda z, y: z, 0.0, r"one loss a row \[2\], got \(2, 3\)"),
        (lambda z, y: 0.5, 0.0, "got float"),
        (lambda z, y: z.mean(), 0.1, "a loss function was given in its place"),
    ],
)
def test_a_given_loss_of_anything_else_is_refused(
    function: Callable[[Tensor, Tensor], Tensor], smoothing: float, came: str
) -> None:
    with pytest.raises(SettingError, match=came):
        GivenLoss(function)(torch.zeros(2, 3), torch.tensor([0, 1]), smoothing=smoothing)


class Elsewhere(Tensor):
    """Labels that say they lie on a device, where looking at them would wait for it."""

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return torch.device("cuda")


def test_labels_on_a_device_are_looked_at_in_the_first_batch_alone() -> None:
    wrong = torch.tensor([0, 2]).as_subclass(Elsewhere)
    with pytest.raises(DataError, match="Label 2 is out of range"):
        OwnLoss()(torch.zeros(2, 2), wrong, smoothing=0.0)
    loss, right = OwnLoss(), torch.tensor([0, 1]).as_subclass(Elsewhere)
    assert loss(torch.zeros(2, 2), right, smoothing=0.0).tolist() == pytest.approx([LN2, LN2])
    with pytest.raises(IndexError, match="Target 2 is out of bounds"):
        loss(torch.zeros(2, 2), wrong, smoothing=0.0)


def test_a_smoothed_target_is_that_of_the_formula_and_its_weights_weigh_each_class() -> None:
    logits = torch.tensor([[1.0, -2.0, 0.5]], dtype=torch.float64)
    weights, log_q = torch.tensor([2.0, 1.0, 0.5]), logits.log_softmax(-1)[0]
    found = task_loss(logits, torch.tensor([2]), class_weights=weights, smoothing=0.3)
    target = [0.1, 0.1, 0.8]
    expected = -sum(
        weight * share * value
        for weight, share, value in zip(weights.tolist(), target, log_q.tolist(), strict=True)
    )
    assert found.item() == pytest.approx(expected, rel=1e-12)
    assert OwnLoss(weights)(logits, torch.tensor([2]), smoothing=0.3).item() == found.item()


def test_the_task_s_own_loss_has_its_class_weights_in_every_batch() -> None:
    loss, logits, labels = (
        OwnLoss(torch.tensor([2.0, 0.5])),
        torch.zeros(2, 2),
        torch.tensor([0, 1]),
    )
    for _ in range(2):
        assert loss(logits, labels, smoothing=0.0).tolist() == pytest.approx([2 * LN2, LN2 / 2])
