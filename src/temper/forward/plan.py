"""Plans: the requirements of each method for a step, and how they merge in a composition."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from temper.errors import CompositionError
from temper.forward.submodels import SubModels

if TYPE_CHECKING:
    from torch import Tensor

    from temper.forward.step import StepContext
    from temper.models.network import Site


@dataclass(frozen=True)
class Plan:
    """Requirements of a method for one optimizer step, fixed before its losses run.

    The clean pass is the pass over the unchanged batch. All methods of a composition share one
    clean pass, so its settings must be known in advance. Its total always includes the task loss.

    Args:
        clean: Whether the first terms that ``losses`` yields belong to the clean pass's total.
        totals: How many totals ``losses`` yields after that. Distributed training synchronizes
            gradients in the backward of the last total of a step.
        task_weight: Weight of the task loss on the clean pass; None accepts any weight (default 1).
        submodels: Number and dropout rates of the clean passes. The rates of a single pass apply
            to all single passes of the step.
        start: Draws the tensor that the clean pass adds to the embeddings [B, T, D], such as noise.
        site: Where the clean pass adds it, and where ``gradient`` is taken.
        gradient: Whether the gradient of the task loss with respect to the embeddings is needed.
        channel_norms: Whether the norms per channel at the dropout sites are needed too.
        smoothing: Fraction of each label that is spread over all classes, in every task loss.
        watch: Contexts in which the clean pass runs. ``CleanPass.watched`` keeps the values that
            they yield under the same names.
        needs_labels: Whether the method has no loss for a batch without labels.
        conflicts: Resources that only one method of a composition may use: ``perturbation``,
            ``sub-models``, ``label smoothing``, ``smoothness``.
    """

    clean: bool = False
    totals: int = 0
    task_weight: float | None = None
    submodels: SubModels | None = None
    start: Callable[[StepContext], Tensor] | None = None
    site: Site = "word"
    gradient: bool = False
    channel_norms: bool = False
    smoothing: float = 0.0
    watch: Mapping[str, Callable[[StepContext], AbstractContextManager[Any]]] = field(
        default_factory=dict
    )
    needs_labels: bool = True
    conflicts: frozenset[str] = frozenset()

    @property
    def changes_clean_pass(self) -> bool:
        """Whether the method changes the clean pass to train on it, not only to attack it."""
        noise = self.start is not None and not self.gradient
        return noise or (self.submodels is not None and self.submodels.passes > 1)

    @property
    def runs_clean(self) -> bool:
        return self.clean or self.task_weight != 0

    @property
    def all_totals(self) -> int:
        """Number of totals of the step, with the one of the clean pass."""
        return self.runs_clean + self.totals

    def without_losses(self) -> Plan:
        """Return the plan of the clean pass without the losses of the method."""
        start = None if self.gradient else self.start
        return replace(self, clean=False, totals=0, gradient=False, start=start, watch={})


def plain(task_weight: float) -> Plan:
    return Plan(task_weight=None if task_weight == 1 else task_weight)


def merge(named: Sequence[tuple[str, Plan]]) -> Plan:
    """Merge the plans of the named methods; each setting comes from the method that sets it.

    Raises:
        CompositionError: If two methods conflict or give the task loss different weights, or one
            changes a clean pass that another omits; it names both.
    """
    for index, (later, second) in enumerate(named):
        for earlier, first in named[:index]:
            _check_pair(earlier, first, later, second)
    plans, default = [plan for _, plan in named], Plan()

    def only(setting: str) -> Any:
        unset = getattr(default, setting)
        return next((v for plan in plans if (v := getattr(plan, setting)) != unset), unset)

    total = Plan(
        clean=any(plan.clean for plan in plans),
        totals=sum(plan.totals for plan in plans),
        task_weight=only("task_weight"),
        submodels=only("submodels"),
        start=only("start"),
        site=only("site"),
        gradient=any(plan.gradient for plan in plans),
        channel_norms=any(plan.channel_norms for plan in plans),
        smoothing=only("smoothing"),
        watch={name: make for plan in plans for name, make in plan.watch.items()},
        needs_labels=all(plan.needs_labels for plan in plans),
        conflicts=frozenset[str]().union(*(plan.conflicts for plan in plans)),
    )
    changing = [name for name, plan in named if plan.changes_clean_pass]
    used = any(plan.clean for name, plan in named if name not in changing)
    if changing and total.task_weight == 0 and not used:
        silent = next(name for name, plan in named if plan.task_weight == 0)
        raise CompositionError(
            f"{changing[0]!r} changes the clean pass, and {silent!r} runs none. Give {silent!r} a "
            "clean loss (clean_weight=1), or leave one of them out."
        )
    return total


def _check_pair(one: str, left: Plan, other: str, right: Plan) -> None:
    if shared := sorted(left.conflicts & right.conflicts):
        raise CompositionError(
            f"{one!r} and {other!r} both use the {shared[0]} of the losses, so they cannot be "
            "combined. Leave one of them out, or set the weights of its losses to 0."
        )
    weights = (left.task_weight, right.task_weight)
    if None not in weights and weights[0] != weights[1]:
        raise CompositionError(
            f"The clean task's loss has weight {weights[0]:g} in {one!r} and {weights[1]:g} in "
            f"{other!r}. Set the same clean_weight in both, or leave one of them out."
        )
