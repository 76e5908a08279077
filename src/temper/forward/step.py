"""The context of one training step: passes, losses, and the shared clean pass."""

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
from temper.lazy import Tensor, torch
from temper.models.passes import DropoutPlan, Recording
from temper.seeding import Streams
from temper.types import Batch, Reduction, State, Step, Term

if TYPE_CHECKING:
    from temper.models.network import Network, Site

MEASURE_EVERY = 50
"""Number of steps between diagnostics that need an extra pass, from the first step on."""


@dataclass
class StepContext:
    """Everything that losses need for one micro-batch of a step.

    Args:
        state: Name of an update rule -> its state.
        now: Position in training, and the number of units by which losses are divided.
        streams: Seeds of the random draws.
        plan: Merged plan of all methods.
        notes: Name -> detached scalar to log with the next total.
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
        """The batch's labels; raises a `DataError` if it has none."""
        if self.batch.labels is None:
            raise DataError(
                f"The batch has no labels, only {sorted(self.batch.inputs)}. Pass them as 'labels' "
                "[B]."
            )
        return self.batch.labels

    @property
    def single_rates(self) -> SubModels | None:
        """Dropout rates that the plan sets for all single passes; None for the model's own."""
        submodels = self.plan.submodels
        return submodels if submodels is not None and submodels.passes == 1 else None

    @property
    def measures(self) -> bool:
        """Whether diagnostics that need an extra pass are due."""
        return self.now.number % MEASURE_EVERY == 0 and self.streams.micro == 0

    def take(self, rows: Tensor) -> StepContext:
        """Return the context of the given rows of the batch, without a clean pass."""
        return replace(self, batch=self.batch.take(rows))

    def noise(self, noise: Noise, stream: str) -> Tensor:
        """Draw noise for the embeddings [B, T, D]; the same stream repeats the same noise."""
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
            stream: Name of the pass; passes with the same name use the same dropout masks.
            delta: Perturbation [B, T, D].
            site: Where it is added.
            recording: Filled with embeddings and gradient norms.
            wrapped: Whether to run through the distributed wrapper (DDP), which expects one
                backward per forward. Use False for the second pass of a total, and before
                ``torch.autograd.grad``.
            detached: Whether the embeddings under ``delta`` are detached from the graph.
            weights: Name -> value of parameters to replace in this pass.
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
        clean_recording: Recording | None = None,
        recording: Recording | None = None,
        wrapped: bool = True,
    ) -> tuple[Tensor, ...]:
        """Run K sub-models as one forward pass of K*B rows; return K tensors of logits [B, U, C].

        A single sub-model at the model's own rates uses the rates of the plan. All passes have the
        same ``delta`` [B, T, D]. Adaptive rates read the clean pass's gradient norms from
        ``clean_recording``. The other arguments are as in `logits`.
        """
        if submodels.single and self.single_rates is not None:
            submodels = self.single_rates
        network, count = self.network, submodels.passes
        network.probe(self.batch)
        # Without a key, the default stream repeats the draws of runs before streams had names.
        key = () if stream == "passes" else (stream,)
        logits = network.logits(
            self.batch.repeat(count),
            delta=None if delta is None else delta.repeat(count, 1, 1),
            site=site,
            dropout=submodels.plan(
                network, clean_recording, seed=self.streams.local("sites", *key)
            ),
            recording=recording,
            seed=self.streams.local("dropout", stream),
            wrapped=wrapped,
        )
        return logits.chunk(count)

    def head(self, logits: Tensor) -> Head:
        """Return the head of the batch by its labels; without labels, by the logits [B, U, C]."""
        return self.network.heads.of(self.batch.labels, logits)

    def per_row(self, values: Tensor, logits: Tensor) -> Tensor:
        """Sum values of units [B, U] to one per row [B], without masked units.

        The values were computed from ``logits`` [B, U, C].
        """
        return per_row(values, self.head(logits).unit_mask(self.batch, logits))

    def task_rows(self, logits: Tensor, labels: Tensor | None = None) -> Tensor:
        """Return the task loss of each row [B], with the plan's label smoothing.

        ``labels`` replace those of the batch, in the same format.
        """
        labels = self.labels if labels is None else labels
        loss = self.head(logits).loss(logits, labels, smoothing=self.plan.smoothing)
        return self.per_row(loss, logits)

    def task(self, logits: Sequence[Tensor], *, name: str = "task", weight: float = 1.0) -> Term:
        """Return the mean task loss of K passes, ``1/K sum_k CE(z_k, y)``."""
        rows = [self.task_rows(item) for item in logits]
        mean = rows[0] if len(rows) == 1 else torch.stack(rows).mean(0)
        return Term(name, mean, weight, logits=tuple(logits))

    def divergence_rows(self, logits: Sequence[Tensor], kind: Divergence) -> Tensor:
        """Return the divergence ``sum_{l<k} D(P_l || P_k)`` of K passes for each row [B].

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
        """Log the fraction of a divergence that is due to dropout alone, every 50 steps.

        At 1 the perturbation has no effect, and the loss equals R-Drop's. ``unperturbed`` returns
        the divergence of each row from a second pass without perturbation.
        """
        if not self.measures:
            return
        with torch.no_grad():
            by_dropout = unperturbed().sum()
        fraction = by_dropout / term.rows.detach().sum().clamp(min=1e-12)
        self.notes["divergence/dropout_fraction"] = fraction

    def single_clean(self) -> tuple[Tensor, str]:
        """Return logits [B, U, C] of a single clean pass with their graph, and its dropout stream.

        If the clean pass has several sub-models, one more pass runs.
        """
        if len(self.clean.logits) == 1:
            return self.clean.logits[0], "clean"
        # A single pass cannot repeat the dropout masks of several sub-models.
        return self.logits("single", wrapped=False), "single"

    def average(self, rule: str) -> dict[str, Tensor]:
        """Return the weight average of the update rule named ``rule``, in the model's dtype."""
        model, kept = self.network.model, self.state[rule]["weights"]
        return {name: value.to(model.get_parameter(name).dtype) for name, value in kept.items()}


