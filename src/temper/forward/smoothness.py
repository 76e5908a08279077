"""The smoothness penalty: Jacobian and Hessian norms of hidden states by the word embeddings."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from temper.errors import ModelError, SettingError
from temper.forward.step import StepContext
from temper.functional.precision import at_least_single, in_half_precision
from temper.functional.smoothness import (
    Law,
    directions,
    probes,
    root_mean_square,
    squared_norm,
)
from temper.lazy import torch
from temper.models.shards import keep_whole
from temper.seeding import generator
from temper.types import Term

if TYPE_CHECKING:
    from torch import Tensor

    from temper.models.states import Trace

Scheme = Literal["difference", "four_point"]
Layers = Literal["all", "logits"]

# Of the embeddings' RMS. A first difference of gradients may be small; a second difference of
# states divides by the square.
STEP_SIZES: dict[Scheme, float] = {"difference": 2e-3, "four_point": 3e-2}

DIFFERENCES_NEED_CLASSES = (
    "A penalty on differences of logits needs classes, and the model has one output. Use the "
    "method jacobian."
)

RULE = "smoothness"
"""Name of the update rule that stores the layers' weights, and eta if it is measured."""

MEASUREMENTS = 8
"""Steps whose gradients are compared: under dropout one ratio may be off by orders of magnitude."""


