"""Consistency: the divergence of a perturbed pass from the clean one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from temper.forward.step import StepContext
from temper.functional.losses import Divergence
from temper.lazy import torch
from temper.models.passes import Recording
from temper.types import Reduction, Term

if TYPE_CHECKING:
    from torch import Tensor

    from temper.models.network import Site


def perturbed_pass(
    step: StepContext, delta: Tensor, *, site: Site, same_dropout: bool, detached: bool
) -> Tensor:
    """Run the pass that `consistency` compares with the clean one, and log the size of delta.

    ``same_dropout`` drops the units that the clean pass drops; ``detached`` detaches the embeddings
    under ``delta`` [B, T, D] from the graph. The result is [B, U, C].
    """
    recording = Recording()
    logits = step.logits(
        "clean" if same_dropout else "perturbed",
        delta=delta,
        site=site,
        recording=recording,
        # The clean pass went through the distributed wrapper, which waits for one forward only.
        wrapped=False,
        detached=detached,
    )
    step.note_size(delta, recording.embeddings)
    return logits


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
    that is due only to dropout is logged.

    ``perturbed`` and ``same_dropout`` are as in `perturbed_pass`.
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
        step.note_dropout_fraction(term, unperturbed)
    return term
