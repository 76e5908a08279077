"""Norms and steps of embedding perturbations [B, T, D] over their real tokens.

Letters: B rows, T tokens, D embedding size.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from temper.functional.precision import at_least_single

Norm = Literal["l2", "linf", "sign"]
Scope = Literal["example", "token", "batch"]

_AXES: dict[str, tuple[int, ...]] = {"example": (1, 2), "token": (2,), "batch": (0, 1, 2)}


def scoped_norm(values: Tensor, *, norm: Norm, scope: Scope) -> Tensor:
    """Measure a tensor per example, per token or over the whole batch.

    Args:
        values: [B, T, D], zero where it must not count.
        norm: ``l2``, or ``linf`` / ``sign`` for the largest absolute entry.
        scope: What is measured as one vector.

    Returns:
        [B, 1, 1], [B, T, 1] or [1, 1, 1], in at least fp32.
    """
    axes = _AXES[scope]
    values = at_least_single(values)
    if norm == "l2":
        # Squares of a small gradient underflow (a sure example would look as if it had none), so
        # the largest entry is taken out first.
        largest = values.abs().amax(dim=axes, keepdim=True)
        unit = torch.where((largest > 0) & torch.isfinite(largest), largest, 1.0)
        size: Tensor = torch.linalg.vector_norm(values / unit, dim=axes, keepdim=True)
        return size * unit
    return values.abs().amax(dim=axes, keepdim=True)


def ascent_step(
    gradient: Tensor,
    mask: Tensor,
    *,
    epsilon: float,
    norm: Norm = "l2",
    scope: Scope = "example",
    embeddings: Tensor | None = None,
) -> Tensor:
    """Take one step of size epsilon along a gradient: the fast gradient method.

    ``delta = epsilon * g / ||g||`` for ``l2`` and ``linf`` (the largest entry then is epsilon; it
    is not the sign), ``epsilon * sign(g)`` for ``sign``. Zero at padding, zero where the gradient
    is zero, and zero where it is not finite: a loss scaler skips such a step, so that it must not
    poison the next pass.

    Args:
        gradient: [B, T, D].
        mask: Tokens that may move [B, T], boolean.
        epsilon: Budget, at least 0; a fraction of the embeddings' own norm where these are given.
        norm: Geometry of the step.
        scope: What shares the budget.
        embeddings: Unperturbed embeddings [B, T, D]; makes the budget relative to their norm in
            the same scope (over the tokens that may move).

    Returns:
        [B, T, D] in at least fp32, detached.

    References:
        UEGR (arXiv 2503.16550), Eq. 2; RoAST (arXiv 2312.04032) for ``linf`` by token.
    """
    inside = mask.unsqueeze(-1)
    g = torch.where(inside, at_least_single(gradient.detach()), 0.0)
    size = scoped_norm(g, norm=norm, scope=scope)
    usable = (size > 0) & torch.isfinite(size)
    direction = g.sign() if norm == "sign" else g / torch.where(usable, size, 1.0)
    budget = torch.full_like(size, epsilon)
    if embeddings is not None:
        own = torch.where(inside, at_least_single(embeddings.detach()), 0.0)
        budget = budget * scoped_norm(own, norm=norm, scope=scope)
    return torch.where(usable, direction * budget, 0.0)


def project(delta: Tensor, mask: Tensor, *, budget: Tensor, norm: Norm, scope: Scope) -> Tensor:
    """Shrink a perturbation into the ball of a budget, and to zero where it may not move.

    Args:
        delta: [B, T, D].
        mask: Tokens that may move [B, T], boolean.
        budget: Radius, broadcastable to the scope's norm.
        norm: ``l2`` scales the whole vector; ``linf`` and ``sign`` clamp each entry.
        scope: What shares the budget.

    Returns:
        [B, T, D] in at least fp32.
    """
    inside = torch.where(mask.unsqueeze(-1), at_least_single(delta), 0.0)
    if norm != "l2":
        return torch.maximum(torch.minimum(inside, budget), -budget)
    size = scoped_norm(inside, norm=norm, scope=scope)
    return inside * torch.where(size > budget, budget / size.clamp(min=1e-30), 1.0)


def vocabulary_gradient(gradient: Tensor, ids: Tensor, *, vocabulary: int) -> tuple[Tensor, Tensor]:
    """Sum the gradient of every occurrence of a word: the gradient of the embedding matrix.

    Args:
        gradient: [B, T, D], zero at padding.
        ids: Token ids [B, T].
        vocabulary: Rows of the embedding matrix.

    Returns:
        The matrix's gradient looked up at each token [B, T, D], and the matrix's Frobenius norm
        (scalar).
    """
    flat = at_least_single(gradient.detach()).flatten(0, 1)
    matrix = flat.new_zeros(vocabulary, flat.shape[-1]).index_add_(0, ids.flatten(), flat)
    return matrix[ids], torch.linalg.vector_norm(matrix)


def within_example_rank(values: Tensor) -> Tensor:
    """Rank the channels of each example in [0, 1]; ties take their mid-rank.

    Args:
        values: [B, D].

    Returns:
        [B, D] fp32: 0 for the smallest of distinct values, 1 for the largest, .5 everywhere if all
        are equal.

    Example:
        >>> within_example_rank(torch.tensor([[3.0, 1.0, 1.0]]))
        tensor([[1.0000, 0.2500, 0.2500]])
    """
    width = values.shape[-1]
    if width == 1:
        return torch.full_like(values, 0.5, dtype=torch.float32)
    ordered = values.sort(-1).values
    low = torch.searchsorted(ordered, values, right=False)
    high = torch.searchsorted(ordered, values, right=True)
    return (low + high - 1).float() / (2 * (width - 1))
