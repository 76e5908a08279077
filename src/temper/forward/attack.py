"""The gradient that an attack climbs, from a pass of its own."""

from __future__ import annotations

import torch
from torch import Tensor

from temper.forward.perturbations import Perturbation
from temper.forward.step import StepContext
from temper.models.network import Recording


def gradient_at(
    step: StepContext,
    perturbation: Perturbation,
    delta: Tensor | None,
    *,
    channel_norms: bool = False,
) -> tuple[Tensor, Recording]:
    """Differentiate the task's loss by delta alone, outside any distributed wrapper (2F).

    All passes of an attack drop the same units, so that delta climbs one function.

    Args:
        step: The micro-batch.
        perturbation: Where delta is added.
        delta: Where to differentiate [B, T, D]; None for zero.
        channel_norms: Whether to record gradient norms at the dropout sites.

    Returns:
        The gradient [B, T, D], and what was noted.
    """
    if delta is None:
        delta = perturbation.zeros(step.network, step.batch)
    point = delta.detach().requires_grad_()
    recording = Recording(channel_norms=channel_norms)
    logits = step.logits(
        "attack", delta=point, site=perturbation.site, recording=recording, wrapped=False
    )
    (gradient,) = torch.autograd.grad(step.task_rows(logits).sum(), point)
    return gradient, recording
