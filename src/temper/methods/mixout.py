"""Mixout: each step's passes use the initial values for a random part of the weights.

``w_mix = ((1-M) w + M u - p u) / (1-p)`` with u the initial weights and M ~ Bernoulli(p). Its mean
is w (Eq. 3). Backward differentiates this equation.

Source: Lee et al., ICLR 2020; released code bloodwass/mixout@6c6a557. Differs: one mask per step,
shared by micro-batches and ranks (the released layers draw in every call); M is drawn by entry (the
paper's mixconnect) unless ``unit="neuron"``; the gradient includes the factor 1/(1-p), which the
released code omits; dropout stays on, which the paper sets to 0.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Literal

from pydantic import Field, FiniteFloat

from temper.backward.rule import InitialWeightsRule, Parameters, UpdateRule
from temper.functional.masks import CHUNK, LEVELS, highest_kept, pieces_with_draws, quantize
from temper.lazy import Tensor, torch
from temper.methods import Method, register
from temper.seeding import Streams
from temper.types import State, Step

logger = logging.getLogger(__name__)

Scope = Literal["blocks", "all"]
Unit = Literal["entry", "neuron"]


@dataclass(frozen=True)
class Mixing(InitialWeightsRule):
    """Replace random weights by their initial values during the passes of a step.

    ``w_mix = ((1-M) w + M u - p u) / (1-p) = u + (1-M) (w - u) / (1-p)``, u the initial weights,
    M ~ Bernoulli(p) drawn once per step, the same for all micro-batches and ranks; ``dL/dw =
    dL/dw_mix * (1-M) / (1-p)``. 1 - p is rounded to q/65536 for the draw and for the division.

    During the passes, copies of the weights and the mask are in memory, but not in checkpoints.

    Args:
        scope: ``blocks``: matrices of the blocks and of a pooler. ``all``: also those of the head.
            Embeddings are never mixed. A model without blocks counts as one block.
        unit: What one draw of M covers: an ``entry``, or all outgoing weights of a ``neuron``,
            ``W[:, j]``.

    References:
        Lee et al., ICLR 2020, Eq. 3 (per entry it is their mixconnect).
    """

    probability: float = 0.7
    scope: Scope = "blocks"
    unit: Unit = "entry"
    chunk: int = CHUNK

    name = "mixout"
    supports_fsdp = True
    conflicts = frozenset({"weights"})
    logged = MappingProxyType({"mask/kept": "kept"})

    def init(self, params: Parameters) -> State:
        if not params.head and self.scope == "blocks":
            logger.warning(
                "The parameters of the classifier cannot be identified, so a new classifier is "
                "mixed with its random initial weights too."
            )
        return super().init(params)

    @property
    def kept(self) -> Tensor:
        """The probability 1 - p in units of 1/65536."""
        return quantize(torch.tensor(1.0 - self.probability, dtype=torch.float64), p_min=0.0)

    def names(self, params: Parameters) -> list[str]:
        """Return the parameters that are mixed."""
        matrices = [name for name, tensor in params.tensors.items() if tensor.dim() > 1]
        order = list(params.tensors)
        inside = [index for index, name in enumerate(order) if name in params.blocks]
        # Parameters before the blocks, or between those of encoder and decoder, are embeddings.
        after = set(order[inside[-1] + 1 :] if inside else order)
        return [
            name
            for name in matrices
            if (name in params.blocks or name in after)
            and (self.scope == "all" or name not in params.head)
            and name not in params.embeddings
        ]

    def before_forward(self, params: Parameters, state: State, step: Step, rng: Streams) -> None:
        names = self.names(params)
        state["mixed"] = {}
        if not names:
            return
        device = params.tensors[names[0]].device
        kept, drawn = torch.zeros((), dtype=torch.int64, device=device), 0
        # Existing gradients are from earlier micro-batches and already scaled: set them aside.
        earlier = params.gradients()
        params.set_gradients({n: gradient for n, gradient in earlier.items() if n not in names})
        with torch.no_grad():
            for name in names:
                tensor = params.tensors[name]
                mask = self._draw(name, params, rng.shared("mixout", name))
                state["mixed"][name] = (tensor.detach().clone(), mask, earlier.get(name))
                self._mix(tensor, params.start[name], mask)
                kept, drawn = kept + torch.count_nonzero(mask), drawn + mask.numel()
        # With sharded weights, all processes draw the same mask for whole neurons.
        counts = torch.stack([kept, kept.new_tensor(drawn)])
        kept, total = params.summed(counts) if self.unit == "entry" else counts
        state["kept"] = kept / total
        # Otherwise an enclosing autocast would use cached copies of the old weights.
        torch.clear_autocast_cache()

    def after_backward(self, params: Parameters, state: State) -> None:
        """Restore the weights, and multiply their gradients by (1-M) / (1-p), in place."""
        mixed = state.pop("mixed", {})
        if not mixed:
            return
        grads, scale = params.gradients(), LEVELS / int(self.kept)
        with torch.no_grad():
            for name, (weights, mask, earlier) in mixed.items():
                params.tensors[name].copy_(weights)
                if name in grads:
                    grads[name].mul_(mask).mul_(scale)
                if earlier is not None:
                    grads[name] = earlier + grads[name] if name in grads else earlier
        params.set_gradients(grads)
        torch.clear_autocast_cache()

    def _draw(self, name: str, params: Parameters, key: int) -> Tensor:
        """Draw 1 - M: booleans of the parameter's shape, or [1, ...] by neuron."""
        tensor, start = params.tensors[name], params.first_entry(name)
        shape = tensor.shape
        if self.unit == "neuron":
            shape, start = torch.Size([1, *tensor.shape[1:]]), 0
        mask = torch.empty(shape.numel(), dtype=torch.bool, device=tensor.device)
        threshold = int(highest_kept(self.kept))
        for (piece,), drawn in pieces_with_draws([mask], [key], [start], chunk=self.chunk):
            torch.le(drawn, threshold, out=piece)
        return mask.view(shape)

    def _mix(self, tensor: Tensor, start: Tensor, mask: Tensor) -> None:
        """Set a parameter to ``u + (1-M) (w - u) / (1-p)``, in blocks of rows to limit memory."""
        scale = LEVELS / int(self.kept)
        rows = max(1, self.chunk // tensor.shape[1:].numel())
        parts = [torch.split(whole, rows) for whole in (tensor, start, mask.expand_as(tensor))]
        for piece, origin, stays in zip(*parts, strict=True):
            piece.sub_(origin).mul_(stays).mul_(scale).add_(origin)


@register(
    "mixout",
    summary="Random weights are reset to their initial values in each pass",
    cost="3F + mask",
    memory="one copy of the weights, and one of those that are mixed during a step",
    paper="Lee et al., ICLR 2020",
)
class Mixout(Method):
    """Settings of mixout."""

    OFF: ClassVar = {"probability": 0.0}

    PRETRAINED = "mixes the weights with pre-trained ones"

    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        # example_huggingface.py of bloodwass/mixout@480da48: every linear layer.
        "released": {"probability": 0.9, "unit": "neuron", "mix_scope": "all"},
    }

    probability: FiniteFloat = Field(
        default=0.7,
        ge=0.0,
        lt=1.0,
        description="Probability p of replacing an entry; 0 is plain fine-tuning.",
    )
    mix_scope: Scope = Field(
        default="blocks",
        description="Which matrices are mixed: those of the `blocks` (and of a pooler), or `all`, "
        "which adds the head with its random initial weights. Embeddings are never "
        "mixed.",
    )
    unit: Unit = Field(
        default="entry",
        description="Scope of a draw: an `entry`, or all outgoing weights of a `neuron` "
        "(as published).",
    )

    def update(self) -> list[UpdateRule]:
        return [Mixing(self.probability, self.mix_scope, self.unit)] if self.probability else []
