"""Settings and losses of smoothness penalties (norms of the Jacobian and the Hessian).

``eta * sum_l lambda_l (j ||J_l||_F^2 + k mean_i ||H_{l,i}||_F^2)``, averaged over the batch, with
``J_l = dh_l/dx``, ``H_{l,i} = d2 h_{l,i}/dx2``, h_l the state of layer l at the position that the
head reads, and x the word embeddings; j and k are `jacobian_weight` and `hessian_weight`. The
embedding table gets no gradient of the penalty: because of the following LayerNorm, larger
embeddings would lower the penalty without smoothing anything.

Two schemes estimate this sum. Costs include the task loss; F is a forward pass of the batch.

- ``difference``: J from one vector-Jacobian product with a probe at every layer (7F), H from the
  difference of two such products (13F). It needs attention with a second derivative.
- ``four_point``: first and second differences of the states (J 7F, J and H 13F). It needs no
  derivative in the forward, so fused attention and compiled models work.

References: Jukic and Snajder, TACL 2025, Eqs. 1 to 5.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from temper.backward.layer_jacobians import LayerJacobians
from temper.backward.rule import UpdateRule
from temper.errors import ModelError, SettingError
from temper.forward import Losses, Plan, StepContext
from temper.forward.embedding_table import restore_table_gradient
from temper.functional.precision import at_least_single, in_half_precision
from temper.functional.smoothness import (
    Law,
    directions,
    probes,
    root_mean_square,
    squared_norm,
)
from temper.heads import Head
from temper.lazy import Tensor, torch
from temper.methods.bounds import Count, Nonnegative, Positive
from temper.methods.method import Method, check_whole_text
from temper.methods.variants import Variant, variant
from temper.models.shards import keep_whole
from temper.seeding import generator
from temper.types import Step, Term

if TYPE_CHECKING:
    from temper.models.states import Trace

RATIO_OF_LOGITS = 0.02
"""Default ratio for penalties on the logits; with 1 they would oppose the task loss too much."""

MEASUREMENTS = 8
"""Number of steps whose gradient ratios are measured; with dropout, one may be far off."""

DIFFERENCES_NEED_CLASSES = (
    "A penalty on differences of logits needs classes, and the model has one output. Use the "
    "method jacobian."
)


class GradientRatio(Variant):
    """eta is set so that the penalty's gradient has a given size relative to the task loss's."""

    kind: Literal["gradient_ratio"] = "gradient_ratio"
    ratio: Positive = Field(
        default=1.0,
        description="Norm of the penalty's gradient divided by that of the task loss. The factor "
        "eta that gives this ratio is the median over the first 8 steps, and then "
        "fixed. It is measured on the first micro-batch of a step. The ratio "
        "transfers between models and strategies; eta does not.",
    )


class Weight(Variant):
    """eta is set directly."""

    kind: Literal["weight"] = "weight"
    weight: Nonnegative = Field(description="Factor eta on the penalty; 0 is plain fine-tuning.")


class Difference(Variant):
    """Finite differences of gradients, each from one pass."""

    kind: Literal["difference"] = "difference"
    step_size: Positive = Field(
        default=2e-3,
        description="Size of the step, as a fraction of the RMS of the example's embeddings.",
    )


class FourPoint(Variant):
    """Finite differences of states, which also work with fused attention and compiled models."""

    kind: Literal["four_point"] = "four_point"
    # A second difference of states divides by the square of the step.
    step_size: Positive = Field(
        default=3e-2,
        description="Size of the step, as a fraction of the RMS of the example's embeddings.",
    )


class SmoothnessConfig(Method):
    """Base class of smoothness penalties: settings, and the penalty itself."""

    OFF: ClassVar = {"strength": {"weight": 0.0}}

    LAW: ClassVar[Law] = "signs"
    """Distribution of the random projections, see `probes`."""

    strength: GradientRatio | Weight = variant(
        GradientRatio(), "Strength of the penalty, as a `gradient_ratio` or as a `weight` (eta)."
    )
    jacobian_weight: Nonnegative = Field(default=1.0, description="Factor on the Jacobian term.")
    hessian_weight: Nonnegative = Field(
        default=1.0, description="Factor on the Hessian term; 0 skips its passes."
    )
    scheme: Difference | FourPoint = variant(
        Difference(), "Estimator of the norms: `difference` or `four_point`."
    )
    every: Count = Field(
        default=1, description="Apply the penalty only in every n-th step, with n times the weight."
    )

    def check(self) -> None:
        super().check()
        if not self.is_off and not (self.jacobian_weight or self.hessian_weight):
            raise ValueError(
                "one of jacobian_weight and hessian_weight must be above 0; to switch the penalty "
                "off, set strength={'weight': 0}"
            )

    @property
    def is_off(self) -> bool:
        return isinstance(self.strength, Weight) and not self.strength.weight

    @property
    def smoothed(self) -> Literal["all", "logits"]:
        """Penalized states: those of ``all`` blocks, or only the ``logits``."""
        return "logits"

    @property
    def factors(self) -> dict[str, float]:
        return {"jacobian": self.jacobian_weight, "hessian": self.hessian_weight}

    def eta(self, weight: float) -> float:
        """Convert the setting ``weight`` to the factor on the squared norms."""
        return weight

    def layer_jacobians(self) -> LayerJacobians:
        return LayerJacobians("uniform")

    def plan(self, now: Step) -> Plan:
        if self.is_off:
            return Plan()
        return Plan(
            clean=True,
            watch={"trace": self.watch},
            needs_labels=False,
            conflicts=frozenset({"smoothness"}),
        )

    def check_head(self, head: type[Head]) -> None:
        if not self.is_off:
            # The penalty smooths one state per text.
            check_whole_text(self, head)

    def losses(self, step: StepContext) -> Iterator[Losses]:
        """Yield ``CE(x)`` and the penalty in one total."""
        clean = step.clean
        yield [clean.task, *self.terms(step, clean.watched["trace"])]

    def update(self) -> list[UpdateRule]:
        # The rule stores layer weights or a measured eta.
        has_state = self.smoothed == "all" or isinstance(self.strength, GradientRatio)
        return [self.layer_jacobians()] if has_state and not self.is_off else []

    @contextmanager
    def watch(self, step: StepContext) -> Iterator[Trace | None]:
        """Trace the clean pass if the step needs it, except in half precision."""
        # Second derivatives need the weights longer than FSDP keeps them.
        keep_whole(step.network.model)
        # Create the tracer before the first pass, because a network is compiled with its hooks.
        step.network.tracer(step.batch)
        if not self._reads_states(step) or in_half_precision(step.batch.device):
            yield None
            return
        with self.tracing(step) as trace:
            yield trace

    def tracing(
        self, step: StepContext, shift: Tensor | None = None
    ) -> AbstractContextManager[Trace]:
        """Record the states of the forward pass inside the `with` block, for derivatives.

        ``shift`` [K*B, T, E] is added to the word embeddings.
        """
        tracer = step.network.tracer(step.batch)
        return tracer.tracing(shift=shift, twice=self.scheme.kind == "difference")

    def _reads_states(self, step: StepContext) -> bool:
        """Return whether the step needs the hidden states of this batch."""
        return self._applies(step) or self._measures_eta(step)

    def _applies(self, step: StepContext) -> bool:
        """Return whether this batch trains on the penalty."""
        if step.batch.labels is None:
            return True
        return not self.NEEDS_UNLABELED and step.now.number % self.every == 0

    def _measures_eta(self, step: StepContext) -> bool:
        """Return whether the gradient ratio is measured on this batch."""
        if isinstance(self.strength, Weight) or step.batch.labels is None or step.streams.micro:
            return False
        state = step.state[LayerJacobians.name]
        seen = len(state.get("ratios", ()))
        # If a rule recomputes the gradient (SAM), all its passes must use the same factor.
        if seen >= MEASUREMENTS or state.get("measured") == step.now.number:
            return False
        return step.now.number % self.every == 0 or not seen

    def terms(self, step: StepContext, trace: Trace | None) -> list[Term]:
        """Return the terms of the penalty; an empty list if the step has none.

        ``trace`` is that of the clean pass; if it is None, a new pass is traced.
        """
        if not self._reads_states(step):
            return []
        if trace is not None:
            restore_table_gradient(step, trace, penalty=self.factors)
        elif step.plan.gradient and step.clean.task is not None:
            # Compute it first: the dropout sites would also record later gradients.
            _ = step.clean.gradient
        kind = step.batch.device.type
        half = in_half_precision(step.batch.device)
        with torch.autocast(kind, enabled=False) if half else nullcontext():
            rows = Estimate(self, step, trace).rows()
            factor = self._eta(step, rows)
        if not self._applies(step):
            return []
        if isinstance(self.strength, GradientRatio):
            step.notes["smoothness/weight"] = torch.tensor(factor)
        if step.batch.labels is not None:
            factor *= self.every
        return [
            Term(name, by_row, weight=factor * self.factors[name]) for name, by_row in rows.items()
        ]

    def _eta(self, step: StepContext, rows: dict[str, Tensor]) -> float:
        """Return eta: as set, or from the measured ratio of gradient norms."""
        if isinstance(self.strength, Weight):
            return self.eta(self.strength.weight)
        state = step.state[LayerJacobians.name]
        task = step.clean.task
        if task is not None and self._measures_eta(step):
            # If the penalty reaches no trainable weight (first steps of lp_ft), there is no ratio.
            if ratio := self._balance(step, task, rows):
                ratios = [*state.get("ratios", torch.empty(0)).tolist(), ratio]
                state["ratios"] = torch.tensor(ratios, dtype=torch.float64)
                # Fixed after the first steps: a penalty that falls must not raise its own weight.
                state["eta"] = self.strength.ratio * statistics.median(ratios)
            state.setdefault("eta", 0.0)
            state["measured"] = step.now.number
        if "eta" not in state:
            raise SettingError(
                "gradient_ratio needs a batch with labels before the first one without, to compare "
                "gradients. Set strength={'weight': ...} instead."
            )
        return float(state["eta"])

    def _balance(self, step: StepContext, task: Term, rows: dict[str, Tensor]) -> float:
        """Return the eta at which the penalty's gradient has the norm of the task loss's gradient.

        Both are over the weights that task loss and penalty depend on; 0 if there are none.
        """
        penalty = torch.tensor(0.0)
        for name, by_row in rows.items():
            penalty = penalty + self.factors[name] * by_row.sum()
        weights = [
            parameter for parameter in step.network.model.parameters() if parameter.requires_grad
        ]
        squares = []
        for loss in (task.rows.sum(), penalty):
            grads = torch.autograd.grad(loss, weights, retain_graph=True, allow_unused=True)
            squares.append([None if g is None else _squared(g) for g in grads])
        # Weights that both reach: never the embedding table, the head only if the penalty is on
        # logits.
        both = [(a, b) for a, b in zip(*squares, strict=True) if a is not None and b is not None]
        sums = torch.tensor([(0.0, 0.0), *both], dtype=torch.float64).sum(0)
        if step.now.ranks > 1:
            sums = sums.to(step.batch.device)
            torch.distributed.all_reduce(sums)
        return float((sums[0] / sums[1]).sqrt()) if sums[1] > 0 else 0.0


def _logits_of(passes: Sequence[Tensor]) -> Tensor:
    return torch.cat(list(passes)) if len(passes) > 1 else passes[0]


def _squared(gradient: Tensor) -> float:
    return float(at_least_single(gradient).square().sum())


class Estimate:
    """Estimates the terms of the penalty on one micro-batch."""

    def __init__(self, penalty: SmoothnessConfig, step: StepContext, trace: Trace | None) -> None:
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
        if penalty.hessian_weight and self.trace.root.dtype in (torch.bfloat16, torch.float16):
            raise ModelError(
                f"The weights are {self.trace.root.dtype}, which is too coarse for a Hessian. Load "
                "them in fp32 (precision='bf16' keeps them in fp32), or set hessian_weight=0."
            )

    def rows(self) -> dict[str, Tensor]:
        """Return term -> [B]: the weighted sum over layers, averaged over the passes of a row."""
        scheme = self.difference if self.penalty.scheme.kind == "difference" else self.four_point
        estimates = zip(self.penalty.factors.items(), scheme(), strict=False)
        return {
            name: rows.view(self.copies, -1).mean(0) for (name, factor), rows in estimates if factor
        }

    def recompute(self, shift: Tensor | None) -> Trace:
        """Run the clean pass again with the same dropout, and trace it as `tracing` does."""
        with self.penalty.tracing(self.step, shift) as trace:
            trace.logits = _logits_of(self.step.clean.recompute())
        return trace

    def _read(self, trace: Trace) -> list[Tensor]:
        if self.penalty.smoothed == "all":
            return trace.at_head()
        assert trace.logits is not None
        logits = trace.logits  # [B, U, C]
        if self.penalty.LAW == "zero_sum":
            if logits.shape[-1] < 2:
                raise ModelError(DIFFERENCES_NEED_CLASSES)
            # Centered, so that a scheme without probes also measures only differences.
            logits = logits - logits.mean(-1, keepdim=True)
        return [logits.flatten(1)]

    def _layer_weights(self) -> list[float]:
        if self.penalty.smoothed == "logits":
            return [1.0]
        weights: Tensor | None = self.step.state[LayerJacobians.name].get("weights")
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
                f"{len(weights)} layers were measured before training, but {len(self.states)} ran "
                "in this step: the model skips blocks at random. Set its layerdrop to 0."
            )
        return [float(weight) for weight in weights]

    def probes(self) -> list[Tensor]:
        # One probe per layer: a shared one would add cross terms between layers.
        law = self.penalty.LAW
        return [probes((len(h), h.shape[-1]), law, self.draws, like=h) for h in self.states]

    def direction(self) -> Tensor:
        """Draw a random direction in the word embeddings, [B, T, E]."""
        root = self.trace.root
        return directions(self.mask, root.shape[-1], self.draws, like=root)

    def width(self) -> int:
        """Return the width of all layers; raise if it differs."""
        widths = {state.shape[-1] for state in self.states}
        if len(widths) > 1:
            raise ModelError(
                f"The blocks' outputs differ in width ({sorted(widths)}), which the scheme "
                "'difference' does not support. Use scheme='four_point'."
            )
        return int(widths.pop())

    def _step_size(self) -> Tensor:
        sizes = root_mean_square(self.trace.root, self.mask)[:, None, None]
        sizes = sizes * self.penalty.scheme.step_size
        # Avoid dividing by 0: a row without real tokens does not move, so its differences are 0.
        return torch.where(sizes > 0, sizes, 1.0)

    def gradient(self, trace: Trace, states: Sequence[Tensor], chosen: Sequence[Tensor]) -> Tensor:
        """Return ``g = d/dx sum_l sqrt(lambda_l) v_l . h_l`` [B, T, E], with its graph."""
        total = torch.zeros(len(states[0]), device=states[0].device)
        for state, probe, weight in zip(states, chosen, self.weights, strict=True):
            total = total + (at_least_single(state) * probe).sum(-1) * math.sqrt(weight)
        (gradient,) = torch.autograd.grad(total.sum(), trace.root, create_graph=True)
        return gradient

    def difference(self) -> Iterator[Tensor]:
        """Yield the Jacobian and the Hessian term by row, from vector-Jacobian products."""
        chosen = self.probes()
        gradient = self.gradient(self.trace, self.states, chosen)
        yield squared_norm(gradient, self.mask)
        if not self.penalty.hessian_weight:
            return
        step = self._step_size()
        moved = self.recompute(step * self.direction())
        moved_gradient = self.gradient(moved, self._read(moved), chosen)
        yield squared_norm((moved_gradient - gradient) / step, self.mask) / self.width()

    def four_point(self) -> Iterator[Tensor]:
        """Yield the Jacobian and the Hessian term by row, from differences of states."""
        step = self._step_size()
        one = step * self.direction()
        at_one = self._read(self.recompute(one))
        size = step.flatten(1)
        first = [(b - a) / size for a, b in zip(self.states, at_one, strict=True)]
        yield self._sum([item.square().sum(-1) for item in first])
        if not self.penalty.hessian_weight:
            return
        other = step * self.direction()
        at_other = self._read(self.recompute(other))
        at_both = self._read(self.recompute(one + other))
        points = zip(self.states, at_one, at_other, at_both, strict=True)
        second = [((d - c) - (b - a)) / size.square() for a, b, c, d in points]
        yield self._sum([item.square().mean(-1) for item in second])

    def _sum(self, norms: Sequence[Tensor]) -> Tensor:
        total = norms[0] * self.weights[0]
        for norm, weight in zip(norms[1:], self.weights[1:], strict=True):
            total = total + norm * weight
        return total
