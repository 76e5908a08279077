"""Run the losses of composed methods; each total gets its own backward."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from temper.errors import CompositionError, DataError
from temper.forward.plan import Plan, merge
from temper.forward.step import StepContext
from temper.lazy import Tensor
from temper.types import LossTerms, Term

if TYPE_CHECKING:
    from temper.methods.method import Method

Losses = Sequence[Term | None]
"""Loss terms of one total; None entries are skipped."""


def step_totals(methods: Sequence[Method], step: StepContext) -> Iterator[LossTerms]:
    """Plan a step and return its totals; run backward on each before asking for the next.

    The loss of a composition is ``L(A + B) = L_A + L_B`` minus the clean task loss, which both
    include. The first total is that of the clean pass, with the first terms of each method. Each
    method's further totals follow in order, so only one graph is in memory.

    Without methods it is plain fine-tuning. It sets ``step.plan``, whose ``all_totals`` is the
    number of totals.

    Raises:
        CompositionError: If the methods conflict, or two yield a term of the same name.
        DataError: If the batch has no labels and all losses need them.
    """
    plans = [(method, method.plan(step.now)) for method in methods]
    if step.batch.labels is None:
        if all(plan.needs_labels for _, plan in plans):
            names = " + ".join(method.name for method in methods) or "plain"
            raise DataError(
                f"The batch has no labels, and every loss of the method {names!r} needs them. Pass "
                "labels, or use a method that also trains without them (vat, jachess)."
            )
        plans = [(m, plan.without_losses() if plan.needs_labels else plan) for m, plan in plans]
    step.plan = merge([(method.name, plan) for method, plan in plans])
    return _totals(plans, step)


def _totals(plans: Sequence[tuple[Method, Plan]], step: StepContext) -> Iterator[LossTerms]:
    generators = [
        (method.name, plan, method.losses(step))
        for method, plan in plans
        if plan.clean or plan.totals
    ]
    owners: dict[str, str] = {}
    if step.plan.runs_clean:
        clean = step.clean
        first: list[Term | None] = [clean.task]
        for name, plan, generator in generators:
            if plan.clean:
                first += _owned(next(generator), name, owners)
        # Several methods may yield the task loss: count it once, and drop it at weight 0.
        kept = {id(t): t for t in first if t is not None and (t is not clean.task or t.weight)}
        yield _clean_total(step, list(kept.values()))
        clean.release()
    for name, _, generator in generators:
        for terms in generator:
            yield LossTerms(_owned(terms, name, owners), _taken(step))


def with_weight(*terms: Term) -> list[Term]:
    """Return the terms whose weight is not 0, for `Losses`."""
    return [term for term in terms if term.weight]


def _owned(terms: Losses, method: str, owners: dict[str, str]) -> list[Term]:
    """Return the terms without None; raise if another method yielded one of the same name."""
    kept = [term for term in terms if term is not None]
    for term in kept:
        owner = owners.setdefault(term.name, method)
        if owner != method and term.name != "task":
            raise CompositionError(
                f"The methods {owner!r} and {method!r} both have a loss named {term.name!r}. Leave "
                "one of them out."
            )
    return kept


def _clean_total(step: StepContext, terms: list[Term]) -> LossTerms:
    clean = step.clean
    # Only if the task loss is the sole term does this backward yield the gradient for an attack.
    if step.plan.gradient and [term.name for term in terms] != ["task"] and clean.task is not None:
        _ = clean.gradient
    carried = [value for make in clean.carried if (value := make(terms)) is not None]
    if clean.task is None or not terms:
        # Without terms, give all parameters a gradient of 0: DDP waits for gradients, and a run
        # on one process must take the same steps.
        carried.append(clean.logits[0].sum() * 0)
    total: Tensor | None = sum(carried[1:], carried[0]) if carried else None
    return LossTerms(terms, _taken(step), total)


def _taken(step: StepContext) -> dict[str, Tensor]:
    notes, step.notes = step.notes, {}
    return notes
