"""Keep a smoothness penalty from training the embedding table."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from temper.forward.step import StepContext
from temper.lazy import Tensor, torch
from temper.types import Term

if TYPE_CHECKING:
    from temper.models.states import Trace


def restore_table_gradient(step: StepContext, trace: Trace, *, penalty: Collection[str]) -> None:
    """Give the embedding table the gradient of all losses except the smoothness penalty.

    The embedding table must not receive the penalty's gradient, so the traced clean pass is
    detached from it. The gradient of all other terms is computed separately (1F). It reaches the
    table through a scalar with the value 0 and that gradient, which is added to the total.

    ``penalty`` has the names of the penalty's terms.
    """
    # If the traced embeddings are a leaf, the embedding table is not trained.
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
        # Compute the task's gradient for an attack first: later backwards through this graph
        # would overwrite what the dropout sites record. At the word embeddings, reuse it below.
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
        for (embed_again, _), item in zip(trace.others, further, strict=True):
            words = embed_again()
            owed = owed + ((words - words.detach()) * item).sum()
        return owed

    clean.carried.append(carried)
