"""Heads of one unit per row: the errors of labels, logits and settings, and a user's loss."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from temper.errors import DataError, ModelError, SettingError
from temper.heads import Classification, Head, Heads, Regression
from temper.models.kinds import check_outputs, head_of
from temper.types import Batch

LN2 = math.log(2)


def batch_of(rows: int, labels: Tensor | None = None) -> Batch:
    return Batch({"input_ids": torch.zeros(rows, 3, dtype=torch.long)}, labels)


def loss(logits: Tensor, labels: Tensor, *, smoothing: float = 0.0, **settings: Any) -> Tensor:
    """Return the losses [B] of logits [B, C] by the head that the labels choose."""
    head = Heads(**settings).of(labels)
    result = head.loss(logits.unsqueeze(1), labels, smoothing=smoothing)
    assert result.shape == (len(logits), 1)
    return result[:, 0]


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float32, torch.float64])
def test_the_loss_of_a_regression_is_the_squared_error_of_each_row(kind: torch.dtype) -> None:
    values, targets = torch.tensor([[1.0], [-2.0], [0.5]], dtype=kind), [3.0, 1.0, 0.5]
    for labels in (torch.tensor(targets), torch.tensor(targets, dtype=torch.float64)[:, None]):
        result = loss(values, labels)
        assert result.dtype == (torch.float64 if kind == torch.float64 else torch.float32)
        assert result.tolist() == [4.0, 9.0, 0.0]


def test_class_weights_multiply_rows_and_are_not_renormalized() -> None:
    labels = torch.tensor([0, 1, 1])
    head = Classification(class_weights=torch.tensor([2.0, 0.5]))
    for _ in range(2):
        result = head.loss(torch.zeros(3, 1, 2), labels)
        assert result.flatten().tolist() == pytest.approx([2 * LN2, LN2 / 2, LN2 / 2])


@pytest.mark.parametrize(
    ("logits", "labels", "weights", "message"),
    [
        (torch.zeros(1, 1), torch.zeros(1), torch.ones(2), "have no classes"),
        (torch.zeros(2, 1), torch.tensor([0, 0]), None, "one number per row"),
        (torch.zeros(2, 3), torch.zeros(2), None, r"shape \(2, 3\) for 2 rows"),
        (torch.zeros(2, 3), torch.zeros(2, 3).long(), None, r"row, \[2\], .* of shape \(2, 3\)"),
    ],
)
def test_labels_of_another_kind_of_task_raise_an_error(
    logits: Tensor, labels: Tensor, weights: Tensor | None, message: str
) -> None:
    with pytest.raises((DataError, SettingError), match=message):
        loss(logits, labels, class_weights=weights)


def test_numbers_cannot_be_smoothed() -> None:
    with pytest.raises(SettingError, match="Label smoothing needs classes"):
        loss(torch.zeros(2, 1), torch.zeros(2), smoothing=0.1)


@pytest.mark.parametrize("labels", [[1, 5], [5, 1], [-1, 5]])
def test_a_label_that_is_no_class_is_named(labels: list[int]) -> None:
    wrong = next(label for label in labels if label not in (0, 1))
    message = rf"Label {wrong} is out of range: the model has 2 classes.*in 0 to 1.*num_labels"
    head = Classification()
    for _ in range(2):
        with pytest.raises(DataError, match=message):
            head.loss(torch.zeros(2, 1, 2), torch.tensor(labels))


class Elsewhere(Tensor):
    """Labels that report a device, where a check would wait for the computation."""

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return torch.device("cuda")


def test_labels_on_a_device_are_checked_in_the_first_batch_alone() -> None:
    wrong = torch.tensor([0, 2]).as_subclass(Elsewhere)
    with pytest.raises(DataError, match="Label 2 is out of range"):
        loss(torch.zeros(2, 2), wrong)
    head, right = Classification(), torch.tensor([0, 1]).as_subclass(Elsewhere)
    assert head.loss(torch.zeros(2, 1, 2), right).flatten().tolist() == pytest.approx([LN2, LN2])
    with pytest.raises(IndexError, match="Target 2 is out of bounds"):
        head.loss(torch.zeros(2, 1, 2), wrong)


def test_a_row_that_cross_entropy_ignores_has_no_loss_and_counts() -> None:
    labels = torch.tensor([-100, 1])
    batch, logits, head = batch_of(2, labels), torch.zeros(2, 1, 2), Classification()
    assert head.loss(logits, labels).flatten().tolist() == pytest.approx([0.0, LN2])
    assert head.unit_mask(batch, logits).tolist() == [[True], [True]]
    assert head.units(batch) == 2


# Logits


@pytest.mark.parametrize("head", [Classification(), Regression()])
def test_logits_of_a_row_are_one_unit(head: Head) -> None:
    values = torch.arange(6, dtype=torch.float64).reshape(2, 3)
    for output in (values, SimpleNamespace(logits=values)):
        assert torch.equal(head.logits(output, batch_of(2)), values.unsqueeze(1))
    assert head.logits(values[:, 0], batch_of(2)).tolist() == [[[0.0]], [[3.0]]]
    for wrong in (values, values.expand(2, 2, 3)):
        with pytest.raises(ModelError, match=r"\[3, classes\], but Mine returned \(2, .*3\)"):
            head.logits(wrong, batch_of(3), model="Mine")
    with pytest.raises(ModelError, match=r"\[2, classes\], but the model returned \(2, 1, 3\)"):
        head.logits(values.unsqueeze(1), batch_of(2))


# A user's loss


def test_a_given_loss_is_one_per_row_or_a_mean_that_counts_for_each() -> None:
    logits, labels = torch.tensor([[1.0, 2.0], [3.0, 5.0]]), torch.tensor([[0], [1]])
    assert loss(logits, labels, task_loss=lambda z, y: z[torch.arange(2), y]).tolist() == [1, 5]
    result = loss(logits.bfloat16(), labels, task_loss=lambda z, y: z.mean())
    assert result.tolist() == [2.75, 2.75]
    assert result.dtype == torch.float32


@pytest.mark.parametrize(
    ("function", "smoothing", "message"),
    [
        (lambda z, y: z, 0.0, r"one loss per row \[2\], got \(2, 3\)"),
        (lambda z, y: 0.5, 0.0, "got float"),
        (lambda z, y: z.mean(), 0.1, "which your loss function replaces"),
    ],
)
def test_a_given_loss_of_anything_else_raises_an_error(
    function: Callable[[Tensor, Tensor], Tensor], smoothing: float, message: str
) -> None:
    with pytest.raises(SettingError, match=message):
        loss(torch.zeros(2, 3), torch.tensor([0, 1]), smoothing=smoothing, task_loss=function)


@pytest.mark.parametrize("shape", [(2,), (2, 1)])
def test_a_given_loss_gets_logits_in_the_shape_of_the_model(shape: tuple[int, ...]) -> None:
    seen = []

    def given(logits: Tensor, labels: Tensor) -> Tensor:
        seen.append((tuple(logits.shape), tuple(labels.shape)))
        return logits.mean()

    labels = torch.zeros(2)
    head = Heads(task_loss=given).of(labels)
    head.loss(head.logits(torch.zeros(shape), batch_of(2, labels)), labels)
    assert seen == [(shape, (2,))]


# Which head


@pytest.mark.parametrize(
    ("labels", "outputs", "name"),
    [
        (torch.tensor([0, 1]), 1, "classification"),
        (torch.tensor([0.0, 1.0]), 3, "regression"),
        (torch.tensor([True, False]), None, "classification"),
        (None, 1, "regression"),
        (None, 2, "classification"),
        (None, None, "classification"),
    ],
)
def test_labels_choose_the_head_and_outputs_without_labels(
    labels: Tensor | None, outputs: int | None, name: str
) -> None:
    logits = None if outputs is None else torch.zeros(2, 1, outputs)
    heads = Heads()
    assert heads.of(labels, logits).name == name
    # The same object each time: it remembers that labels were checked.
    assert heads.of(labels, logits) is heads.of(labels, logits)


@pytest.mark.parametrize(
    ("config", "head"),
    [
        (None, Classification),
        (SimpleNamespace(), Classification),
        (SimpleNamespace(num_labels=2, problem_type=None), Classification),
        (SimpleNamespace(num_labels=1, problem_type=None), Regression),
        (SimpleNamespace(num_labels=1, problem_type="single_label_classification"), Regression),
        (SimpleNamespace(num_labels=1, problem_type="regression"), Regression),
    ],
)
def test_a_config_has_a_head(config: Any, head: type[Head]) -> None:
    assert head_of(config) is head


def test_a_regression_with_several_outputs_raises_an_error() -> None:
    config = SimpleNamespace(num_labels=3, problem_type="regression")
    with pytest.raises(ModelError, match="must have one output, mine has 3"):
        check_outputs(config, model="mine")


def test_only_classes_can_be_smoothed_and_have_differences() -> None:
    assert Classification.has_classes
    assert not Regression.has_classes
