"""The context of one step: the inputs of all losses, and the shared clean pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from temper.errors import DataError
from temper.forward.perturbations import Noise, relative_size, zeros
from temper.forward.plan import Plan
from temper.forward.submodels import SubModels
from temper.functional.losses import Divergence
from temper.heads import Head, per_row
from temper.lazy import torch
from temper.models.passes import Recording
from temper.seeding import Streams
from temper.types import Batch, Reduction, State, Step, Term

if TYPE_CHECKING:
    from torch import Tensor

    from temper.models.network import Network, Site
    from temper.models.passes import DropoutPlan

MEASURE_EVERY = 50
"""Steps between diagnostics that need an extra pass, counted from the first step."""


@dataclass
class StepContext:
    """One micro-batch of a step, with everything that its losses need.

    Args:
        state: The update rules' state, by name of the rule.
        now: Position in training, and the number of units that losses are divided by.
        notes: Detached scalars to log with the next total, by name.
    """

    network: Network
    batch: Batch
    state: State
    now: Step
    streams: Streams
    plan: Plan = field(default_factory=Plan)
    notes: dict[str, Tensor] = field(default_factory=dict)

    @cached_property
    def clean(self) -> CleanPass:
        """The clean pass, run on first use and shared by all methods of a composition."""
        return CleanPass(self)

    @property
    def labels(self) -> Tensor:
        """The labels [B]; raise a `DataError` if the batch has none."""
        if self.batch.labels is None:
            raise DataError(
                f"The batch has no labels; it has {sorted(self.batch.inputs)}. Give them as "
                "'labels' [B]."
            )
        return self.batch.labels

    @property
    def single_rates(self) -> SubModels | None:
        """Dropout rates of every single pass; None for the model's own."""
        submodels = self.plan.submodels
        return submodels if submodels is not None and submodels.passes == 1 else None

    @property
    def measures(self) -> bool:
        """Whether diagnostics that need an extra pass are due."""
        return self.now.number % MEASURE_EVERY == 0 and self.streams.micro == 0

    def take(self, rows: Tensor) -> StepContext:
        """Return the context of some rows, without a clean pass."""
        return replace(self, batch=self.batch.take(rows))

    def noise(self, noise: Noise, stream: str) -> Tensor:
        """Draw noise for the embeddings [B, T, D]; draws of the same stream are equal."""
        return noise.draw(self.network, self.batch, seed=self.streams.local("noise", stream))

    def logits(
        self,
        stream: str,
        *,
        delta: Tensor | None = None,
        site: Site = "word",
        recording: Recording | None = None,
        wrapped: bool = True,
        detached: bool = False,
        weights: Mapping[str, Tensor] | None = None,
    ) -> Tensor:
        """Run one forward pass; return logits [B, U, C].

        Args:
            stream: Name of the pass; passes of the same name drop the same units.
            delta: Perturbation [B, T, D].
            site: Where it is added.
            recording: Filled with embeddings and gradient norms.
            wrapped: Whether to go through the distributed wrapper, which waits for one backward
                per forward. False for a second pass of a total, and for a pass whose backward is
                ``torch.autograd.grad``.
            detached: Whether the embeddings under ``delta`` are detached from the graph.
            weights: Other values for some parameters, by name.
        """
        plan: DropoutPlan | None = None
        if self.single_rates is not None:
            self.network.probe(self.batch)
            seed = self.streams.local("sites", stream)
            plan = self.single_rates.plan(self.network, None, seed=seed)
        return self.network.logits(
            self.batch,
            delta=delta,
            site=site,
            dropout=plan,
            recording=recording,
            seed=self.streams.local("dropout", stream),
            wrapped=wrapped,
            detached=detached,
            weights=weights,
        )

    def passes(
        self,
        submodels: SubModels,
        *,
        stream: str = "passes",
        delta: Tensor | None = None,
        site: Site = "word",
        followed: Recording | None = None,
        recording: Recording | None = None,
        wrapped: bool = True,
    ) -> tuple[Tensor, ...]:
        """Run K sub-models as one forward pass of K*B rows.

        A single sub-model at the model's own rates uses the rates of the plan. All passes have the
        same ``delta`` [B, T, D]. Rates that depend on the clean pass's gradient read ``followed``.
        The result has K tensors [B, U, C]; the other arguments are as in `logits`.
        """
        if submodels.single and self.single_rates is not None:
            submodels = self.single_rates
        network, count = self.network, submodels.passes
        network.probe(self.batch)
        # The default stream has no key, so that its draws stay those of earlier runs.
        key = () if stream == "passes" else (stream,)
        logits = network.logits(
            self.batch.repeat(count),
            delta=None if delta is None else delta.repeat(count, 1, 1),
            site=site,
            dropout=submodels.plan(network, followed, seed=self.streams.local("sites", *key)),
            recording=recording,
            seed=self.streams.local("dropout", stream),
            wrapped=wrapped,
        )
        return logits.chunk(count)

    def head(self, logits: Tensor) -> Head:
        """Return the head for the labels, or for the logits [B, U, C] of a batch without labels."""
        return self.network.heads.of(self.batch.labels, logits)

    def per_row(self, values: Tensor, logits: Tensor) -> Tensor:
        """Sum the values of each row's units [B, U] to [B], without masked units.

        ``logits`` [B, U, C] are those that the values were computed from.
        """
        return per_row(values, self.head(logits).unit_mask(self.batch, logits))

    def task_rows(self, logits: Tensor, labels: Tensor | None = None) -> Tensor:
        """Return the task's loss of each row [B], with the plan's label smoothing.

        ``labels`` are in the format of the batch; by default they are the batch's.
        """
        labels = self.labels if labels is None else labels
        loss = self.head(logits).loss(logits, labels, smoothing=self.plan.smoothing)
        return self.per_row(loss, logits)

    def task(self, logits: Sequence[Tensor], *, name: str = "task", weight: float = 1.0) -> Term:
        """Average the task's loss over K passes: ``1/K sum_k CE(z_k, y)``."""
        rows = [self.task_rows(each) for each in logits]
        mean = rows[0] if len(rows) == 1 else torch.stack(rows).mean(0)
        return Term(name, mean, weight, logits=tuple(logits))

    def divergence_rows(self, logits: Sequence[Tensor], kind: Divergence) -> Tensor:
        """Return ``sum_{l<k} D(P_l || P_k)`` of each row [B], over all pairs of K passes.

        ``kind`` is ``js`` or ``sym_kl``; for a regression D is the squared difference.
        """
        pairs = self.head(logits[0]).pairwise(logits, kind=kind)
        return self.per_row(pairs, logits[0])

    def divergence(
        self,
        logits: Sequence[Tensor],
        kind: Divergence,
        reduction: Reduction,
        *,
        weight: float,
        name: str = "divergence",
    ) -> Term:
        """Return the weighted divergence of K passes; see `divergence_rows`."""
        rows = self.divergence_rows(logits, kind)
        return Term(name, rows, weight, reduction, logits=tuple(logits))

    def note_size(self, delta: Tensor, embeddings: Tensor | None) -> None:
        """Log the size of a perturbation [B, T, D] relative to the embeddings [B, T, D]."""
        assert embeddings is not None
        size = relative_size(delta, embeddings, self.batch, self.network)
        self.notes["attack/relative_size"] = size

    def note_dropout_fraction(self, term: Term, unperturbed: Callable[[], Tensor]) -> None:
        """Log the fraction of a divergence that is due only to dropout (one pass, no graph).

        At 1, the loss is R-Drop's. It is measured every 50 steps. ``unperturbed`` computes the
        divergence's rows with an unperturbed second pass.
        """
        if not self.measures:
            return
        with torch.no_grad():
            by_dropout = unperturbed().sum()
        fraction = by_dropout / term.rows.detach().sum().clamp(min=1e-12)
        self.notes["divergence/dropout_fraction"] = fraction

    def single_clean(self) -> tuple[Tensor, str]:
        """Return unperturbed logits [B, U, C] with their graph, and the stream of their dropout.

        These are the logits of the clean pass if it is a single one, else those of one more pass.
        """
        if len(self.clean.logits) == 1:
            return self.clean.logits[0], "clean"
        # No single pass can repeat the dropout of several sub-models.
        return self.logits("single", wrapped=False), "single"

    def average(self, rule: str) -> dict[str, Tensor]:
        """Return the average that the rule named ``rule`` keeps, in the model's precision."""
        model, kept = self.network.model, self.state[rule]["weights"]
        return {name: value.to(model.get_parameter(name).dtype) for name, value in kept.items()}


