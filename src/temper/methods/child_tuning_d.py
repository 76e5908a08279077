"""Child-Tuning-D: in the blocks, train only the weights with the largest squared gradients.

Before training, one epoch sums the squared gradients of the clean loss, with the gradient of each
tensor clipped. Then the fraction ``reserve_p`` of the blocks' entries with the largest sums trains.

Source: Xu et al., EMNLP 2021; released code alibaba/AliceMind, ChildTuning@c17b177. As there,
gradients are not divided by p, embeddings and head train fully, and masked weights still move by
momentum and weight decay. Differs: exactly the fraction ``reserve_p`` trains (the released code
also keeps ties), and blocks are found by structure, not by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

from pydantic import Field

from temper.backward.rule import Parameters, UpdateRule
from temper.errors import TemperError
from temper.lazy import Tensor, torch
from temper.methods import Method, register
from temper.methods.bounds import Positive
from temper.seeding import Streams
from temper.types import Gradients, State


@dataclass(frozen=True)
class ChosenMask(UpdateRule):
    """Train the entries of the blocks with the largest squared gradients.

    In one epoch before training, each tensor's gradient is clipped to ``largest_norm``, squared and
    summed. The fraction ``keep`` of the blocks' entries with the largest sums trains, over all
    tensors together. Embeddings and head train fully. The mask takes one byte per entry.

    References:
        Xu et al., EMNLP 2021, Child-Tuning-D.
    """

    keep: float = 0.3
    largest_norm: float = 1.0

    name = "child_tuning_d"
    supports_fsdp = True
    conflicts = frozenset({"mask"})
    logged = MappingProxyType({"mask/kept": "kept"})

    def names(self, params: Parameters) -> list[str]:
        """Return the parameters that the mask covers: the blocks', or all without blocks."""
        return [name for name in params.tensors if name in params.blocks] or list(params.tensors)

    def init(self, params: Parameters) -> State:
        zeros = {
            name: torch.zeros_like(params.tensors[name], dtype=torch.float32)
            for name in self.names(params)
        }
        return {"importance": zeros, "training": {}, "observed": 0}

    def accumulate(self, grads: Gradients, params: Parameters, state: State) -> None:
        """Add the clipped and squared gradient of a batch, unless the mask is already chosen."""
        for name, total in state["importance"].items():
            if name in grads:
                gradient = grads[name].detach().float()
                norm = params.norm(torch.linalg.vector_norm(gradient))
                clipped = gradient * (self.largest_norm / (norm + 1e-6)).clamp(max=1.0)
                total.addcmul_(clipped, clipped)
        state["observed"] += 1

    def begin_epoch(self, params: Parameters, state: State, rng: Streams, *, epoch: int) -> None:
        # A resumed run already has the mask.
        if state["training"]:
            return
        if not state["observed"]:
            raise TemperError(
                "child_tuning_d ranks entries by the squared gradients of one epoch. Call "
                "prepare(batches) once before the first epoch (RobustTrainer does)."
            )
        # Ranked over the whole model, so processes with sharded weights gather it once.
        importance = [params.gathered(n, total) for n, total in state["importance"].items()]
        kept = inside_top(importance, fraction=self.keep)
        state["training"] = {
            name: params.part(name, mask).clone()
            for name, mask in zip(state["importance"], kept, strict=True)
        }
        entries = sum(mask.numel() for mask in kept)
        state["kept"] = sum(int(mask.sum()) for mask in kept) / entries
        state["importance"] = {}

    def transform(
        self, grads: Gradients, params: Parameters, state: State, rng: Streams
    ) -> Gradients:
        if not state["training"]:
            raise TemperError(
                "child_tuning_d has no mask yet. Call prepare(batches) once, and begin_epoch(0) "
                "before the first step (RobustTrainer does both)."
            )
        for name, mask in state["training"].items():
            if name in grads:
                # A product with bytes is several times faster than masked_fill_.
                grads[name].mul_(mask.view(torch.uint8))
        return grads


def inside_top(values: Sequence[Tensor], *, fraction: float) -> list[Tensor]:
    """Return boolean masks of the largest entries over several tensors on one device.

    Exactly ``round(fraction * n)`` of all n entries are True; ties go to the first entries. It
    raises if a value is not finite.
    """
    flat = torch.cat([value.flatten() for value in values])
    if not bool(torch.isfinite(flat).all()):
        raise TemperError(
            "The squared gradients before training are not finite, so they cannot be ranked. "
            "Check the model's weights, or train in fp32."
        )
    count = round(fraction * len(flat))
    inside = torch.zeros_like(flat, dtype=torch.bool)
    if count:
        lowest = flat.kthvalue(len(flat) - count + 1).values
        above = flat > lowest
        ties = (flat == lowest).nonzero().squeeze(1)
        inside[above] = True
        inside[ties[: count - int(above.sum())]] = True
    parts = torch.split(inside, [value.numel() for value in values])
    return [part.view_as(value).clone() for part, value in zip(parts, values, strict=True)]


@register(
    "child_tuning_d",
    summary="Updates only the weights with the largest squared gradients",
    cost="3F + mask, after one epoch of 3F",
    memory="one byte per entry; before training the blocks once more",
    paper="Xu et al., EMNLP 2021",
)
class ChildTuningD(Method):
    """Settings of Child-Tuning-D."""

    OFF: ClassVar = {"reserve_p": 1.0}

    reserve_p: float = Field(
        default=0.3,
        gt=0.0,
        le=1.0,
        description="Fraction of the blocks' entries that train (the released script: 0.3); 1 is "
        "plain fine-tuning.",
    )
    largest_norm: Positive = Field(
        default=1.0,
        description="Norm to which each tensor's gradient is clipped before it is squared "
        "(released code: `max_grad_norm`, 1).",
    )

    def update(self) -> list[UpdateRule]:
        return [ChosenMask(self.reserve_p, self.largest_norm)] if self.reserve_p != 1.0 else []
