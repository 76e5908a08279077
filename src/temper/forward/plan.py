"""Plans: what each method needs from a step, and how plans merge in a composition."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from temper.errors import CompositionError
from temper.forward.submodels import SubModels
from temper.lazy import Tensor

if TYPE_CHECKING:
    from temper.forward.step import StepContext
    from temper.models.network import Site


@dataclass(frozen=True)
class Plan:
    """Requirements of a method for one optimizer step, fixed before its losses run.

    The clean pass is the pass over the unchanged batch. All methods of a composition share it, so
    its settings must be known in advance. A *total* is a sum of loss terms on which backward runs
    once. The clean pass's total includes the task loss, unless ``task_weight`` is 0.

    Args:
        clean: Whether the first terms that ``losses`` yields belong to the clean pass's total.
        totals: How many totals ``losses`` yields after that. Distributed training synchronizes
            gradients in the backward of the last total of a step.
        task_weight: Weight of the task loss on the clean pass. None accepts the weight of another
            method, by default 1.
        submodels: Number and dropout rates of the clean passes. If it is one pass, its rates apply
            to all single passes of the step.
        start: Function that draws a tensor [B, T, D], such as noise, which the clean pass adds to
            the embeddings.
        site: Where ``start`` is added and ``gradient`` is taken.
        gradient: Whether the method reads the gradient of the task loss by the embeddings.
        channel_norms: Whether it also reads the gradient norms per channel at the dropout sites.
        smoothing: Fraction of each label that is spread over all classes, in every task loss.
        watch: Name -> context manager in which the clean pass runs; ``CleanPass.watched`` has the
            value that it yields.
        needs_labels: Whether all losses of the method need labels.
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
        """Whether the method trains on a clean pass with noise or with several sub-models."""
        noise = self.start is not None and not self.gradient
        return noise or (self.submodels is not None and self.submodels.passes > 1)

    @property
    def runs_clean(self) -> bool:
        return self.clean or self.task_weight != 0

    @property
    def all_totals(self) -> int:
        """Number of totals of the step, including that of the clean pass."""
        return self.runs_clean + self.totals

    def without_losses(self) -> Plan:
        """Return the plan for a batch on which the method has no losses (no labels)."""
        start = None if self.gradient else self.start
        return replace(self, clean=False, totals=0, gradient=False, start=start, watch={})


def plain(task_weight: float) -> Plan:
    return Plan(task_weight=None if task_weight == 1 else task_weight)


def merge(named: Sequence[tuple[str, Plan]]) -> Plan:
    """Merge the plans of (name, plan) pairs; each setting comes from the method that sets it.

    Raises:
        CompositionError: If two methods conflict or give the task loss different weights, or if one
            changes the clean pass and no method trains on it. The message names both.
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
            f"{changing[0]!r} trains on a changed clean pass, and {silent!r} switches its loss "
            f"off. Set clean_weight=1 in {silent!r}, or leave one of them out."
        )
    return total


def _check_pair(one: str, left: Plan, other: str, right: Plan) -> None:
    if shared := sorted(left.conflicts & right.conflicts):
        raise CompositionError(
            f"{one!r} and {other!r} both use the {shared[0]} in their losses, and only one "
            "method may. Leave one of them out, or set the weights of its losses to 0."
        )
    weights = (left.task_weight, right.task_weight)
    if None not in weights and weights[0] != weights[1]:
        raise CompositionError(
            f"The clean loss has clean_weight={weights[0]:g} in {one!r} and {weights[1]:g} in "
            f"{other!r}. Set the same clean_weight in both, or leave one of them out."
        )
