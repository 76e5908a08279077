"""Gradients of a step's total by the weights, against central differences of that total."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from temper import Stepper


def farthest_from_differences(
    stepper: Stepper,
    *batches: dict[str, Tensor],
    step: float = 1e-6,
    directions: int = 2,
    spare: str = "word_embeddings",
) -> float:
    """Return by how much of its size a directional derivative differs from ``.grad``.

    Draws are a function of seed and step, so that every call computes the same function of the
    weights. Each weight moves by a random direction over the size of its own gradient, so that a
    small one counts as much as a large one.

    Args:
        stepper: In double precision, prepared.
        batches: Micro-batches of a step, as a collator gives them.
        step: Of the difference.
        directions: How many are tried.
        spare: Weights with this in their name stay where they are.
    """
    model = stepper.network.model
    model.zero_grad()
    stepper.backward(*batches)
    moved: list[tuple[nn.Parameter, Tensor]] = [
        (tensor, tensor.grad.clone())
        for name, tensor in model.named_parameters()
        if spare not in name and tensor.grad is not None
    ]
    assert moved
    stepper.discard()
    floor = 1e-6 * max(float(gradient.norm()) for _, gradient in moved)
    draws, worst = torch.Generator().manual_seed(1), 0.0
    for _ in range(directions):
        ways = [
            torch.randn(tensor.shape, generator=draws, dtype=tensor.dtype)
            / max(float(gradient.norm()), floor)
            for tensor, gradient in moved
        ]
        expected = sum(
            float((gradient * way).sum()) for (_, gradient), way in zip(moved, ways, strict=True)
        )
        totals = []
        for sign in (1, -1):
            _shift(moved, ways, sign * step)
            totals.append(stepper.backward(*batches)["loss"])
            stepper.discard()
            _shift(moved, ways, -sign * step)
        result = (totals[0] - totals[1]) / (2 * step)
        worst = max(worst, abs(result - expected) / len(moved) ** 0.5)
    return worst


def _shift(moved: Any, ways: list[Tensor], factor: float) -> None:
    with torch.no_grad():
        for (tensor, _), way in zip(moved, ways, strict=True):
            tensor.add_(factor * way)
