"""Norms of embedding perturbations [B, T, D]: size, steepest ascent, projection to a ball.

Each norm has three functions (`size`, `steepest`, `project`), which training and evaluation share.
Letters: B rows, T tokens, D embedding size.
"""

from __future__ import annotations

from typing import Literal

from temper.functional.precision import at_least_single
from temper.lazy import Tensor, torch

Norm = Literal["l2", "linf", "linf_scaled"]
Scope = Literal["example", "token", "batch"]

_AXES: dict[str, tuple[int, ...]] = {"example": (1, 2), "token": (2,), "batch": (0, 1, 2)}


def masked(values: Tensor, mask: Tensor) -> Tensor:
    """Set values [B, T, D] to zero where a mask [B, T] is False; detached, in at least fp32."""
    return torch.where(mask.unsqueeze(-1), at_least_single(values.detach()), 0.0)


def size(values: Tensor, *, norm: Norm, scope: Scope = "example") -> Tensor:
    """Return the norm of [B, T, D] by example, token or batch: [B, 1, 1], [B, T, 1] or [1, 1, 1].

    For ``linf`` and ``linf_scaled`` it is the largest absolute entry.
    """
    axes = _AXES[scope]
    values = at_least_single(values)
    largest = values.abs().amax(dim=axes, keepdim=True)
    if norm != "l2":
        return largest
    # Squares of a small gradient underflow to 0 (on a confident example), so divide by the largest
    # entry first.
    unit = torch.where((largest > 0) & torch.isfinite(largest), largest, 1.0)
    length: Tensor = torch.linalg.vector_norm(values / unit, dim=axes, keepdim=True)
    return length * unit


def steepest(gradient: Tensor, *, norm: Norm, scope: Scope = "example") -> Tensor:
    """Return the direction of an attack's step, of norm 1.

    ``l2``: ``g / ||g||_2`` (FGM). ``linf``: ``sign(g)`` (FGSM). ``linf_scaled``: ``g / max |g|``,
    which is not the steepest direction in the ball of ``linf``, but the one of RoAST and SMART. It
    is zero if the gradient is zero or not finite.

    References:
        Goodfellow et al., "Explaining and Harnessing Adversarial Examples", 2015; Miyato et al.,
        "Adversarial Training Methods for Semi-Supervised Text Classification", 2017 (UEGR, arXiv
        2503.16550, Eq. 2); RoAST (arXiv 2312.04032) for ``linf_scaled`` by token.
    """
    gradient = at_least_single(gradient)
    length = size(gradient, norm=norm, scope=scope)
    # The loss scaler skips this step later; until then NaN must not reach the next pass.
    usable = (length > 0) & torch.isfinite(length)
    unit = gradient.sign() if norm == "linf" else gradient / torch.where(usable, length, 1.0)
    return torch.where(usable, unit, 0.0)


def project(
    delta: Tensor, radius: Tensor | float, *, norm: Norm, scope: Scope = "example"
) -> Tensor:
    """Project a perturbation [B, T, D] to the ball of a radius, in at least fp32.

    ``l2`` scales the whole vector; ``linf`` and ``linf_scaled`` clamp each entry. The radius is a
    number, or one per scope in the shape of `size`.
    """
    delta = at_least_single(delta)
    radius = torch.as_tensor(radius, dtype=delta.dtype, device=delta.device)
    if norm != "l2":
        return delta.clamp(-radius, radius)
    length = size(delta, norm=norm, scope=scope)
    return delta * torch.where(length > radius, radius / length.clamp(min=1e-30), 1.0)


def vocabulary_gradient(gradient: Tensor, ids: Tensor, *, vocabulary: int) -> tuple[Tensor, Tensor]:
    """Return the gradient of the embedding matrix at each token, [B, T, D], and its Frobenius norm.

    It sums the gradients [B, T, D] of all occurrences of a word, which are zero at padding.
    """
    flat = at_least_single(gradient.detach()).flatten(0, 1)
    matrix = flat.new_zeros(vocabulary, flat.shape[-1]).index_add_(0, ids.flatten(), flat)
    return matrix[ids], torch.linalg.vector_norm(matrix)


def within_example_rank(values: Tensor) -> Tensor:
    """Return the rank of each channel within its example, scaled to [0, 1].

    Ties have their mid-rank, so all ranks are 0.5 if all values are equal.
    """
    width = values.shape[-1]
    if width == 1:
        return torch.full_like(values, 0.5, dtype=torch.float32)
    ordered = values.sort(-1).values
    low = torch.searchsorted(ordered, values, right=False)
    high = torch.searchsorted(ordered, values, right=True)
    return (low + high - 1).float() / (2 * (width - 1))
