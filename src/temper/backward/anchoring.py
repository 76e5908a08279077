"""Rules that remember weights: pulls to the start, the way back to it, a moving average."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import torch
from torch import Tensor

from temper.backward.averaging import take_in
from temper.backward.rule import UpdateRule
from temper.functional.precision import at_least_single
from temper.models.network import Parameters
from temper.seeding import Streams
from temper.types import Gradients, State, Step

logger = logging.getLogger(__name__)

# Difference, start and gradient of a chunk stay in a core's cache; a GPU wants few launches.
CHUNK, CHUNK_ON_DEVICE = 2**18, 2**24

Anneal = Literal["sigmoid", "linear", "constant"]


@dataclass(frozen=True)
class Anchor(UpdateRule):
    """Add the gradient of ``weight * sum ||w - w_start||^2`` over matrices and embeddings.

    Vectors (biases, LayerNorm) are left out; a classifier drawn anew is held to what was drawn.

    The gradient ``2 weight (w - w_start)`` is written down and not taken by autograd, which would
    read and write every weight several times: this is one pass over the weights, in chunks that
    stay in cache, and the gradients are equal. Processes each add the same to the gradients that
    they have averaged.

    Args:
        weight: Of the penalty, at least 0.

    References:
        L2-SP: Li et al., ICML 2018 (arXiv 1802.01483).
    """

    weight: float

    name = "anchor"
    takes_rows = True
    wants_start = True
    # Weight, start and gradient are read, the gradient is written.
    moved = 4.0

    def penalise(
        self, grads: Gradients, params: Parameters, state: State, step: Step, rng: Streams
    ) -> Gradients:
        """Add the penalty's gradient; a parameter without a gradient gets one."""
        found, total = dict(grads), None
        factor = 2 * self.weight * step.loss_scale
        buffers: dict[tuple[torch.device, torch.dtype], Tensor] = {}
        for name, parameter in params.tensors.items():
            if parameter.dim() < 2:
                continue
            tensor = parameter.detach()
            gradient = found.get(name)
            gradient = torch.zeros_like(tensor) if gradient is None else gradient.contiguous()
            kind = (tensor.device, at_least_single(tensor[:0]).dtype)
            if kind not in buffers:
                size = CHUNK if tensor.device.type == "cpu" else CHUNK_ON_DEVICE
                buffers[kind] = torch.empty(size, device=kind[0], dtype=kind[1])
            square = _pull(tensor, params.start[name], gradient, buffers[kind], factor)
            total = square if total is None else total + square.to(total.device)
            found[name] = gradient
        if total is not None:
            state["value"] = self.weight * params.summed(total)
        return found

    def pulls(self, state: State) -> Mapping[str, Tensor]:
        """Return the weighted penalty at the last step."""
        return {"anchor": state["value"]} if "value" in state else {}


def _pull(tensor: Tensor, start: Tensor, gradient: Tensor, buffer: Tensor, factor: float) -> Tensor:
    """Add ``factor * (tensor - start)`` to a gradient and return the difference's square."""
    here, there, into = tensor.reshape(-1), start.reshape(-1), gradient.view(-1)
    square = torch.zeros((), device=buffer.device, dtype=buffer.dtype)
    for begin in range(0, len(here), len(buffer)):
        chunk = slice(begin, begin + len(buffer))
        difference = buffer[: len(here[chunk])]
        torch.sub(here[chunk], there[chunk], out=difference)
        into[chunk].add_(difference, alpha=factor)
        square += torch.dot(difference, difference)
    return square