@dataclass(frozen=True)
class Smoothness:
    """Penalize how fast hidden states change with the word embeddings, and how fast that changes.

    ``weight * sum_l lambda_l (j ||J_l||_F^2 + k mean_i ||H_{l,i}||_F^2)``, the mean over the batch,
    with ``J_l = dh_l/dx``, ``H_{l,i} = d2 h_{l,i}/dx2``, h_l the state of layer l where the head
    reads, x the word embeddings. The embedding table gets no gradient of it: since a LayerNorm
    follows, larger embeddings would lower the penalty and smooth nothing.

    The schemes estimate the same sum. F is a forward pass of the batch; the task's loss included:

    - ``difference``: J from one vector-Jacobian product with a probe at every layer (7F), H from
      the difference of two such products (13F). Needs attention with a second derivative.
    - ``four_point``: first and second differences of the states themselves (J 7F, J and H 13F).
      It needs no derivative in the forward, so fused attention and compiled models work.

    Args:
        weight: eta, the factor on everything; the weights of the layers sum to 1. Not read with
            ``gradient_ratio``.
        half: Whether the weight multiplies half of the squared norms.
        gradient_ratio: Norm of the penalty's gradient as a fraction of that of the task loss. It
            sets eta to the median over the first 8 steps with the penalty (``only_unlabeled``: with
            labels), then keeps it; None uses ``weight``. The gradients of a step's first
            micro-batch are compared, so the micro-batch size matters: over many rows the task's
            gradients cancel, and the penalty's add up.
        jacobian: j, the factor on the Jacobian term, at least 0.
        hessian: k, the factor on the Hessian term, at least 0; 0 spares its passes.
        step_size: Of finite differences, over the RMS of the example's embeddings; None takes
            2e-3 for ``difference`` and 3e-2 for ``four_point``.
        every: Applies the penalty in every n-th step at n times the weight; batches without labels
            always have it.

    References:
        Jukic and Snajder, TACL 2025, Eqs. 1 to 5.
    """

    weight: float = 1.0
    half: bool = False
    gradient_ratio: float | None = None
    jacobian: float = 1.0
    hessian: float = 1.0
    layers: Layers = "all"
    scheme: Scheme = "difference"
    step_size: float | None = None
    law: Law = "signs"
    every: int = 1
    only_unlabeled: bool = False

    @property
    def factors(self) -> dict[str, float]:
        return {"jacobian": self.jacobian, "hessian": self.hessian}

    @property
    def reads(self) -> frozenset[str]:
        """Name of the update rule that keeps measurements, if there are any."""
        measured = self.layers == "all" or self.gradient_ratio is not None
        return frozenset({RULE}) if measured else frozenset()

    @contextmanager
    def watch(self, step: StepContext) -> Iterator[Trace | None]:
        """Trace the clean pass in the steps that need it, unless it runs in half precision."""
        # A graph that is differentiated twice reads weights after FSDP would have freed them.
        keep_whole(step.network.model)
        # Before the first pass: a compiled network is compiled with its hooks.
        step.network.tracer(step.batch)
        if not self._acts(step) or in_half_precision(step.batch.device):
            yield None
            return
        with self.tracing(step) as trace:
            yield trace

    def tracing(
        self, step: StepContext, shift: Tensor | None = None
    ) -> AbstractContextManager[Trace]:
        """Trace the forward pass inside the block for the derivatives of the scheme.

        ``shift`` [K*B, T, E] is added to the word embeddings.
        """
        tracer = step.network.tracer(step.batch)
        return tracer.tracing(shift=shift, twice=self.scheme == "difference")

    def _acts(self, step: StepContext) -> bool:
        """Return whether the step needs hidden states."""
        return self._pays(step) or self._measures(step)

    def _pays(self, step: StepContext) -> bool:
        """Return whether the penalty applies to the batch."""
        if step.batch.labels is None:
            return True
        return not self.only_unlabeled and step.now.number % self.every == 0

    def _measures(self, step: StepContext) -> bool:
        """Return whether eta is measured on the batch."""
        if self.gradient_ratio is None or step.batch.labels is None or step.streams.micro:
            return False
        state = step.state[RULE]
        seen = len(state.get("ratios", ()))
        # If a rule recomputes the gradient (SAM), all its passes must use the same factor.
        if seen >= MEASUREMENTS or state.get("measured") == step.now.number:
            return False
        return step.now.number % self.every == 0 or not seen

    def terms(self, step: StepContext, trace: Trace | None) -> list[Term]:
        """Return the terms of the penalty after the clean pass; none in steps without it.

        ``trace`` is that of the clean pass; None traces a new pass.
        """
        if not self._acts(step):
            return []
        if trace is not None:
            past_table(step, trace, penalty=self.factors)
        elif step.plan.gradient and step.clean.task is not None:
            # Taken before other gradients, which the dropout sites would record too.
            _ = step.clean.gradient
        kind = step.batch.device.type
        half = in_half_precision(step.batch.device)
        with torch.autocast(kind, enabled=False) if half else nullcontext():
            rows = Estimate(self, step, trace).rows()
            factor = self._eta(step, rows)
        if not self._pays(step):
            return []
        if self.gradient_ratio is not None:
            step.notes["smoothness/weight"] = torch.tensor(factor)
        if step.batch.labels is not None:
            factor *= self.every
        return [Term(name, each, weight=factor * self.factors[name]) for name, each in rows.items()]

    def _eta(self, step: StepContext, rows: dict[str, Tensor]) -> float:
        """Return the factor on everything: as set, or from the ratio of gradient norms."""
        if self.gradient_ratio is None:
            return self.weight / 2 if self.half else self.weight
        state = step.state[RULE]
        task = step.clean.task
        if task is not None and self._measures(step):
            # If no trainable weight is reached (first steps of lp_ft), there is no ratio.
            if ratio := self._ratio(step, task, rows):
                ratios = [*state.get("ratios", torch.empty(0)).tolist(), ratio]
                state["ratios"] = torch.tensor(ratios, dtype=torch.float64)
                # Fixed after that: a smaller penalty must not raise its own weight.
                state["eta"] = self.gradient_ratio * statistics.median(ratios)
            state.setdefault("eta", 0.0)
            state["measured"] = step.now.number
        if "eta" not in state:
            raise SettingError(
                "gradient_ratio compares the penalty's gradient with that of the task's loss, and "
                "no batch with labels has been seen yet. Set strength={'weight': ...} instead."
            )
        return float(state["eta"])

    def _ratio(self, step: StepContext, task: Term, rows: dict[str, Tensor]) -> float:
        """Return the norm of the task's gradient over the penalty's, on weights that both reach.

        It is 0 if the penalty reaches none of them.
        """
        penalty = torch.tensor(0.0)
        for name, each in rows.items():
            penalty = penalty + self.factors[name] * each.sum()
        weights = [each for each in step.network.model.parameters() if each.requires_grad]
        squares = []
        for loss in (task.rows.sum(), penalty):
            grads = torch.autograd.grad(loss, weights, retain_graph=True, allow_unused=True)
            squares.append([None if g is None else _squared(g) for g in grads])
        # Weights that both reach exclude the head and the embedding table.
        both = [(a, b) for a, b in zip(*squares, strict=True) if a is not None and b is not None]
        sums = torch.tensor([(0.0, 0.0), *both], dtype=torch.float64).sum(0)
        if step.now.ranks > 1:
            sums = sums.to(step.batch.device)
            torch.distributed.all_reduce(sums)
        return float((sums[0] / sums[1]).sqrt()) if sums[1] > 0 else 0.0


