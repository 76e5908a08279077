"""The gradient that an attack follows, from a separate pass."""

from __future__ import annotations

from typing import TYPE_CHECKING

from temper.forward.perturbations import Perturbation
from temper.forward.step import StepContext
from temper.lazy import torch
from temper.models.passes import Recording

if TYPE_CHECKING:
    from torch import Tensor


def gradient_at(
    step: StepContext,
    perturbation: Perturbation,
    delta: Tensor | None,
) -> tuple[Tensor, Recording]:
    """Return the gradient of the task loss with respect to delta, not the weights (2F).

    All passes of an attack drop the same units, so that its steps ascend one function. The pass
    does not go through a distributed wrapper.

    Args:
        step: The micro-batch.
        perturbation: Where delta is added.
        delta: The perturbation [B, T, D]; None for zero.

    Returns:
        The gradient [B, T, D], and the recording of the pass.
    """
    if delta is None:
        delta = perturbation.zeros(step.network, step.batch)
    point = delta.detach().requires_grad_()
    recording = Recording()
    logits = step.logits(
        "attack", delta=point, site=perturbation.site, recording=recording, wrapped=False
    )
    (gradient,) = torch.autograd.grad(step.task_rows(logits).sum(), point)
    return gradient, recording