@dataclass(frozen=True)
class Recall(UpdateRule):
    """Shift from recalling the pre-trained weights to learning the task, beside Adam's moments.

    Per step t, counted from 1, for every weight but the classifier's::

        w <- w - lr * lambda(t) * adam(g)
        w <- w - lr * (1 - lambda(t)) * gamma * (w - w_start)
        w <- w - lr * weight_decay * w

    The classifier takes the optimiser's plain step. The optimiser's weight decay must be the
    decoupled one (AdamW) or 0: it is taken out of its step and put back undamped.

    Args:
        anneal: ``sigmoid``: ``lambda = 1 / (1 + exp(-k (t - t0)))``; ``linear``:
            ``min(1, t / t0)``; ``constant``: ``share``.
        k: Steepness of the sigmoid.
        t0: Step at which the sigmoid is 1/2, and at which the linear one reaches 1.
        gamma: Strength of the pull.
        share: lambda of ``constant``.

    References:
        RecAdam: Chen et al., EMNLP 2020 (arXiv 2004.12651), Algorithm 1; the released code,
        Sanyuan-Chen/RecAdam, for the order of the three lines and the count of t.
    """

    anneal: Anneal = "sigmoid"
    k: float = 0.5
    t0: int = 250
    gamma: float = 5000.0
    share: float = 0.5

    name = "recall"
    takes_rows = True
    slots = frozenset({"settling"})
    logged = MappingProxyType({"recall/task_share": "share"})
    wants_start = True
    wants_rates = True
    # The weight is copied; later weight, copy and start are read and the weight is written.
    moved = 6.0

    def init(self, params: Parameters) -> State:
        """Start with nothing; say so where the classifier cannot be told from the rest."""
        if not params.head:
            logger.warning(
                "The model does not tell which of its parameters are the classifier, so all of "
                "them are pulled to their start, a classifier drawn anew too."
            )
        return {}

    def task_share(self, number: int) -> float:
        """Return lambda(t), the share of the task.

        Args:
            number: t, from 1.
        """
        if self.anneal == "constant":
            return self.share
        if self.anneal == "linear":
            return min(1.0, number / self.t0)
        exponent = self.k * (number - self.t0)
        # Either way the exponential is at most 1: that of a late t0 would overflow.
        small = math.exp(-abs(exponent))
        return (1.0 if exponent >= 0 else small) / (1.0 + small)

    def transform(
        self, grads: Gradients, params: Parameters, state: State, rng: Streams
    ) -> Gradients:
        """Keep the pre-trained weights as they are before the optimiser moves them."""
        state["before"] = {
            name: params.tensors[name].detach().clone() for name in grads if name not in params.head
        }
        return grads

    def settle(self, params: Parameters, state: State, step: Step) -> None:
        """Damp the optimiser's step, pull to the start, and decay."""
        before: dict[str, Tensor] = state.pop("before", {})
        if step.skipped:
            return
        share = self.task_share(step.number + 1)
        state["share"] = share
        if step.number == 0 and step.total:
            self._warn_of_an_end_before_the_task(step.total)
        strongest, left = 0.0, params.gradients()
        for name, old in before.items():
            tensor = params.tensors[name]
            # Another rule may have left it out of the step since.
            if name not in left or name not in step.rates:
                continue
            rate, decay = step.rates[name]
            pull = rate * (1 - share) * self.gamma
            strongest = max(strongest, pull)
            with torch.no_grad():
                tensor.mul_(share).add_(old, alpha=1 - share * (1 - rate * decay))
                tensor.lerp_(params.start[name], pull)
                tensor.mul_(1 - rate * decay)
        if strongest >= 1 and not state.get("warned"):
            state["warned"] = True
            logger.warning(
                "gamma=%g at this learning rate pulls by %g of the way to the start in one step: "
                "weights are carried past it, and away for good above 2. Lower gamma or the "
                "learning rate until their product is well below 1 (published: .1).",
                self.gamma,
                strongest,
            )

    def _warn_of_an_end_before_the_task(self, total: int) -> None:
        if self.anneal != "constant" and self.task_share(total) < 0.5:
            logger.warning(
                "Training ends after %d steps, while the task's share of the step is %.2g: the "
                "pre-trained weights hardly move. Set t0 below the number of steps (now %d).",
                total,
                self.task_share(total),
                self.t0,
            )


@dataclass(frozen=True)
class WeightAverage(UpdateRule):
    """Average the trainable weights after each step; the weights themselves are left alone.

    ``ema = b * ema + (1 - b) * w``, with ``b = decay`` in the first ``early`` share of the steps
    and ``b = final_decay`` after it. Where the number of steps is not known, b stays ``decay``.

    One copy of the trainable weights, in at least fp32: a step of 1 - .999 is below what bf16
    resolves. The average takes the weights as the other rules of a chain have left them.

    Args:
        decay: b of the early steps, in [0, 1).
        final_decay: b of the others, in [0, 1).
        early: Share of the steps, in [0, 1].

    References:
        SMART (arXiv 1911.03437); Mean Teacher (arXiv 1703.01780) for the two decays.
    """

    decay: float = 0.99
    final_decay: float = 0.999
    early: float = 0.1

    name = "average"
    takes_rows = True
    last = True
    # Weight and average are read, the average is written.
    moved = 3.0

    def init(self, params: Parameters) -> State:
        """Start at the weights as they are."""
        copies = {
            name: at_least_single(tensor.detach()).clone()
            for name, tensor in params.tensors.items()
        }
        return {"weights": copies}

    def settle(self, params: Parameters, state: State, step: Step) -> None:
        """Take in the weights that the step has made."""
        if step.number == 0 and not step.total and self.decay != self.final_decay:
            logger.warning(
                "How many steps there will be is not known, so the average of the weights keeps "
                "decay=%g and final_decay=%g is never used. Give Stepper(..., total=STEPS).",
                self.decay,
                self.final_decay,
            )
        if step.skipped:
            return
        with torch.no_grad():
            take_in(state["weights"], params, share=1 - self.decay_at(step))

    def decay_at(self, step: Step) -> float:
        """Return b for the average that follows a step; the paper counts steps from 1.

        Args:
            step: Where training stands.
        """
        late = step.total and step.number + 1 > self.early * step.total
        return self.final_decay if late else self.decay


@dataclass(frozen=True)
class Interpolation(UpdateRule):
    """Set weights to ``(1 - alpha) * start + alpha * trained`` at the end; the head stays trained.

    Args:
        alpha: Share of the trained weights, in [0, 1].

    References:
        Wortsman et al., CVPR 2022, Eq. 1.
    """

    alpha: float = 0.5

    name = "interpolation"
    takes_rows = True
    slots = frozenset({"finish"})
    wants_start = True

    def init(self, params: Parameters) -> State:
        """Start unfinished."""
        if not params.head:
            logger.warning(
                "In this model no trainable head is found, so that a head drawn anew would be "
                "interpolated with its first draw like all other weights."
            )
        return {"finished": False}

    def finish(self, params: Parameters, state: State) -> None:
        """Interpolate, once."""
        if state["finished"]:
            return
        for name, tensor in params.tensors.items():
            if name not in params.head:
                tensor.copy_(params.start[name].lerp(tensor, self.alpha))
        state["finished"] = True
