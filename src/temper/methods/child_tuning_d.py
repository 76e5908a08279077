"""Child-Tuning-D: only those weights of the blocks train that the task's gradient asks for most.

One pass over the training rows sums squared gradients of the clean loss, each tensor's gradient
clipped first; the largest ``reserve_p`` of all the blocks' entries are trained from then on.

Source: Xu et al., EMNLP 2021; released code alibaba/AliceMind, ChildTuning@c17b177. As there,
nothing is divided by p, the rest of the model trains freely, and masked weights still move by
momentum and decay. Differs: exactly the share that was asked for is kept (the released code keeps
every entry equal to the percentile), and the network says where its blocks are (there, a
parameter's name does).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, Self

import torch
from pydantic import Field
from torch import Tensor

from temper.backward.rule import UpdateRule
from temper.errors import TemperError
from temper.methods import Method, Published, register
from temper.models.network import Parameters
from temper.seeding import Streams
from temper.types import Gradients, State


@dataclass(frozen=True)
class ChosenMask(UpdateRule):
    """Keep those entries of the blocks' gradient whose squared gradient was largest in an epoch.

    Before training: clip the gradient of each batch tensor by tensor, square it, and add it up. The
    largest ``keep`` of all entries, ranked over all tensors at once, train; the rest of the blocks
    does not. What lies outside the blocks (embeddings, head) trains freely. The importance is let
    go of once the mask is chosen, which takes a byte an entry.

    Args:
        keep: Share of the entries that train, in (0, 1).
        largest_norm: What the gradient of each tensor is clipped to in the pre-pass.

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
        """Return the parameters that the mask covers: all where there are no blocks."""
        return [name for name in params.tensors if name in params.blocks] or list(params.tensors)

    def init(self, params: Parameters) -> State:
        """Start with no importance and no mask."""
        zeros = {
            name: torch.zeros_like(params.tensors[name], dtype=torch.float32)
            for name in self.names(params)
        }
        return {"importance": zeros, "training": {}, "observed": 0}

    def accumulate(self, grads: Gradients, params: Parameters, state: State) -> None:
        """Add a batch's clipped and squared gradient; once chosen, nothing is left to add to."""
        for name, total in state["importance"].items():
            if name in grads:
                gradient = grads[name].detach().float()
                norm = params.norm(torch.linalg.vector_norm(gradient))
                clipped = gradient * (self.largest_norm / (norm + 1e-6)).clamp(max=1.0)
                total.addcmul_(clipped, clipped)
        state["observed"] += 1

    def begin_epoch(self, params: Parameters, state: State, rng: Streams, *, epoch: int) -> None:
        """Choose the mask before the first epoch; a resumed run has it."""
        if state["training"]:
            return
        if not state["observed"]:
            raise TemperError(
                "child_tuning_d chooses what trains by the squared gradients of one epoch. Call "
                "prepare(batches) once before the first epoch (RobustTrainer does)."
            )
        # Ranked as a whole, which processes that share the weights gather for once.
        importance = [params.gathered(n, total) for n, total in state["importance"].items()]
        kept = inside_top(importance, share=self.keep)
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
        """Set the gradient of what does not train to zero, in place."""
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


def inside_top(values: Sequence[Tensor], *, share: float) -> list[Tensor]:
    """Mark the largest entries of several tensors.

    Args:
        values: Any shapes, on one device.
        share: Share of all entries that is marked, in [0, 1]: exactly ``round(share * n)`` of them;
            of equal ones those that stand first.

    Returns:
        Booleans of the same shapes, true inside the top.

    Raises:
        TemperError: If a value is not finite.
    """
    flat = torch.cat([value.flatten() for value in values])
    if not bool(torch.isfinite(flat).all()):
        raise TemperError(
            "The squared gradients of the pre-pass are not finite, so they rank nothing. Look at "
            "the model's weights, or train in fp32."
        )
    count = round(share * len(flat))
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
    summary="Only the weights with the largest squared gradients train",
    cost="3F + mask, after one epoch of 3F",
    memory="one byte an entry; before training the blocks once more",
    paper="Xu et al., EMNLP 2021",
    claims="rule: mask",
)
class ChildTuningD(Method):
    """Settings of Child-Tuning-D.

    Args:
        reserve_p: Share of the blocks' entries that train, in (0, 1] (the released script: 0.3); 1
            is plain fine-tuning.
        largest_norm: What the gradient of each tensor is clipped to before it is squared, above 0
            (the released code: the training's ``max_grad_norm``, 1).
    """

    PUBLISHED: ClassVar[dict[str, Published]] = {
        "reserve_p": Published("0.3", "released script"),
        "largest_norm": Published("max_grad_norm, 1", "released code"),
    }

    reserve_p: float = Field(default=0.3, gt=0.0, le=1.0)
    largest_norm: float = Field(default=1.0, gt=0.0, allow_inf_nan=False)

    def off(self) -> Self:
        """Train everything."""
        return self._with(reserve_p=1.0)

    def update(self) -> list[UpdateRule]:
        """Return the update rule."""
        if self.reserve_p == 1.0:
            return []
        rule = ChosenMask(keep=self.reserve_p, largest_norm=self.largest_norm)
        return [rule]
