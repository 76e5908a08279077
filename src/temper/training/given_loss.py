"""The loss that a user gives the Trainer, as a function of logits and labels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def task_loss_of(
    given: Callable[..., Any] | None, *, outputs: Callable[..., Any]
) -> Callable[[Tensor, Tensor], Tensor] | None:
    """Return ``compute_loss_func`` as a function of logits and labels.

    It is called for the logits of every pass, with the rows of this call as the number of items, so
    that a sum that it divides by them and a plain mean both give the mean over the rows. That mean
    then counts for each row of the call: micro-batches and processes weigh by their rows, as one
    batch would.

    Args:
        given: As ``Trainer`` takes it; None where there is none.
        outputs: Makes of ``logits`` the outputs of a model, which it is given.
    """
    if given is None:
        return None

    def loss(logits: Tensor, labels: Tensor) -> Tensor:
        items = torch.tensor(len(labels), device=labels.device)
        value: Tensor = given(outputs(logits=logits), labels, num_items_in_batch=items)
        return value

    return loss
