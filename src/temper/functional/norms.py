"""Norms of embedding perturbations [B, T, D]: their size, their steepest ascent, their ball.

A norm is three functions (`size`, `steepest`, `project`), the same in training and evaluation.
Letters: B rows, T tokens, D embedding size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from temper.functional.precision import at_least_single
from temper.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

Norm = Literal["l2", "linf", "linf_scaled"]
Scope = Literal["example", "token", "batch"]

_AXES: dict[str, tuple[int, ...]] = {"example": (1, 2), "token": (2,), "batch": (0, 1, 2)}


def masked(values: Tensor, mask: Tensor) -> Tensor:
    """Set values [B, T, D] to zero outside a mask [B, T]; detached, in at least fp32."""
    return torch.where(mask.unsqueeze(-1), at_least_single(values.detach()), 0.0)


def size(values: Tensor, *, norm: Norm, scope: Scope = "example") -> Tensor:
    """Measure values [B, T, D] per example, token or batch: [B, 1, 1], [B, T, 1] or [1, 1, 1].

    ``linf`` and ``linf_scaled`` measure the largest absolute entry.
    """
    axes = _AXES[scope]
    values = at_least_single(values)
    largest = values.abs().amax(dim=axes, keepdim=True)
    if norm != "l2":
        return largest
    # Squares of a small gradient underflow (a sure example would look as if it had none), so the
    # largest entry is taken out first.
    unit = torch.where((largest > 0) & torch.isfinite(largest), largest, 1.0)
    length: Tensor = torch.linalg.vector_norm(values / unit, dim=axes, keepdim=True)
    return length * unit


def steepest(gradient: Tensor, *, norm: Norm, scope: Scope = "example") -> Tensor:
    """Return the direction of size 1 in which an attack steps.

    Along it a linear loss grows most: ``g / ||g||_2`` for ``l2`` (FGM), ``sign(g)`` for ``linf``
    (FGSM). ``linf_scaled`` keeps the proportions of the gradient in the ball of ``linf``,
    ``g / max |g|``: not the steepest, but what RoAST and SMART step by. Zero where the gradient is
    zero or not finite.

    References:
        Goodfellow et al., "Explaining and Harnessing Adversarial Examples", 2015; Miyato et al.,
        "Adversarial Training Methods for Semi-Supervised Text Classification", 2017 (UEGR, arXiv
        2503.16550, Eq. 2); RoAST (arXiv 2312.04032) for ``linf_scaled`` by token.
    """
    gradient = at_least_single(gradient)
    length = size(gradient, norm=norm, scope=scope)
    # A loss scaler skips a step that is not finite, so it must not poison the next pass.
    usable = (length > 0) & torch.isfinite(length)
    unit = gradient.sign() if norm == "linf" else gradient / torch.where(usable, length, 1.0)
    return torch.where(usable, unit, 0.0)


def project(
    delta: Tensor, radius: Tensor | float, *, norm: Norm, scope: Scope = "example"
) -> Tensor:
    """Return the nearest perturbation inside a ball, [B, T, D] in at least fp32.

    ``l2`` scales the whole vector; ``linf`` and ``linf_scaled`` clamp each entry. The radius is a
    number, or broadcastable to the scope's sizes.
    """
    delta = at_least_single(delta)
    radius = torch.as_tensor(radius, dtype=delta.dtype, device=delta.device)
    if norm != "l2":
        return delta.clamp(-radius, radius)
    length = size(delta, norm=norm, scope=scope)
    return delta * torch.where(length > radius, radius / length.clamp(min=1e-30), 1.0)


def vocabulary_gradient(gradient: Tensor, ids: Tensor, *, vocabulary: int) -> tuple[Tensor, Tensor]:
    """Sum the gradient of every occurrence of a word: the gradient of the embedding matrix.

    Return that matrix looked up at each token [B, T, D], and its Frobenius norm. ``gradient`` is
    zero at padding.
    """
    flat = at_least_single(gradient.detach()).flatten(0, 1)
    matrix = flat.new_zeros(vocabulary, flat.shape[-1]).index_add_(0, ids.flatten(), flat)
    return matrix[ids], torch.linalg.vector_norm(matrix)


def within_example_rank(values: Tensor) -> Tensor:
    """Rank the channels of each example in [0, 1]; ties take their mid-rank.

    The smallest of distinct values is 0, the largest 1; all are 0.5 if all are equal.
    """
    width = values.shape[-1]
    if width == 1:
        return torch.full_like(values, 0.5, dtype=torch.float32)
    ordered = values.sort(-1).values
    low = torch.searchsorted(ordered, values, right=False)
    high = torch.searchsorted(ordered, values, right=True)
    return (low + high - 1).float() / (2 * (width - 1))