class CleanPass:
    """The pass over the unchanged batch.

    Attributes:
        logits: K tensors [B, U, C] with their graph; empty after the backward of the clean total.
        detached: The same logits without their graph, also available after the backward.
        task: Term of the task loss; None without labels.
        start: Zeros or noise [B, T, D] that was added to the embeddings, or None.
        recording: Embeddings and gradient norms recorded during the pass.
        watched: Name -> value that the plan's ``watch`` context yielded.
        carried: Functions called with all terms of the clean total before its backward. Each
            returns None or a scalar to add, with the value 0 and a gradient (see
            `forward.embedding_table`).
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
        self.detached = tuple(item.detach() for item in self.logits)
        self.task: Term | None = None
        if step.batch.labels is not None:
            weight = 1.0 if plan.task_weight is None else plan.task_weight
            self.task = step.task(self.logits, weight=weight)

    def recompute(
        self, recording: Recording | None = None, *, wrapped: bool = False
    ) -> tuple[Tensor, ...]:
        """Run the clean pass again with the same dropout; see `StepContext.passes`."""
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
        """Gradient of the task loss by the embeddings [B, T, D], up to a positive factor per row.

        After the backward of the clean total it costs nothing. Before it, an extra backward pass to
        the embeddings computes it (1F).
        """
        if self._gradient is None:
            if not self.logits or self.task is None or self.start is None:
                raise ValueError(
                    "The clean pass has no gradient of the embeddings. Set gradient=True in the "
                    "method's Plan, pass labels, and run backward on the clean total."
                )
            (self._gradient,) = torch.autograd.grad(
                self.task.rows.sum(), self.start, retain_graph=True
            )
        return self._gradient

    def take_gradient(self, gradient: Tensor) -> None:
        """Store the gradient that another computation has already obtained."""
        if self._gradient is None:
            self._gradient = gradient

    def release(self) -> None:
        """Keep the gradient from the backward of the clean total, and free the graph."""
        if self._gradient is None and self.start is not None:
            self._gradient = self.start.grad
        self.logits, self.task, self.carried = (), None, []