class CleanPass:
    """The pass over the unchanged batch.

    Attributes:
        logits: K tensors [B, U, C], with their graph until the backward of the clean total has run.
        detached: The same, detached from the graph; kept after the backward.
        task: The term of the task loss; None for a batch without labels.
        start: Tensor added to the embeddings [B, T, D], zeros or noise; None without one.
        recording: Embeddings and gradient norms recorded during the pass.
        watched: Values that the plan's ``watch`` contexts yielded, by name.
        carried: Called with all terms of the clean total before its backward; each returns a scalar
            that is 0 and has a gradient, which is added to the total, or None.
    """

    def __init__(self, step: StepContext) -> None:
        plan = step.plan
        self._step, self.site = step, plan.site
        self.start: Tensor | None = None
        if plan.start is not None:
            self.start = plan.start(step).requires_grad_(plan.gradient)
        elif plan.gradient:
            self.start = zeros(step.network, step.batch, site=plan.site)
        self.recording = Recording(channel_norms=plan.gradient and plan.channel_norms)
        self.carried: list[Callable[[Sequence[Term]], Tensor | None]] = []
        self._gradient: Tensor | None = None
        # All contexts are created before one is entered, because creating one may run the network.
        contexts = {name: make(step) for name, make in plan.watch.items()}
        with ExitStack() as watching:
            self.watched: dict[str, Any] = {
                name: watching.enter_context(context) for name, context in contexts.items()
            }
            self.logits = self.recompute(
                None if self.start is None else self.recording, wrapped=True
            )
        self.detached = tuple(each.detach() for each in self.logits)
        self.task: Term | None = None
        if step.batch.labels is not None:
            weight = 1.0 if plan.task_weight is None else plan.task_weight
            self.task = step.task(self.logits, weight=weight)

    def recompute(
        self, recording: Recording | None = None, *, wrapped: bool = False
    ) -> tuple[Tensor, ...]:
        """Run the pass once more under the same dropout; arguments and result as in ``passes``."""
        step, submodels = self._step, self._step.plan.submodels
        given: dict[str, Any] = {"delta": self.start, "site": self.site, "recording": recording}
        if submodels is None or submodels.passes == 1:
            return (step.logits("clean", wrapped=wrapped, **given),)
        return step.passes(submodels, stream="clean", wrapped=wrapped, **given)

    @property
    def embeddings(self) -> Tensor:
        """The unperturbed embeddings [B, T, D] at ``site``, detached."""
        assert self.recording.embeddings is not None
        assert self.start is not None
        return self.recording.embeddings[: len(self.start)]

    @property
    def gradient(self) -> Tensor:
        """Gradient of the task loss w.r.t. the embeddings [B, T, D], up to a factor per row.

        The backward of the clean total leaves it, at no cost. If it is read before that, one more
        backward pass to the embeddings computes it (1F).
        """
        if self._gradient is None:
            if not self.logits or self.task is None or self.start is None:
                raise ValueError(
                    "The plan requests no gradient, or the clean pass has not run yet."
                )
            (self._gradient,) = torch.autograd.grad(
                self.task.rows.sum(), self.start, retain_graph=True
            )
        return self._gradient

    def take_gradient(self, gradient: Tensor) -> None:
        """Store a gradient that another computation has already taken."""
        if self._gradient is None:
            self._gradient = gradient

    def release(self) -> None:
        """Keep the gradient that the backward of the clean total left, and free the graph."""
        if self._gradient is None and self.start is not None:
            self._gradient = self.start.grad
        self.logits, self.task, self.carried = (), None, []
