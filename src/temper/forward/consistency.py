"""The consistency loss: divergence of a perturbed pass from the clean pass."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from temper.forward.step import StepContext
from temper.functional.losses import Divergence
from temper.lazy import Tensor, torch
from temper.models.passes import Recording
from temper.types import Reduction, Term

if TYPE_CHECKING:
    from temper.models.network import Site


class ConsistencySettings(Protocol):
    """The settings that a method with a consistency loss has."""

    @property
    def divergence(self) -> Divergence: ...
    @property
    def reduction(self) -> Reduction: ...
    @property
    def site(self) -> Site: ...
    @property
    def same_dropout(self) -> bool: ...
    @property
    def detached(self) -> bool: ...


def consistency(
    settings: ConsistencySettings, step: StepContext, delta: Tensor, *, weight: float
) -> tuple[Tensor, Term]:
    """Run a perturbed pass; return its logits and its divergence from the clean pass.

    The gradient flows through both passes. If the clean pass has several sub-models, the divergence
    is the mean over them. Logs get the relative size of the perturbation and, every 50 steps, the
    fraction of the divergence that is due only to dropout.

    ``delta`` is the perturbation [B, T, D] at the setting ``site``, logits are [B, U, C]. With
    ``same_dropout`` the pass uses the dropout masks of the clean pass. ``detached`` detaches the
    embeddings under ``delta`` from the graph.
    """
    same_dropout = settings.same_dropout
    recording = Recording()
    perturbed = step.logits(
        "clean" if same_dropout else "perturbed",
        delta=delta,
        site=settings.site,
        recording=recording,
        # The clean pass used the distributed wrapper, which allows one forward per backward.
        wrapped=False,
        detached=settings.detached,
    )
    step.note_size(delta, recording.embeddings)
    clean = step.clean

    def rows(other: Tensor) -> Tensor:
        pairs = [
            step.divergence_rows((logits, other), settings.divergence) for logits in clean.logits
        ]
        return pairs[0] if len(pairs) == 1 else torch.stack(pairs).mean(0)

    def unperturbed() -> Tensor:
        start = None if clean.start is None else clean.start.detach()
        return rows(step.logits("perturbed", delta=start, site=clean.site, wrapped=False))

    logits = (*clean.logits, perturbed)
    term = Term("consistency", rows(perturbed), weight, settings.reduction, logits=logits)
    if weight and not same_dropout:
        step.note_dropout_fraction(term, unperturbed)
    return perturbed, term
