"""A user's module may return the values of a regression as [B] or as [B, 1]."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import smooth_l1_loss

from temper import Stepper
from temper.methods import configure
from temper.testing.tiny import rows, tiny_bert


class Values(nn.Module):
    def __init__(self, *, flat: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.bert = tiny_bert(classes=1).double()
        self.flat = flat

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        values = self.bert(input_ids=input_ids, attention_mask=attention_mask).logits
        return values[:, 0] if self.flat else values


def gradient(stepper: Stepper, *, labels: bool = True) -> dict[str, Tensor]:
    batch = rows(5, 3, 7, regression=True)
    if not labels:
        del batch["labels"]
    stepper.backward(batch)
    return stepper.params.gradients()


@pytest.mark.parametrize("name", ["plain", "r_drop", "uegr", "vat", "r3f", "distil", "mixup"])
def test_both_shapes_train_to_the_same_weights(name: str) -> None:
    flat, column = (
        gradient(Stepper(Values(flat=flat).train(), configure(name, {}), seed=3))
        for flat in (True, False)
    )
    assert all(torch.equal(flat[each], column[each]) for each in column)


def test_both_shapes_are_values_without_labels() -> None:
    flat, column = (
        gradient(Stepper(Values(flat=flat).train(), "vat", seed=3), labels=False)
        for flat in (True, False)
    )
    assert all(torch.equal(flat[each], column[each]) for each in column)


def test_a_given_loss_gets_the_shape_of_the_module() -> None:
    given = (
        lambda values, labels: smooth_l1_loss(values, labels),
        lambda values, labels: smooth_l1_loss(values[:, 0], labels),
    )
    flat, column = (
        gradient(Stepper(Values(flat=flat).train(), "uegr", seed=3, task_loss=function))
        for flat, function in zip((True, False), given, strict=True)
    )
    assert all(torch.equal(flat[each], column[each]) for each in column)
