"""Consistency: the divergence of a perturbed pass from the clean one."""

from __future__ import annotations

import torch
from torch import Tensor

from temper.forward.step import StepContext
from temper.functional.losses import Divergence
from temper.types import Reduction, Term


def consistency(
    step: StepContext,
    perturbed: Tensor,
    kind: Divergence,
    reduction: Reduction,
    *,
    weight: float,
    same_dropout: bool,
) -> Term:
    """Return the divergence of a perturbed pass from the clean one, with gradients through both.

    If the clean pass has several sub-models, it is the mean over them. Every 50 steps the fraction
    that is due to dropout alone is logged.

    Args:
        step: The micro-batch.
        perturbed: Logits [B, U, C] of the stream ``perturbed``, or ``clean`` with ``same_dropout``.
        kind: ``js`` or ``sym_kl``.
        reduction: Over the rows of the optimizer step.
        weight: Weight in the total.
        same_dropout: Whether both passes drop the same units.
    """
    clean = step.clean

    def rows(other: Tensor) -> Tensor:
        pairs = [step.divergence_rows((logits, other), kind) for logits in clean.logits]
        return pairs[0] if len(pairs) == 1 else torch.stack(pairs).mean(0)

    def unperturbed() -> Tensor:
        start = None if clean.start is None else clean.start.detach()
        return rows(step.logits("perturbed", delta=start, site=clean.site, wrapped=False))

    logits = (*clean.logits, perturbed)
    term = Term("consistency", rows(perturbed), weight, reduction, logits=logits)
    if weight and not same_dropout:
        step.note_dropout_share(term, unperturbed)
    return term