def past_table(step: StepContext, trace: Trace, *, penalty: Mapping[str, float]) -> None:
    """Give the embedding table the gradient of all terms of the loss except the penalty.

    The trace, and the clean pass with it, is detached from the table, which must not receive the
    penalty's gradient. The other terms' gradient of the table is computed once (1F) and added to
    the total as a scalar that is 0 and has that gradient.

    ``penalty`` has the names of the penalty's own terms.
    """
    # A leaf root means that the embedding table is not trained.
    if trace.root.is_leaf:
        return
    clean, network = step.clean, step.network
    roots = [trace.root, *(cut for _, cut in trace.others)]
    copies = len(trace.root) // step.batch.size

    def by_roots(terms: Sequence[Term]) -> list[Tensor]:
        values = [term.value(step.now) for term in terms]
        total = sum(values[1:], values[0])
        return list(torch.autograd.grad(total, roots, retain_graph=True))

    early: list[Tensor] | None = None
    if step.plan.gradient and clean.task is not None:
        # An attack reads the task's gradient. It is taken before other gradients go through the
        # graph, because the dropout sites would record those. At the words it is needed here too.
        if clean.site == "word" and copies == 1 and clean.task.weight:
            early = by_roots([clean.task])
            clean.take_gradient(early[0])
        else:
            _ = clean.gradient

    def carried(terms: Sequence[Term]) -> Tensor | None:
        others = [term for term in terms if term.name not in penalty]
        if not others:
            return None
        alone = early is not None and others == [clean.task]
        gradient, *further = early if alone and early is not None else by_roots(others)
        words = network.embeddings(step.batch.repeat(copies), detached=False)
        owed = ((words - words.detach()) * gradient).sum()
        for (embed_again, _), each in zip(trace.others, further, strict=True):
            words = embed_again()
            owed = owed + ((words - words.detach()) * each).sum()
        return owed

    clean.carried.append(carried)


def _logits_of(passes: Sequence[Tensor]) -> Tensor:
    return torch.cat(list(passes)) if len(passes) > 1 else passes[0]


def _squared(gradient: Tensor) -> float:
    return float(at_least_single(gradient).square().sum())


