"""The loss of K sub-models at a worst-case step of the embeddings, and their divergence."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from temper.forward.perturbations import Perturbation, relative_size
from temper.forward.stage import Part, Stage
from temper.forward.submodels import SubModels
from temper.forward.terms import divergence_term, labels_of
from temper.functional.losses import Divergence
from temper.models.network import Recording, Site
from temper.types import LossTerms, Reduction


@dataclass(frozen=True)
class AdversarialLoss(Part):
    """Losses under an attack on the embeddings.

    ``weight * 1/K sum_k CE_k(x + delta) + divergence_weight * sum_{l<k} D(P_l || P_k)``

    The gradient that makes delta comes out of the clean pass's own backward (``reuse``), which the
    weights needed anyway: 3 + 3K forward passes in all. Without reuse a pass of its own makes it
    and is thrown away (two more), as R-AT's released code does.

    Args:
        perturbation: The attack.
        submodels: The passes under attack; a single one takes the objective's own rates.
        weight: Of the attacked task loss.
        divergence_weight: Of the divergence.
        divergence: ``js`` or ``sym_kl``.
        reduction: Of the divergence over the rows.
        reuse: Whether clean pass and attack share one backward.

    References:
        UEGR (arXiv 2503.16550), Algorithm 1, Eqs. 2 to 6; R-AT (Findings of EMNLP 2022).
    """

    perturbation: Perturbation
    submodels: SubModels = field(default_factory=lambda: SubModels(passes=1))
    weight: float = 1.0
    divergence_weight: float = 0.0
    divergence: Divergence = "js"
    reduction: Reduction = "sum"
    reuse: bool = True

    @property
    def slots(self) -> frozenset[str]:  # type: ignore[override]
        """The perturbation, and the sub-models where there are several."""
        own = set() if self.submodels.single else {"sub-models"}
        return frozenset({"perturbation", *own})

    @property
    def terms(self) -> tuple[str, ...]:  # type: ignore[override]
        """Names of the terms whose weight is not 0."""
        named = {"adversarial": self.weight, "divergence": self.divergence_weight}
        return tuple(name for name, weight in named.items() if weight)

    @property
    def joint(self) -> bool:  # type: ignore[override]
        """Whether all stands in one total: where the attack has a pass of its own."""
        return not self.reuse

    @property
    def wants_gradient(self) -> bool:  # type: ignore[override]
        """Whether the clean pass gives the attack its gradient."""
        return self.reuse

    @property
    def wants_norms(self) -> bool:  # type: ignore[override]
        """Whether the dropout rates follow the clean pass's gradients."""
        return self.submodels.follows_gradient

    @property
    def site(self) -> Site:  # type: ignore[override]
        """Where the attack is made."""
        return self.perturbation.site

    def start(self, stage: Stage) -> Tensor:
        """Return a zero leaf."""
        return self.perturbation.zeros(stage.network, stage.batch)

    def losses(self, stage: Stage) -> Iterator[LossTerms]:
        """Yield the attacked terms."""
        network, batch = stage.network, stage.batch
        if self.reuse:
            gradient, recording = stage.clean.gradient, stage.clean.recording
        else:
            gradient, recording = gradient_at(
                stage, self.perturbation, None, norms=self.wants_norms
            )
        embeddings = recording.embeddings
        assert embeddings is not None
        embeddings = embeddings[: batch.size]
        delta = self.perturbation.first(gradient, embeddings, network, batch)
        for _ in range(self.perturbation.steps - 1):
            further, _unused = gradient_at(stage, self.perturbation, delta)
            delta = self.perturbation.further(delta, further, embeddings, network, batch)
        submodels = self.submodels
        if submodels.single and stage.rates is not None:
            submodels = stage.rates
        attacked = submodels.logits(
            network,
            batch,
            rng=stage.rng,
            delta=delta,
            site=self.perturbation.site,
            recording=recording,
        )
        found = []
        if self.weight:
            found.append(stage.task_term(attacked, name="adversarial", weight=self.weight))
        if self.divergence_weight:
            found.append(
                divergence_term(
                    attacked,
                    batch,
                    divergence=self.divergence,
                    weight=self.divergence_weight,
                    reduction=self.reduction,
                )
            )
        notes = {"attack/relative_size": relative_size(delta, embeddings, batch, network)}
        yield LossTerms.of(found, notes)


def gradient_at(
    stage: Stage, perturbation: Perturbation, delta: Tensor | None, *, norms: bool = False
) -> tuple[Tensor, Recording]:
    """Differentiate the task's loss by delta alone, outside any distributed wrapper (2F).

    Args:
        stage: The micro-batch.
        perturbation: Where delta is added.
        delta: Where to differentiate [B, T, D]; None for zero.
        norms: Whether to record gradient norms at the dropout sites.

    Returns:
        The gradient [B, T, D], and what was noted.
    """
    point = (
        perturbation.zeros(stage.network, stage.batch)
        if delta is None
        else delta.detach().requires_grad_()
    )
    recording = Recording(channel_norms=norms)
    logits = stage.logits(
        "attack", delta=point, site=perturbation.site, recording=recording, wrapped=False
    )
    labels = labels_of(stage.batch)
    loss = stage.network.task_loss(logits, labels, smoothing=stage.smoothing)
    (gradient,) = torch.autograd.grad(loss.sum(), point)
    return gradient, recording
