"""Objectives: what a step minimises, total after total, so that one graph is alive at a time.

An objective is a clean stage and parts that stand on it. Objectives add: their clean stages merge
setting by setting, so that the clean pass is run once, and their parts stand side by side. What two
of them claim, or set differently, is an error that names both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any, Protocol

from torch import Tensor

from temper.errors import CompositionError
from temper.forward.perturbations import Noise
from temper.forward.stage import UNCOUPLED, CleanPass, Coupling, Part, Stage
from temper.forward.submodels import SubModels
from temper.functional.losses import SMOOTHING_NEEDS_CLASSES
from temper.models.network import Network, Recording, Site
from temper.seeding import Streams
from temper.types import Batch, LossTerms, State, Step


class Objective(Protocol):
    """What is minimised: yields totals, and resumes after the caller has run backward on each."""

    def passes(self, step: Step) -> int:
        """Return how many totals ``losses`` yields; gradients are synchronised on the last.

        Args:
            step: Where training stands.
        """

    def losses(
        self, network: Network, batch: Batch, state: State, step: Step, rng: Streams
    ) -> Iterator[LossTerms]:
        """Yield loss terms; the caller runs backward on each total before asking for the next.

        Args:
            network: Gives logits under perturbations and dropout plans.
            batch: One micro-batch.
            state: The update rule's state, by name of the rule.
            step: Where training stands, and what the losses are divided by.
            rng: Streams of this micro-batch.

        Yields:
            The terms of one total; as many totals as ``passes`` says.
        """


@dataclass(frozen=True)
class Clean:
    """The pass over the batch as it is: plain fine-tuning by default.

    ``weight * 1/K sum_k CE(z_k, y) + lambda * sum_{l<k} D(P_l || P_k)``.

    Args:
        weight: Of the task's loss; None takes 1, or what an objective that is added says. At
            weight 0 the pass is run only for parts that need it.
        submodels: Passes and dropout rates; None is one pass at the model's own rates. One pass at
            set rates sets those of all single passes.
        coupling: The passes' divergence.
        noise: Noise on the embeddings of this pass.
        smoothing: Share of each label that is spread over all classes, in every task loss.
    """

    weight: float | None = None
    submodels: SubModels | None = None
    coupling: Coupling = UNCOUPLED
    noise: Noise | None = None
    smoothing: float = 0.0

    @property
    def slots(self) -> frozenset[str]:
        """What only one of several objectives may claim."""
        claims = {
            "sub-models": self.submodels is not None,
            "perturbation": self.noise is not None,
            "label smoothing": bool(self.smoothing),
        }
        return frozenset(name for name, claimed in claims.items() if claimed)

    @property
    def needs_classes(self) -> tuple[str, ...]:
        """What it says of a regression, nothing where it can be minimised on one."""
        return (SMOOTHING_NEEDS_CLASSES,) if self.smoothing else ()

    def passes(self, step: Step) -> int:
        """Return 1."""
        return 1

    def losses(
        self, network: Network, batch: Batch, state: State, step: Step, rng: Streams
    ) -> Iterator[LossTerms]:
        """Yield the terms in one total."""
        yield from Joint(self).losses(network, batch, state, step, rng)


@dataclass(frozen=True)
class Joint:
    """A clean stage and the parts that stand on it.

    Args:
        clean: The pass over the batch as it is.
        parts: What else is minimised.
    """

    clean: Clean = field(default_factory=Clean)
    parts: tuple[Part, ...] = ()

    @property
    def slots(self) -> frozenset[str]:
        """What only one of several objectives may claim."""
        return self.clean.slots.union(*(part.slots for part in self.parts))

    @property
    def needs(self) -> frozenset[str]:
        """Names of the update rules whose state the parts read."""
        return frozenset[str]().union(*(part.needs for part in self.parts))

    @property
    def teachers(self) -> tuple[str, ...]:
        """Folders of the classifiers whose answers the parts learn from."""
        return tuple(folder for part in self.parts for folder in part.teachers)

    @property
    def wants_unlabelled(self) -> bool:
        """Whether a part is made for rows without labels."""
        return any(part.wants_unlabelled for part in self.parts)

    @property
    def keeps_weights(self) -> bool:
        """Whether sharded weights must stay gathered through the passes."""
        return any(part.keeps_weights for part in self.parts)

    @property
    def needs_classes(self) -> tuple[str, ...]:
        """What it says of a regression, nothing where it can be minimised on one."""
        own = (part.needs_classes for part in self.parts)
        return (*self.clean.needs_classes, *filter(None, own))

    def without_labels(self) -> Joint | None:
        """Return what there is to minimise on rows without labels; None where that is nothing."""
        silent = tuple(part for part in self.parts if not part.reads_labels)
        return replace(self, parts=silent) if silent else None

    @property
    def _joint(self) -> list[Part]:
        return [part for part in self.parts if part.joint]

    @property
    def _apart(self) -> list[Part]:
        return [part for part in self.parts if not part.joint]

    @property
    def _has_clean(self) -> bool:
        weighed = self.clean.weight != 0 or not self.parts
        return weighed or any(part.clean for part in self.parts)

    def passes(self, step: Step) -> int:
        """Return one for the clean stage, and those of the parts that yield totals of their own."""
        due = self._due(step)
        return int(due._has_clean) + sum(part.passes(step) for part in due._apart)

    def _due(self, step: Step) -> Joint:
        """Return the objective without the parts that rest."""
        parts = tuple(part for part in self.parts if not part.rests(step))
        return self if parts == self.parts else replace(self, parts=parts)

    def losses(
        self, network: Network, batch: Batch, state: State, step: Step, rng: Streams
    ) -> Iterator[LossTerms]:
        """Yield the clean terms with those of the joint parts, then the other parts' totals."""
        submodels = self.clean.submodels
        single = submodels if submodels is not None and submodels.passes == 1 else None
        stage = Stage(network, batch, state, step, rng, self.clean.smoothing, single)
        due = self._due(step)
        if due._has_clean:
            yield due._clean_total(stage)
            stage.clean.release()
        for part in due._apart:
            yield from part.losses(stage)

    def _clean_total(self, stage: Stage) -> LossTerms:
        self._run_clean(stage)
        clean, terms = stage.clean, stage.clean.terms
        notes: dict[str, Tensor] = {}
        if self.clean.noise is not None and clean.start is not None:
            notes |= stage.size_of(clean.start, clean.embeddings)
        carried: list[Tensor] = []
        for part in sorted(self._joint, key=lambda part: part.last):
            if part.wants_gradient:
                clean.differentiate()
            (found,) = part.losses(stage)
            terms.extend(found.terms)
            notes.update(found.diagnostics)
            carried += [] if found.carried is None else [found.carried]
        # A backward of the task's loss alone leaves the gradient that the attack wants for nothing.
        wanted = any(part.wants_gradient for part in self.parts)
        if wanted and [term.name for term in terms] != ["task"]:
            clean.differentiate()
        if clean.task is None or not terms:
            # What no term reaches has a gradient of 0 and not none: distributed training waits for
            # one, and one process must step as several do.
            carried.append(clean.logits[0].sum() * 0)
        return LossTerms.of(terms, notes, sum(carried[1:], carried[0]) if carried else None)

    def _run_clean(self, stage: Stage) -> None:
        """Run the clean pass and make its own terms."""
        clean = self.clean
        weight = 1.0 if clean.weight is None else clean.weight
        start, site = self._start(stage)

        def again(
            recording: Recording | None = None, *, wrapped: bool = False
        ) -> tuple[Tensor, ...]:
            if clean.submodels is None or clean.submodels.passes == 1:
                single = partial(stage.logits, "clean", delta=start, site=site)
                return (single(recording=recording, wrapped=wrapped),)
            several = partial(stage.passes, clean.submodels, stream="clean", delta=start)
            return several(site=site, recording=recording, wrapped=wrapped)

        wanted = any(part.wants_gradient for part in self.parts)
        norms = any(part.wants_norms for part in self.parts)
        recording = Recording(channel_norms=wanted and norms)
        with ExitStack() as watching:
            for part in sorted(self.parts, key=lambda part: part.last):
                watching.enter_context(part.watching(stage))
            logits = again(None if start is None else recording, wrapped=True)
        unlabelled = stage.batch.labels is None and bool(self._joint)
        task = None if unlabelled else stage.task_term(logits, weight=weight)
        terms = [task] if task is not None and weight else []
        if clean.coupling.weight:
            terms.append(clean.coupling.term(logits, stage.batch))
        stage.clean = CleanPass(logits, task, start, recording, site, again, terms)

    def _start(self, stage: Stage) -> tuple[Tensor | None, Site]:
        """Return what the clean pass adds to the embeddings, and where."""
        wanting = next((part for part in self.parts if part.wants_gradient), None)
        if wanting is not None:
            return wanting.start(stage), wanting.site
        noise = self.clean.noise
        if noise is None:
            return None, "word"
        seed = stage.rng.local("noise", "clean")
        return noise.draw(stage.network, stage.batch, seed=seed), noise.site


