"""The embedding table under a smoothness penalty, whose gradient it must not receive."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from temper.forward.step import StepContext
from temper.lazy import torch
from temper.types import Term

if TYPE_CHECKING:
    from torch import Tensor

    from temper.models.states import Trace


def past_table(step: StepContext, trace: Trace, *, penalty: Collection[str]) -> None:
    """Give the embedding table the gradient of all terms of the loss except the penalty.

    The trace, and the clean pass with it, is detached from the table, which must not receive the
    penalty's gradient. The other terms' gradient of the table is computed once (1F) and added to
    the total as a scalar that is 0 and has that gradient.

    ``penalty`` has the names of the penalty's own terms.
    """
    # A leaf root means that the embedding table is not trained.
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
        # An attack reads the task's gradient. It is taken before other gradients go through the
        # graph, because the dropout sites would record those. At the words it is needed here too.
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
        for (embed_again, _), each in zip(trace.others, further, strict=True):
            words = embed_again()
            owed = owed + ((words - words.detach()) * each).sum()
        return owed

    clean.carried.append(carried)
