"""W-Cons (L2-SP): penalize the distance to the pre-trained weights.

``L = CE(x) + weight * sum ||w - w_start||^2`` over all parameters except LayerNorm and biases.

Source: Li et al., ICML 2018 (arXiv 1802.01483), as the authors of RoAST (arXiv 2312.04032) run it.
Differs: L2-SP has a factor ``alpha/2`` and pulls the new classifier to 0 with a separate factor. As
in RoAST's runs, the classifier is pulled to its random initial weights, with the same factor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from pydantic import Field

from temper.backward.rule import InitialWeightsRule, Parameters, UpdateRule
from temper.functional.masks import CHUNK, CHUNK_ON_DEVICE
from temper.functional.precision import at_least_single
from temper.lazy import Tensor, torch
from temper.methods import Method, register
from temper.methods.bounds import Nonnegative
from temper.seeding import Streams
from temper.types import Gradients, State, Step


@dataclass(frozen=True)
class Anchor(InitialWeightsRule):
    """Add the gradient of ``weight * sum ||w - w_start||^2`` over matrices and embeddings.

    Vectors (biases, LayerNorm) are excluded. A new classifier is pulled to its random initial
    weights. In distributed training, the gradient is added after averaging over processes.

    References:
        L2-SP: Li et al., ICML 2018 (arXiv 1802.01483).
    """

    weight: float

    name = "anchor"
    supports_fsdp = True

    def regularize(
        self, grads: Gradients, params: Parameters, state: State, step: Step, rng: Streams
    ) -> Gradients:
        """Add the penalty's gradient, also to parameters that have no other gradient."""
        regularized, total = dict(grads), None
        factor = 2 * self.weight * step.loss_scale
        buffers: dict[tuple[torch.device, torch.dtype], Tensor] = {}
        for name, parameter in params.tensors.items():
            if parameter.dim() < 2:
                continue
            tensor = parameter.detach()
            gradient = regularized.get(name)
            gradient = torch.zeros_like(tensor) if gradient is None else gradient.contiguous()
            kind = (tensor.device, at_least_single(tensor[:0]).dtype)
            if kind not in buffers:
                size = CHUNK if tensor.device.type == "cpu" else CHUNK_ON_DEVICE
                buffers[kind] = torch.empty(size, device=kind[0], dtype=kind[1])
            square = _add_pull(tensor, params.start[name], gradient, buffers[kind], factor)
            total = square if total is None else total + square.to(total.device)
            regularized[name] = gradient
        if total is not None:
            state["value"] = self.weight * params.summed(total)
        return regularized

    def regularization_losses(self, state: State) -> Mapping[str, Tensor]:
        return {"anchor": state["value"]} if "value" in state else {}


def _add_pull(
    tensor: Tensor, start: Tensor, gradient: Tensor, buffer: Tensor, factor: float
) -> Tensor:
    weights, origin, target = tensor.reshape(-1), start.reshape(-1), gradient.view(-1)
    # One pass over the weights, in chunks that fit in the cache; autograd would read and write
    # every weight several times.
    square = torch.zeros((), device=buffer.device, dtype=buffer.dtype)
    for begin in range(0, len(weights), len(buffer)):
        chunk = slice(begin, begin + len(buffer))
        difference = buffer[: len(weights[chunk])]
        torch.sub(weights[chunk], origin[chunk], out=difference)
        target[chunk].add_(difference, alpha=factor)
        square += torch.dot(difference, difference)
    return square


@register(
    "w_cons",
    summary="Penalty on the distance to the initial weights",
    cost="3F",
    memory="one copy of the weights",
    paper="Li et al., ICML 2018",
)
class WCons(Method):
    """Settings of W-Cons."""

    OFF: ClassVar = {"weight": 0.0}

    PRETRAINED = "keeps the weights near pre-trained ones"

    weight: Nonnegative = Field(
        default=0.01,
        description="Weight of the squared distance; 0 is plain fine-tuning. The default is not "
        "tuned; the papers select it by task. L2-SP's alpha is twice this weight.",
    )

    def update(self) -> list[UpdateRule]:
        return [Anchor(self.weight)] if self.weight else []
