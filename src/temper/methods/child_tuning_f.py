"""Child-Tuning-F: drop random entries of the gradient in each step.

The gradient g of every parameter becomes ``g * m / p`` with m ~ Bernoulli(p), whose mean is g.

Source: Xu et al., EMNLP 2021; released code alibaba/AliceMind, ChildTuning@c17b177. As there, the
mask is applied after clipping and before the optimizer's moments, so masked weights still move by
momentum and weight decay.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

from pydantic import Field

from temper.backward.rule import Parameters, UpdateRule
from temper.functional.masks import (
    CHUNK,
    LEVELS,
    highest_kept,
    pieces_with_draws,
    quantize,
    touched_rows,
)
from temper.lazy import Tensor, torch
from temper.methods import Method, register
from temper.methods.bounds import PositiveFraction
from temper.seeding import Streams
from temper.types import Gradients, State


@dataclass(frozen=True)
class RandomMask(UpdateRule):
    """Keep each entry of the gradient with probability p: ``g * Bernoulli(p) / p``.

    Args:
        keep: p in (0, 1), rounded to a multiple of 1/65536.

    References:
        Xu et al., EMNLP 2021, Child-Tuning-F.
    """

    keep: float = 0.3
    chunk: int = CHUNK

    name = "child_tuning_f"
    supports_fsdp = True
    conflicts = frozenset({"mask"})
    logged = MappingProxyType({"mask/kept": "kept"})

    def transform(
        self, grads: Gradients, params: Parameters, state: State, rng: Streams
    ) -> Gradients:
        """Mask all gradients in place, with the same draw on all ranks."""
        if not grads:
            return grads
        masked = {name: gradient.contiguous() for name, gradient in grads.items()}
        parts, starts, touched, drawn = [], [], {}, 0
        for name, gradient in masked.items():
            shape = params.shape(name, gradient)
            rows = touched_rows(
                gradient, shape, counted=lambda count: params.counts_before(count)[1]
            )
            start, size = params.first_entry(name), shape.numel()
            part = gradient
            if rows is not None:
                part = gradient.index_select(0, rows)
                # Positions of draws count only touched rows, over all shards of the matrix.
                start, size = params.counts_before(part.numel())
                touched[name] = (rows, part)
            parts.append(part)
            starts.append(start)
            drawn += size
        keys = [rng.shared("mask", name) for name in masked]
        state["kept"] = params.summed(self._thin(parts, keys, starts)) / max(1, drawn)
        for name, (rows, part) in touched.items():
            masked[name].index_copy_(0, rows, part)
        return masked

    def _thin(self, parts: list[Tensor], keys: list[int], starts: list[int]) -> Tensor:
        q = quantize(torch.tensor(self.keep), p_min=0.0)
        threshold, scale = int(highest_kept(q)), LEVELS / int(q)
        kept = torch.zeros((), dtype=torch.float64, device=parts[0].device)
        for pieces, drawn in pieces_with_draws(parts, keys, starts, chunk=self.chunk):
            stays = drawn.float()
            torch.le(stays, threshold, out=stays)
            kept += stays.sum()
            torch._foreach_mul_(pieces, torch.split(stays, [len(piece) for piece in pieces]))
            torch._foreach_mul_(pieces, scale)
        return kept


@register(
    "child_tuning_f",
    summary="Random gradient mask, redrawn in every step",
    cost="3F + mask",
    memory="none",
    paper="Xu et al., EMNLP 2021",
)
class ChildTuningF(Method):
    """Settings of Child-Tuning-F."""

    OFF: ClassVar = {"reserve_p": 1.0}

    reserve_p: PositiveFraction = Field(
        default=0.3,
        description="Probability that an entry is kept (the released script: 0.3); 1 is plain "
        "fine-tuning.",
    )

    def update(self) -> list[UpdateRule]:
        return [RandomMask(self.reserve_p)] if self.reserve_p != 1.0 else []
