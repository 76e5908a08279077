"""The stage on which an objective's parts act: one micro-batch, and its clean pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from temper.errors import DataError
from temper.forward.perturbations import relative_size
from temper.forward.submodels import SubModels
from temper.functional.losses import Divergence, pairwise_divergence
from temper.models.network import Network, Recording, Site
from temper.models.sites import DropoutPlan
from temper.seeding import Streams
from temper.types import Batch, LossTerms, Reduction, State, Step, Term


def labels_of(batch: Batch) -> Tensor:
    """Return the labels of a batch.

    Args:
        batch: Any batch.

    Raises:
        DataError: If it has none.
    """
    if batch.labels is None:
        raise DataError(
            f"The batch has no labels; it has {sorted(batch.inputs)}. Give them as 'labels' [B]."
        )
    return batch.labels


@dataclass(frozen=True)
class Coupling:
    """Hold passes together by a divergence: ``weight * sum_{l<k} D(P_l || P_k)``.

    Args:
        weight: Of the divergence; at 0 there is none.
        divergence: ``js`` or ``sym_kl``; of a regression the squared difference.
        reduction: Over the rows of the optimiser step.
    """

    weight: float = 0.0
    divergence: Divergence = "sym_kl"
    reduction: Reduction = "sum"

    def rows(self, logits: Sequence[Tensor], batch: Batch) -> Tensor:
        """Return the divergence of each row [B], without the weight.

        Args:
            logits: K tensors [B, C].
            batch: Float labels tell a regression; where there are none, a single output does.
        """
        regression = logits[0].shape[-1] == 1
        if batch.labels is not None:
            regression = batch.labels.is_floating_point()
        return pairwise_divergence(logits, divergence=self.divergence, regression=regression)

    def term(self, logits: Sequence[Tensor], batch: Batch, *, name: str = "divergence") -> Term:
        """Return the weighted divergence as a term; arguments as ``rows``, and its name in logs."""
        rows = self.rows(logits, batch)
        return Term(name, rows, self.weight, self.reduction, logits=tuple(logits))


UNCOUPLED = Coupling()
MEASURE_EVERY = 50
"""Steps between two measurements that cost a pass of their own; the first step is one of them."""


@dataclass
class CleanPass:
    """The pass over the batch as it is, as the parts that stand on it see it.

    Args:
        logits: K tensors [B, C], with their graph until the stage's own backward has run.
        task: The task's term on them; None where the batch has no labels.
        start: Leaf that was added to the embeddings [B, T, D] (zeros, or small noise); None where
            no part asks for the gradient.
        recording: What was noted on the way.
        site: Where ``start`` was added.
        again: Runs the pass once more under the same dropout, outside any distributed wrapper.
        terms: The terms of the clean total so far, the clean stage's own first.

    ``answers`` are the logits as constants, which stay when the graph is gone.
    """

    logits: tuple[Tensor, ...]
    task: Term | None
    start: Tensor | None
    recording: Recording
    site: Site
    again: Callable[[], tuple[Tensor, ...]]
    terms: list[Term]
    answers: tuple[Tensor, ...] = field(init=False)
    _gradient: Tensor | None = None

    def __post_init__(self) -> None:
        """Keep the answers."""
        self.answers = tuple(each.detach() for each in self.logits)

    @property
    def embeddings(self) -> Tensor:
        """The unperturbed embeddings [B, T, D] at the perturbed place, detached."""
        assert self.recording.embeddings is not None
        assert self.start is not None
        return self.recording.embeddings[: len(self.start)]

    @property
    def gradient(self) -> Tensor:
        """The gradient of the task's loss by the embeddings [B, T, D], up to a factor a row."""
        if self._gradient is None:
            raise ValueError("Backward must run on the clean total before the attack is asked for.")
        return self._gradient

    def differentiate(self) -> None:
        """Take the gradient from the graph, which stays alive (one backward to the embeddings).

        Nothing is done where no part asks for it, or it was taken before.
        """
        start, task = self.start, self.task
        if self._gradient is None and start is not None and start.requires_grad and task:
            (self._gradient,) = torch.autograd.grad(task.rows.sum(), start, retain_graph=True)

    def take(self, gradient: Tensor) -> None:
        """Keep a gradient of the task's loss by the word embeddings that another had to take."""
        if self._gradient is None and self.start is not None:
            self._gradient = gradient

    def release(self) -> None:
        """Take the gradient that the stage's own backward left, and let go of the graph."""
        if self._gradient is None and self.start is not None:
            self._gradient = self.start.grad
        self.logits, self.task, self.terms = (), None, []


