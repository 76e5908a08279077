"""Sharpness-aware steps: use the gradient at nearby weights with a higher loss (SAM, AWP).

    e = ascent step from the weights w,  gradient = dL(w + e)/dw

Both passes use the same batch and dropout masks. The weights are restored exactly, also if the
second pass fails. Norms and copies skip rows whose gradient is zero, which are most rows of an
embedding matrix.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from temper.backward.rule import Parameters, UpdateRule
from temper.functional.masks import touched_rows
from temper.lazy import Tensor, torch
from temper.seeding import Streams
from temper.types import Gradients, State, Step

SMALLEST = 1e-30
"""Smallest norm of a gradient that has a direction; dividing by less would overflow."""


@dataclass(frozen=True)
class WeightPart:
    """The ``rows`` [n] of a parameter that an ascent moves; None for all."""

    name: str
    weight: Tensor
    rows: Tensor | None

    def of(self, tensor: Tensor) -> Tensor:
        """Return these rows of a tensor in the parameter's shape."""
        return tensor if self.rows is None else tensor.index_select(0, self.rows)

    def copy(self) -> Tensor:
        return self.weight.clone() if self.rows is None else self.of(self.weight)

    def put(self, values: Tensor) -> None:
        if self.rows is None:
            self.weight.copy_(values)
        else:
            self.weight.index_copy_(0, self.rows, values)


class WeightAscent(UpdateRule):
    """Compute the gradient at weights after an ascent step; base class of SAM, ASAM and AWP."""

    name = "ascent"
    conflicts = frozenset({"gradient"})

    @abstractmethod
    def factors(
        self,
        parts: Sequence[WeightPart],
        gradients: Sequence[Tensor],
        sizes: Sequence[float],
        params: Parameters,
    ) -> list[float] | None:
        """Return the factor of each gradient in the ascent step ``e = factor * gradient``.

        ``sizes`` are the l2 norms of the gradients, over all shards. The gradients may be changed
        in place. A factor of 0 leaves a part where it is. Return None if no part can move, because
        the gradient is zero or not finite.
        """

    def covers(self, tensor: Tensor) -> bool:
        """Return whether the ascent may move a parameter, given it or its gradient."""
        return True

    def before_forward(self, params: Parameters, state: State, step: Step, rng: Streams) -> None:
        # Gradients carry the loss scale, which `diagnostics` removes from their norm.
        state["loss_scale"] = step.loss_scale

    def gradient(
        self, params: Parameters, state: State, compute: Callable[[], Gradients]
    ) -> Gradients:
        """Return the gradient at the moved weights, and restore the weights."""
        moved: list[tuple[WeightPart, Tensor]] = []
        try:
            with torch.no_grad():
                self._ascend(params, state, compute, moved)
            # Otherwise an enclosing autocast would use cached copies of the old weights.
            torch.clear_autocast_cache()
            return compute()
        finally:
            with torch.no_grad():
                for part, weights in moved:
                    part.put(weights)
            torch.clear_autocast_cache()

    def diagnostics(self, state: State) -> dict[str, Tensor | float]:
        if "norm" not in state:
            return {}
        return {"ascent/gradient_norm": state["norm"] / state["loss_scale"]}

    def _ascend(
        self,
        params: Parameters,
        state: State,
        compute: Callable[[], Gradients],
        moved: list[tuple[WeightPart, Tensor]],
    ) -> None:
        """Move the weights; append each part and its original weights to ``moved``."""
        with torch.enable_grad():
            here = {name: g for name, g in compute().items() if self.covers(g)}
        if not here:
            return
        parts = [
            WeightPart(name, params.tensors[name], touched_rows(g)) for name, g in here.items()
        ]
        gradients = [part.of(here[part.name]) for part in parts]
        sizes = l2_norms(gradients, params)
        state["norm"] = math.hypot(*sizes)
        factors = self.factors(parts, gradients, sizes, params)
        if factors is None:
            return
        for part, gradient, factor in zip(parts, gradients, factors, strict=True):
            if factor:
                weights = part.copy()
                moved.append((part, weights))
                part.put(torch.add(weights, gradient, alpha=factor))


def has_direction(size: float) -> bool:
    """Return whether a gradient of this norm can be divided by it."""
    return math.isfinite(size) and size > SMALLEST


def l2_norms(tensors: Sequence[Tensor], params: Parameters) -> list[float]:
    """Return the l2 norm of each tensor in at least fp32, with a single device synchronization.

    All tensors are on one device. Norms of sharded parameters are over all shards.
    """
    single = torch.float32
    for tensor in tensors:
        single = torch.promote_types(single, tensor.dtype)
    norms = torch._foreach_norm(list(tensors), 2, dtype=single)
    values: list[float] = params.norm(torch.stack(list(norms))).tolist()
    return values