class Estimate:
    """One estimate of the penalty's terms on one micro-batch."""

    def __init__(self, penalty: Smoothness, step: StepContext, trace: Trace | None) -> None:
        self.penalty, self.step = penalty, step
        if trace is None:
            self.trace = self.recompute(None)
        else:
            self.trace = trace
            trace.logits = _logits_of(step.clean.logits)
        self.draws = generator(step.streams.local("smoothness"))
        self.copies = len(self.trace.root) // step.batch.size
        self.mask = step.batch.repeat(self.copies).mask
        self.states = self._read(self.trace)
        self.weights = self._layer_weights()
        if penalty.hessian and self.trace.root.dtype in (torch.bfloat16, torch.float16):
            raise ModelError(
                f"A Hessian is lost in {self.trace.root.dtype}, the precision of the weights. "
                "Load them in fp32 (precision='bf16' trains so), or set hessian_weight=0."
            )

    def rows(self) -> dict[str, Tensor]:
        """Return [B] for each term, its layers weighted and summed; passes of one row averaged."""
        scheme = self.difference if self.penalty.scheme == "difference" else self.four_point
        estimates = zip(self.penalty.factors.items(), scheme(), strict=False)
        return {
            name: rows.view(self.copies, -1).mean(0) for (name, factor), rows in estimates if factor
        }

    def recompute(self, shift: Tensor | None) -> Trace:
        """Run the clean pass once more under the same dropout and trace it, as in `tracing`."""
        with self.penalty.tracing(self.step, shift) as trace:
            trace.logits = _logits_of(self.step.clean.recompute())
        return trace

    def _read(self, trace: Trace) -> list[Tensor]:
        if self.penalty.layers == "all":
            return trace.at_head()
        assert trace.logits is not None
        logits = trace.logits  # [B, U, C]
        if self.penalty.layers == "logits" and self.penalty.law == "zero_sum":
            if logits.shape[-1] < 2:
                raise ModelError(DIFFERENCES_NEED_CLASSES)
            # Schemes without probes see differences alone too.
            logits = logits - logits.mean(-1, keepdim=True)
        return [logits.flatten(1)]

    def _layer_weights(self) -> list[float]:
        if self.penalty.layers == "logits":
            return [1.0]
        weights: Tensor | None = self.step.state[RULE].get("weights")
        if weights is None:
            raise SettingError(
                "The base model's Jacobian norms have not been measured yet. Call "
                "prepare(batches) once before the first step (RobustTrainer does), or set "
                "layers='uniform'."
            )
        if not len(weights):
            return [1 / len(self.states)] * len(self.states)
        if len(weights) != len(self.states):
            raise ModelError(
                f"{len(weights)} layers were measured before training and {len(self.states)} ran "
                "now. The model skips blocks at random (set its layerdrop to 0)."
            )
        return [float(weight) for weight in weights]

    def probes(self) -> list[Tensor]:
        # Independent between layers: a shared probe would add cross terms of the layers.
        law = self.penalty.law
        return [probes((len(h), h.shape[-1]), law, self.draws, like=h) for h in self.states]

    def direction(self) -> Tensor:
        """Draw a direction in the word embeddings [B, T, E]."""
        root = self.trace.root
        return directions(self.mask, root.shape[-1], self.draws, like=root)

    def width(self) -> int:
        """Return the width of the layers; raise if they differ."""
        widths = {state.shape[-1] for state in self.states}
        if len(widths) > 1:
            raise ModelError(
                f"The blocks' outputs differ in width ({sorted(widths)}), and one product cannot "
                "average over their dimensions. Use scheme='four_point'."
            )
        return int(widths.pop())

    def _step_size(self) -> Tensor:
        size = self.penalty.step_size or STEP_SIZES[self.penalty.scheme]
        sizes = root_mean_square(self.trace.root, self.mask)[:, None, None] * size
        # A row without real tokens does not move, so its differences are 0.
        return torch.where(sizes > 0, sizes, 1.0)

    def gradient(self, trace: Trace, states: Sequence[Tensor], chosen: Sequence[Tensor]) -> Tensor:
        """Return ``g = d/dx sum_l sqrt(lambda_l) v_l . h_l`` [B, T, E], with its graph."""
        total = torch.zeros(len(states[0]), device=states[0].device)
        for state, probe, weight in zip(states, chosen, self.weights, strict=True):
            total = total + (at_least_single(state) * probe).sum(-1) * math.sqrt(weight)
        (gradient,) = torch.autograd.grad(total.sum(), trace.root, create_graph=True)
        return gradient

    def difference(self) -> Iterator[Tensor]:
        """Yield the rows of both terms by vector-Jacobian products and their difference."""
        chosen = self.probes()
        gradient = self.gradient(self.trace, self.states, chosen)
        yield squared_norm(gradient, self.mask)
        if not self.penalty.hessian:
            return
        step = self._step_size()
        moved = self.recompute(step * self.direction())
        moved_gradient = self.gradient(moved, self._read(moved), chosen)
        yield squared_norm((moved_gradient - gradient) / step, self.mask) / self.width()

    def four_point(self) -> Iterator[Tensor]:
        """Yield the rows of both terms by differences of the states."""
        step = self._step_size()
        one = step * self.direction()
        at_one = self._read(self.recompute(one))
        size = step.flatten(1)
        first = [(b - a) / size for a, b in zip(self.states, at_one, strict=True)]
        yield self._sum([each.square().sum(-1) for each in first])
        if not self.penalty.hessian:
            return
        other = step * self.direction()
        at_other = self._read(self.recompute(other))
        at_both = self._read(self.recompute(one + other))
        points = zip(self.states, at_one, at_other, at_both, strict=True)
        second = [((d - c) - (b - a)) / size.square() for a, b, c, d in points]
        yield self._sum([each.square().mean(-1) for each in second])

    def _sum(self, layers: Sequence[Tensor]) -> Tensor:
        total = layers[0] * self.weights[0]
        for each, weight in zip(layers[1:], self.weights[1:], strict=True):
            total = total + each * weight
        return total
