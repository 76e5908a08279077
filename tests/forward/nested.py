"""The smoothness penalty by nested derivatives, which are exact: the reference for estimates.

Layer norms are composed of elementary operations, because the fused one's third derivative is wrong
(tests/guards/test_platform.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from temper.functional.smoothness import squared_norm
from temper.methods import smoothness


class NestedEstimate(smoothness.Estimate):
    """Takes the Hessian's product by reverse mode over reverse mode, on the draws of its base."""

    def difference(self) -> Iterator[Tensor]:
        """Yield the rows of both terms."""
        gradient = self.gradient(self.trace, self.states, self.probes())
        yield squared_norm(gradient, self.mask)
        if self.penalty.hessian_weight:
            scalar = (gradient * self.direction()).sum()
            (product,) = torch.autograd.grad(scalar, self.trace.root, create_graph=True)
            yield squared_norm(product, self.mask) / self.width()


@contextmanager
def nested() -> Iterator[None]:
    """Let the scheme ``difference`` be exact inside the block."""
    plain = smoothness.Estimate
    smoothness.Estimate = NestedEstimate  # type: ignore[misc]
    try:
        with CompositeLayerNorm():
            yield
    finally:
        smoothness.Estimate = plain  # type: ignore[misc]


class CompositeLayerNorm(TorchFunctionMode):
    """Compose layer norms of elementary operations: right to any order, and slower."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.nn.functional.layer_norm or func is torch.layer_norm:
            return composite_layer_norm(*args, **kwargs)
        return func(*args, **kwargs)


def composite_layer_norm(
    values: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *_: Any,
) -> Tensor:
    """Normalize over the last dimensions, as ``torch.nn.functional.layer_norm``.

    Args:
        values: [..., *normalized_shape].
        normalized_shape: Sizes of the dimensions that are normalized.
        weight: Factor, of that shape.
        bias: Summand, of that shape.
        eps: Added to the variance.

    Returns:
        The shape of ``values``.
    """
    over = tuple(range(-len(normalized_shape), 0))
    centered = values - values.mean(over, keepdim=True)
    variance = (centered * centered).mean(over, keepdim=True)
    normed = centered * (variance + eps).rsqrt()
    normed = normed if weight is None else normed * weight
    return normed if bias is None else normed + bias
