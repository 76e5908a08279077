"""Norms of the Jacobian and Hessian of hidden states with respect to the embeddings.

For hidden states h_l [B, D_l] of layers l and word embeddings x [B, T, E], with ``J_l = dh_l/dx``
and ``H_{l,i} = d2 h_{l,i}/dx2``, the norms are estimated from one scalar per example, ``s = sum_l
sqrt(lambda_l) v_l . h_l``. The probes v_l are random vectors of mean 0 and unit covariance,
independent between layers. The gradient g of s satisfies ``E ||g||^2 = sum_l lambda_l
||J_l||_F^2``. The difference of two such gradients gives the Hessian over all dimensions at once.

References: Jukic and Snajder, TACL 2025 (JacHess), Eqs. 1 to 5; Hoffman et al., arXiv 1908.02729
(random projections); Hutchinson 1990 (trace estimation).
"""

from __future__ import annotations

import math
from typing import Literal

from temper.functional.precision import at_least_single
from temper.lazy import Tensor, torch

Strategy = Literal["log", "normalized", "printed", "uniform", "inverse"]
Law = Literal["signs", "sphere", "zero_sum"]


def probes(shape: tuple[int, int], law: Law, draws: torch.Generator, *, like: Tensor) -> Tensor:
    """Draw one random vector (probe) per example, of mean 0 and unit covariance, [B, D].

    The law is ``signs`` (+1 or -1 each), ``sphere`` (uniform on the sphere of radius sqrt(D)) or
    ``zero_sum`` (signs minus their mean). ``zero_sum`` has covariance ``I - 1 1^T / D``, so it
    measures only differences between dimensions: ``E ||J^T v||^2 = 1/D sum_{i<j} ||J_i - J_j||^2``.
    The result has the precision and device of ``like``.
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
    """Draw a random direction in the embeddings, [B, T, E].

    It is +1 or -1 on real tokens and 0 at padding, with the precision and device of ``like``.
    """
    bits = torch.randint(0, 2, (*mask.shape, width), generator=draws, device=draws.device)
    signs = (2 * bits - 1).to(like.device, at_least_single(like.new_empty(0)).dtype)
    return signs * mask.unsqueeze(-1)


def layer_weights(norms: Tensor, strategy: Strategy, *, temperature: float = 1.0) -> Tensor:
    """Compute the weights of the layers, which sum to 1, from the base model's Jacobian norms.

    Args:
        norms: ``s_l`` > 0, the mean of ``||J_l||_F^2`` over examples, [L].
        strategy: ``log``: ``softmax(-log(s) / temperature)``; at temperature 1 all weighted norms
            are equal. ``normalized``: ``log`` at temperature 1. ``printed``: ``softmax(-s)``, which
            saturates to one layer for real models. ``uniform``: equal weights. ``inverse``: ``s /
            sum(s)``.
        temperature: Temperature of ``log``, > 0.
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


def vector_jacobian_product(
    values: Tensor, words: Tensor, cotangent: Tensor, *, create_graph: bool = False
) -> Tensor:
    """Return the gradient of ``sum(values * cotangent)`` by the word embeddings, [B, T, E].

    For hidden states with a probe v as cotangent, it is ``J^T v``. For that result with a direction
    u as cotangent, it is ``H(v) u`` with ``H(v) = sum_i v_i H_i``. It is zero if ``values`` do not
    depend on ``words``. The graph is retained; ``create_graph`` makes the result differentiable.
    """
    if not values.requires_grad:
        return torch.zeros_like(words)
    (result,) = torch.autograd.grad(
        values,
        words,
        cotangent.to(values.dtype),
        retain_graph=True,
        create_graph=create_graph,
        allow_unused=True,
    )
    return torch.zeros_like(words) if result is None else result


def squared_norm(values: Tensor, mask: Tensor) -> Tensor:
    """Return the squared l2 norm of each example over its real tokens, [B, T, E] to [B]."""
    real = at_least_single(values).masked_fill(~mask.unsqueeze(-1), 0.0)
    return real.square().sum((1, 2))


def root_mean_square(values: Tensor, mask: Tensor) -> Tensor:
    """Return the root mean square of each example over its real tokens, [B, T, E] to [B].

    It is detached, and 0 for an example without real tokens.
    """
    count = (mask.sum(1) * values.shape[-1]).clamp(min=1)
    return (squared_norm(values.detach(), mask) / count).sqrt()
