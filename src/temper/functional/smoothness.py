"""Smoothness: norms of the Jacobian and the Hessian of hidden states by the embeddings.

For hidden states h_l [B, D_l] of layers l and word embeddings x [B, T, E], with
``J_l = dh_l/dx`` and ``H_{l,i} = d2 h_{l,i}/dx2``, everything here uses one scalar per
example, ``s = sum_l sqrt(lambda_l) v_l . h_l``. With probes v_l of mean 0 and unit covariance,
independent between layers, its gradient g satisfies ``E ||g||^2 = sum_l lambda_l ||J_l||_F^2``,
and a difference of two such gradients gives the Hessian over all dimensions at once.

References: Jukic and Snajder, TACL 2025 (JacHess), Eqs. 1 to 5; Hoffman et al., arXiv 1908.02729
(random projections); Hutchinson 1990 (trace estimation).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

from temper.functional.precision import at_least_single
from temper.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

Strategy = Literal["log", "normalized", "printed", "uniform", "inverse"]
Law = Literal["signs", "sphere", "zero_sum"]


def probes(shape: tuple[int, int], law: Law, draws: torch.Generator, *, like: Tensor) -> Tensor:
    """Draw one probe an example, of mean 0 and unit covariance over the dimensions.

    Laws are ``signs`` (+1 or -1 each), ``sphere`` (uniform on the sphere of radius sqrt(D)), and
    ``zero_sum``: signs less their mean, whose covariance is ``I - 1 1^T / D``, so that squared
    projections are sums over pairs of dimensions, ``E ||J^T v||^2 = 1/D sum_{i<j} ||J_i -
    J_j||^2``. ``like`` gives precision and device.
    """
    kind, where = at_least_single(like.new_empty(0)).dtype, draws.device
    if law == "sphere":
        normal = torch.randn(shape, generator=draws, dtype=kind, device=where)
        size: Tensor = torch.linalg.vector_norm(normal, dim=-1, keepdim=True)
        return (normal / size * math.sqrt(shape[-1])).to(like.device)
    bits = torch.randint(0, 2, shape, generator=draws, device=where)
    signs: Tensor = (2 * bits - 1).to(like.device, kind)
    return signs - signs.mean(-1, keepdim=True) if law == "zero_sum" else signs


def directions(mask: Tensor, width: int, draws: torch.Generator, *, like: Tensor) -> Tensor:
    """Draw a direction in the embeddings [B, T, E]: +1 or -1 on real tokens, 0 at padding.

    ``like`` gives precision and device.
        [B, T, E].
    """
    bits = torch.randint(0, 2, (*mask.shape, width), generator=draws, device=draws.device)
    signs = (2 * bits - 1).to(like.device, at_least_single(like.new_empty(0)).dtype)
    return signs * mask.unsqueeze(-1)


def layer_weights(norms: Tensor, strategy: Strategy, *, temperature: float = 1.0) -> Tensor:
    """Turn the base model's Jacobian norms into weights of the layers that sum to 1.

    Args:
        norms: ``s_l``, the mean over examples of ``||J_l||_F^2``, above 0, [L].
        strategy: ``log``: ``softmax(-log(s) / temperature)``, so that every layer's weighted norm
            is equal at temperature 1; ``normalized``: that at temperature 1, ``(1/s) / sum(1/s)``;
            ``printed``: ``softmax(-s)``, which saturates to one layer at real sizes; ``uniform``;
            ``inverse``: ``s / sum(s)``, with the largest norm weighted most.
        temperature: Temperature of ``log``, above 0.
    """
    if strategy == "uniform":
        return torch.full_like(norms, 1 / len(norms))
    exponents = {
        "log": -norms.log() / temperature,
        "normalized": -norms.log(),
        "printed": -norms,
        "inverse": norms.log(),
    }[strategy]
    return exponents.softmax(0)


def pulled_back(values: Tensor, words: Tensor, cotangent: Tensor, *, again: bool = False) -> Tensor:
    """Differentiate ``sum(values * cotangent)`` by the word embeddings.

    With a probe v as the cotangent of hidden states it is ``J^T v``, row by row; with a direction
    u as the cotangent of that, it is ``H(v) u`` with ``H(v) = sum_i v_i H_i``. The graph is kept.

    The result [B, T, E] is zero if ``values`` do not depend on ``words``; ``again`` makes it
    differentiable.
    """
    if not values.requires_grad:
        return torch.zeros_like(words)
    (result,) = torch.autograd.grad(
        values,
        words,
        cotangent.to(values.dtype),
        retain_graph=True,
        create_graph=again,
        allow_unused=True,
    )
    return torch.zeros_like(words) if result is None else result


def squared_norm(values: Tensor, mask: Tensor) -> Tensor:
    """Return each example's squared l2 norm over its real tokens, [B, T, E] to [B]."""
    real = at_least_single(values).masked_fill(~mask.unsqueeze(-1), 0.0)
    return real.square().sum((1, 2))


def root_mean_square(values: Tensor, mask: Tensor) -> Tensor:
    """Return the size of a typical entry of each example's embeddings, over its real tokens.

    [B, T, E] to [B], detached; 0 for an example without real tokens.
    """
    count = (mask.sum(1) * values.shape[-1]).clamp(min=1)
    return (squared_norm(values.detach(), mask) / count).sqrt()