@dataclass
class Stage:
    """What a part of an objective acts on.

    Args:
        network: Gives logits under perturbations and dropout plans.
        batch: One micro-batch.
        state: The update rule's state, by name of the rule.
        step: Where training stands.
        rng: Streams of this micro-batch.
        smoothing: Share of each label that is spread over all classes.
        rates: Dropout rates that every single pass takes; None leaves the model's own.
        clean: The clean pass, once it was run; an objective without one has none.
        seen: What parts kept of the clean pass as it ran, by part.
    """

    network: Network
    batch: Batch
    state: State
    step: Step
    rng: Streams
    smoothing: float = 0.0
    rates: SubModels | None = None
    clean: CleanPass = field(init=False)
    seen: dict[Part, Any] = field(default_factory=dict)

    def of(self, places: Tensor) -> Stage:
        """Return the stage of some of its rows, without a clean pass.

        Args:
            places: Their positions, [b].
        """
        batch = self.batch.take(places)
        return Stage(
            self.network, batch, self.state, self.step, self.rng, self.smoothing, self.rates
        )

    @property
    def measuring(self) -> bool:
        """Tell whether diagnostics that cost a pass are due."""
        return self.step.number % MEASURE_EVERY == 0 and self.rng.micro == 0

    def task_term(
        self, logits: Sequence[Tensor], *, name: str = "task", weight: float = 1.0
    ) -> Term:
        """Average the task's loss over sub-models: ``1/K sum_k CE(z_k, y)``.

        Args:
            logits: K tensors [B, C].
            name: Name in logs.
            weight: Weight in the total.

        Returns:
            A term reduced by the mean.

        Raises:
            DataError: If the batch has no labels.
        """
        labels = labels_of(self.batch)
        loss = partial(self.network.task_loss, labels=labels, smoothing=self.smoothing)
        rows = [loss(each) for each in logits]
        mean = rows[0] if len(rows) == 1 else torch.stack(rows).mean(0)
        return Term(name, mean, weight, logits=tuple(logits))

    def size_of(self, delta: Tensor, embeddings: Tensor | None) -> dict[str, Tensor]:
        """Return the diagnostics of a perturbation [B, T, D]; see `relative_size`."""
        assert embeddings is not None
        size = relative_size(delta, embeddings, self.batch, self.network)
        return {"attack/relative_size": size}

    def dropout_share(self, term: Term, again: Callable[[], Tensor]) -> dict[str, Tensor]:
        """Return which share of a divergence dropout alone explains (one pass, no graph).

        Where it is 1, the objective is R-Drop's.

        Args:
            term: The divergence.
            again: Gives its rows where the second pass is unperturbed.
        """
        with torch.no_grad():
            by_dropout = again().sum()
        share = by_dropout / term.rows.detach().sum().clamp(min=1e-12)
        return {"divergence/dropout_share": share}

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
        """Run one pass at the rates that hold for this objective.

        Args:
            stream: Names the pass; two passes of one name drop the same units.
            delta: Perturbation [B, T, D].
            site: Where it is added.
            recording: What to note.
            wrapped: Whether to go through the distributed wrapper; off for a pass whose backward
                is ``torch.autograd.grad``.
            detached: Whether the embeddings under ``delta`` are cut off from the graph.
            weights: Other values for some parameters, by name.

        Returns:
            [B, C].
        """
        plan: DropoutPlan | None = None
        if self.rates is not None:
            self.network.probe(self.batch)
            plan = self.rates.plan(self.network, None, seed=self.rng.local("sites", stream))
        return self.network.logits(
            self.batch,
            delta=delta,
            site=site,
            dropout=plan,
            recording=recording,
            seed=self.rng.local("dropout", stream),
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
        """Run K sub-models as one forward of K*B rows.

        Args:
            submodels: How many, and at which rates they drop.
            stream: Names the passes; those of one name drop the same units.
            delta: The same perturbation for every pass [B, T, D].
            site: Where delta is added.
            followed: Of the clean pass, for rates that follow its gradient.
            recording: What to note of these passes.
            wrapped: Whether to go through the distributed wrapper.

        Returns:
            K tensors of logits [B, C].
        """
        network, count = self.network, submodels.passes
        network.probe(self.batch)
        key = () if stream == "passes" else (stream,)
        logits = network.logits(
            self.batch.repeat(count),
            delta=None if delta is None else delta.repeat(count, 1, 1),
            site=site,
            dropout=submodels.plan(network, followed, seed=self.rng.local("sites", *key)),
            recording=recording,
            seed=self.rng.local("dropout", stream),
            wrapped=wrapped,
        )
        return logits.chunk(count)


class Part:
    """Losses that an objective adds to its clean stage's.

    Attributes:
        slots: What only one part of an objective may claim: ``perturbation``, ``sub-models``.
        terms: Names of the terms that it yields.
        joint: Whether its terms read the clean logits' graph and stand in the clean total; else it
            yields totals of its own once the clean backward has run.
        clean: Whether it needs the clean pass at all.
        last: Whether it comes after the other parts: the last to watch the clean pass, and to
            yield terms, since it reads theirs (``stage.clean.terms``).
        wants_gradient: Whether it reads the clean loss's gradient by the embeddings.
        wants_norms: Whether the clean pass must record gradient norms at the dropout sites.
        needs: Names of the update rules whose state it reads.
        teachers: Folders of the classifiers whose answers (`Batch.teacher`) it learns from.
        reads_labels: Whether it has nothing to say of a batch without labels.
        wants_unlabelled: Whether training must bring it rows without labels too.
        needs_classes: What it says of a regression that it cannot be minimised on; empty where it
            can.
        site: Where it perturbs the embeddings.
        keeps_weights: Whether it differentiates a graph twice, or by the weights, so that those of
            a sharded model must stay gathered through the passes.
    """

    slots: frozenset[str] = frozenset()
    terms: tuple[str, ...] = ()
    joint: bool = False
    clean: bool = True
    last: bool = False
    wants_gradient: bool = False
    wants_norms: bool = False
    needs: frozenset[str] = frozenset()
    teachers: tuple[str, ...] = ()
    reads_labels: bool = True
    wants_unlabelled: bool = False
    needs_classes: str = ""
    site: Site = "word"
    keeps_weights: bool = False

    def rests(self, step: Step) -> bool:
        """Tell whether nothing is run for it in a step."""
        return False

    def watching(self, stage: Stage) -> AbstractContextManager[None]:
        """Watch the clean pass, which runs in this context; what it saw is for ``stage.seen``."""
        return nullcontext()

    def start(self, stage: Stage) -> Tensor | None:
        """Return what the clean pass adds to the embeddings [B, T, D]; None for zeros."""
        return None

    def passes(self, step: Step) -> int:
        """Return how many totals of its own it yields; a joint part's count for nothing."""
        return 1

    def losses(self, stage: Stage) -> Iterator[LossTerms]:
        """Yield its terms, one total after the other; a joint part yields exactly one."""
        raise NotImplementedError