def plain(weight: float) -> Clean:
    """Return the clean loss alone, at a weight; 1 is plain fine-tuning itself.

    Args:
        weight: Of the task's loss.
    """
    return Clean() if weight == 1 else Clean(weight=weight)


def add(named: Sequence[tuple[str, Objective]]) -> Objective:
    """Add objectives: the clean stages merge, the parts stand side by side.

    ``L(A + B) = L_A + L_B`` less the clean task's loss, which both have and which counts once.

    Args:
        named: (method, objective), at least one.

    Raises:
        CompositionError: If two claim one slot, set one term differently, or one is of a kind that
            cannot be added; it names both methods.
    """
    if len(named) == 1:
        return named[0][1]
    joints = [(name, _as_joint(name, objective)) for name, objective in named]
    for place, (later, joint) in enumerate(joints):
        for earlier, other in joints[:place]:
            _check_pair((earlier, other), (later, joint))
    merged: dict[str, Any] = {}
    for _, joint in joints:
        for each in fields(Clean):
            value = getattr(joint.clean, each.name)
            if value != each.default:
                merged[each.name] = value
    parts = tuple(part for _, joint in joints for part in joint.parts)
    total = Joint(Clean(**merged), parts)
    inert = [
        name
        for name, joint in joints
        if joint.clean.noise or (joint.clean.submodels and joint.clean.submodels.passes > 1)
    ]
    if inert and not total._has_clean:
        silent = next(name for name, joint in joints if joint.clean.weight == 0)
        raise CompositionError(
            f"{inert[0]!r} plans the clean pass, and {silent!r} runs none. Give {silent!r} a clean "
            "loss (clean_weight=1), or leave one of them out."
        )
    return total if parts else total.clean


