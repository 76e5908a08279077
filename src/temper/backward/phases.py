"""Phases: the head trains alone first, then everything."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import torch
import torch.distributed
from torch import Tensor

from temper.backward.rule import UpdateRule, known_total
from temper.errors import ModelError
from temper.models.network import Parameters
from temper.seeding import Streams
from temper.types import Gradients, State, Step

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class HeadFirst(UpdateRule):
    """Train nothing but the head for the first steps: linear probing, then fine-tuning.

    While it probes, the other parameters have no gradient: the optimiser neither moves nor decays
    them and keeps no moments of them. In one process they are set aside before the passes, so that
    backward ends at the head. Distributed training counts on a gradient of every parameter, so
    there theirs are computed and left out.

    Args:
        ratio: Share of all steps that probe; None where ``steps`` says how many.
        steps: Steps that probe.
        learning_rate_scale_of_head: Factor on the learning rates while it probes.

    References:
        Kumar et al., ICLR 2022.
    """

    ratio: float | None = 0.2
    steps: int | None = None
    learning_rate_scale_of_head: float = 1.0

    name = "phases"
    supports_fsdp = True
    conflicts = frozenset({"phases"})

    def init(self, params: Parameters) -> State:
        """Start by probing.

        Raises:
            ModelError: If the model's head cannot be told from the rest.
        """
        if not params.head:
            raise ModelError(
                "The head is to train before the rest, but in this model no trainable head is "
                "found: neither Transformers' base_model_prefix names the pre-trained part, nor "
                "does anything stand behind repeated blocks. Use another method."
            )
        return {"probing": True}

    def length(self, step: Step) -> int:
        """Return how many steps probe.

        Args:
            step: Gives the number of all steps.
        """
        return round((self.ratio or 0.0) * step.total) if self.steps is None else self.steps

    def before_forward(self, params: Parameters, state: State, step: Step, rng: Streams) -> None:
        """Set all but the head aside while it probes."""
        total = known_total(self, step)
        state["probing"] = step.number < self.length(step)
        if step.number == 0 and self.length(step) >= total:
            logger.warning(
                "All %d steps train the head alone: nothing is fine-tuned after that.", total
            )
        if state["probing"] and step.ranks == 1 and not torch.distributed.is_initialized():
            state["aside"] = True
            for name, tensor in params.tensors.items():
                tensor.requires_grad_(name in params.head)

    def after_backward(self, params: Parameters, state: State) -> None:
        """Take them up again."""
        if state.pop("aside", False):
            for tensor in params.tensors.values():
                tensor.requires_grad_(True)

    def regularize(
        self, grads: Gradients, params: Parameters, state: State, step: Step, rng: Streams
    ) -> Gradients:
        """Leave the others out before clipping, so that their gradient is not in the norm."""
        return self._of_head(grads, params, state)

    def transform(
        self, grads: Gradients, params: Parameters, state: State, rng: Streams
    ) -> Gradients:
        """Leave the others out, whatever another rule added for them."""
        return self._of_head(grads, params, state)

    def learning_rate_scales(
        self, params: Parameters, state: State, step: Step
    ) -> dict[str, float]:
        """Return the head's factor for all parameters while it probes."""
        scale = self.learning_rate_scale_of_head
        return dict.fromkeys(params.tensors, scale) if state["probing"] and scale != 1 else {}

    def diagnostics(self, state: State) -> dict[str, Tensor | float]:
        """Return 1 while the head trains alone, then 0."""
        return {"phases/probing": float(state["probing"])}

    def _of_head(self, grads: Gradients, params: Parameters, state: State) -> Gradients:
        if not state["probing"]:
            return grads
        return {name: gradient for name, gradient in grads.items() if name in params.head}
