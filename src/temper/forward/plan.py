"""Plans: what each method of a composition asks of a step, and how plans merge."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

from temper.errors import CompositionError
from temper.forward.submodels import SubModels
from temper.models.network import Site

if TYPE_CHECKING:
    from temper.forward.step import StepContext


@dataclass(frozen=True)
class Plan:
    """What a method asks of one optimizer step before its losses run.

    The clean pass is the pass over the batch as it is. A composition runs it once, so it must be
    known beforehand how often and what it records. Its total always holds the task's loss.

    Args:
        clean: Whether the first terms that ``losses`` yields belong to the clean pass's total.
        totals: How many totals ``losses`` yields after that. Distributed training synchronizes
            gradients in the backward of the last total of a step.
        task_weight: Weight of the task's loss on the clean pass; None accepts any (1 alone).
        submodels: Dropout passes and rates of the clean pass. One pass at set rates sets those of
            all single passes.
        start: Draws what the clean pass adds to the embeddings [B, T, D], such as noise.
        site: Where the clean pass adds it, and where ``gradient`` is taken.
        gradient: Whether the gradient of the task's loss by the embeddings is needed.
        channel_norms: Whether its norms by channel at the dropout sites are needed too.
        smoothing: Fraction of each label that is spread over all classes, in every task loss.
        watch: Contexts in which the clean pass runs, by the name under which ``CleanPass.watched``
            keeps what they yield.
        needs_labels: Whether the method has no loss for a batch without labels.
        reads: Names of the update rules whose state the losses read.
        conflicts: What only one method of a composition may have: ``perturbation``, ``sub-models``,
            ``label smoothing``, ``smoothness``.
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
    reads: frozenset[str] = frozenset()
    conflicts: frozenset[str] = frozenset()

    @property
    def changes_clean_pass(self) -> bool:
        """Whether it changes the clean pass for the sake of the task's loss there."""
        noise = self.start is not None and not self.gradient
        return noise or (self.submodels is not None and self.submodels.passes > 1)

    def without_losses(self) -> Plan:
        """Return how the clean pass runs where the method's own losses are left out."""
        start = None if self.gradient else self.start
        return replace(self, clean=False, totals=0, gradient=False, start=start, watch={})


def plain(task_weight: float) -> Plan:
    """Return the plan of the task's loss alone, at a weight; 1 is plain fine-tuning itself."""
    return Plan(task_weight=None if task_weight == 1 else task_weight)


def merge(named: Sequence[tuple[str, Plan]]) -> Plan:
    """Merge the plans of a composition: each setting of the clean pass from the method that has it.

    Args:
        named: (method, plan), in order.

    Raises:
        CompositionError: If two methods conflict or weigh the task's loss differently, or one
            changes a clean pass that another leaves out; it names both.
    """
    for place, (later, second) in enumerate(named):
        for earlier, first in named[:place]:
            _check_pair(earlier, first, later, second)
    merged: dict[str, Any] = {}
    for each in fields(Plan):
        values = [getattr(plan, each.name) for _, plan in named]
        if each.name in ("clean", "gradient", "channel_norms"):
            merged[each.name] = any(values)
        elif each.name == "totals":
            merged[each.name] = sum(values)
        elif each.name == "watch":
            merged[each.name] = {name: make for value in values for name, make in value.items()}
        elif each.name in ("reads", "conflicts"):
            merged[each.name] = frozenset[str]().union(*values)
        elif each.name == "needs_labels":
            merged[each.name] = all(values)
        else:
            merged[each.name] = next((v for v in values if v != each.default), each.default)
    total = Plan(**merged)
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
            f"{one!r} and {other!r} both claim the {shared[0]} of the objective. Leave one of them "
            "out, or take only the other's update rule."
        )
    weights = (left.task_weight, right.task_weight)
    if None not in weights and weights[0] != weights[1]:
        raise CompositionError(
            f"The clean task's loss has weight {weights[0]:g} in {one!r} and {weights[1]:g} in "
            f"{other!r}. Set both alike (clean_weight), or leave one of them out."
        )