def _as_joint(name: str, objective: Objective) -> Joint:
    if isinstance(objective, Joint):
        return objective
    if type(objective) is Clean:
        return Joint(objective)
    raise CompositionError(
        f"The objective of {name!r} is a {type(objective).__name__}, which cannot be added to "
        "another. Build it as a Joint of a clean stage and parts."
    )


def _check_pair(first: tuple[str, Joint], second: tuple[str, Joint]) -> None:
    (one, left), (other, right) = first, second
    shared = sorted(left.slots & right.slots)
    if shared:
        raise CompositionError(
            f"{one!r} and {other!r} both claim the {shared[0]} of the objective. Leave one of them "
            "out, or take only the other's update rule."
        )
    weights = (left.clean.weight, right.clean.weight)
    if None not in weights and weights[0] != weights[1]:
        raise CompositionError(
            f"The clean task's loss has weight {weights[0]:g} in {one!r} and {weights[1]:g} in "
            f"{other!r}. Set both alike (clean_weight), or leave one of them out."
        )
    named = [term for part in left.parts for term in part.terms]
    named += ["divergence"] if left.clean.coupling.weight else []
    theirs = [term for part in right.parts for term in part.terms]
    theirs += ["divergence"] if right.clean.coupling.weight else []
    twice = sorted(set(named) & set(theirs))
    if twice:
        raise CompositionError(
            f"{one!r} and {other!r} both yield a term {twice[0]!r}. Leave one of them out."
        )
