"""Consistency: a perturbed pass, its loss, and its divergence from the clean pass."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from temper.forward.noise import Noise
from temper.forward.perturbations import Perturbation, relative_size
from temper.forward.stage import Part, Stage
from temper.forward.terms import divergence_term, labels_of
from temper.functional.losses import Divergence
from temper.models.network import Recording, Site
from temper.types import Batch, LossTerms, Reduction, Term

SMALLEST_NOISE = 1e-3
"""Below it, noise on embeddings moves logits by less than dropout or rounding does."""


@dataclass(frozen=True)
class Consistency(Part):
    """Hold the clean pass and a perturbed one together, both sides with their gradient.

    ``weight * CE(x~) + divergence_weight * D(P(x) || P(x~))``

    With an attack the clean pass is made at ``x + n``, n the noise, and ``x~ = x + n + delta`` with
    delta the attack's step along that pass's gradient: 7 forward passes in all (1 clean, 1 back to
    the embeddings, 1 perturbed, 4 back through both). Without one the clean pass is made at x, and
    ``x~ = x + n``: 6.

    Args:
        noise: On the embeddings; of size 0 none.
        perturbation: The attack, at the noise's site; None perturbs by the noise alone.
        weight: Of the perturbed task loss; at 0 there is none.
        divergence_weight: Of the divergence; at 0 there is none.
        divergence: ``js`` or ``sym_kl``; of a regression the squared difference.
        reduction: Of the divergence over the rows.
        same_dropout: Whether both passes drop the same units.
        detached: Whether the embeddings of the perturbed pass are cut off from the graph.

    References:
        RoAST (arXiv 2312.04032); R3F (arXiv 2008.03156).
    """

    noise: Noise
    perturbation: Perturbation | None = None
    weight: float = 0.0
    divergence_weight: float = 0.0
    divergence: Divergence = "sym_kl"
    reduction: Reduction = "sum"
    same_dropout: bool = False
    detached: bool = False

    joint = True

    @property
    def slots(self) -> frozenset[str]:  # type: ignore[override]
        """The perturbation, and the sub-models where both passes must be the same one."""
        own = {"sub-models"} if self.same_dropout else set()
        return frozenset({"perturbation", *own})

    @property
    def terms(self) -> tuple[str, ...]:  # type: ignore[override]
        """Names of the terms whose weight is not 0."""
        named = {"adversarial": self.weight, "consistency": self.divergence_weight}
        return tuple(name for name, weight in named.items() if weight)

    @property
    def wants_gradient(self) -> bool:  # type: ignore[override]
        """Whether the clean pass gives an attack its gradient."""
        return self.perturbation is not None

    @property
    def site(self) -> Site:  # type: ignore[override]
        """Where the embeddings are perturbed."""
        return self.noise.site

    def start(self, stage: Stage) -> Tensor:
        """Return the noise as a leaf."""
        return self._draw(stage).requires_grad_()

    def losses(self, stage: Stage) -> Iterator[LossTerms]:
        """Yield the perturbed terms.

        Raises:
            DataError: If the batch has no labels.
        """
        batch, clean = stage.batch, stage.clean.logits
        # The clean stage leaves its loss out of a batch without labels; here that is a fault.
        labels_of(batch)
        delta, recording = self._delta(stage), Recording()
        stream = "clean" if self.same_dropout else "perturbed"
        # The clean pass went through the distributed wrapper, which waits for one forward only.
        perturbed = stage.logits(
            stream,
            delta=delta,
            site=self.site,
            recording=recording,
            wrapped=False,
            detached=self.detached,
        )
        found: list[Term] = []
        if self.weight:
            found.append(stage.task_term([perturbed], name="adversarial", weight=self.weight))
        assert recording.embeddings is not None
        size = relative_size(delta, recording.embeddings, batch, stage.network)
        notes = {"attack/relative_size": size}
        if self.divergence_weight:
            found.append(self._divergence(clean, perturbed, batch))
            if stage.measuring and not self.same_dropout:
                whole = found[-1].rows.detach().sum()
                notes["divergence/dropout_share"] = self._of_dropout(stage, stream) / whole.clamp(
                    min=1e-12
                )
        yield LossTerms.of(found, notes)

    def _draw(self, stage: Stage) -> Tensor:
        seed = stage.rng.local("noise", "consistency")
        return self.noise.draw(stage.network, stage.batch, seed=seed)

    def _delta(self, stage: Stage) -> Tensor:
        """Return what the perturbed pass adds to the embeddings [B, T, D]."""
        if self.perturbation is None:
            if not self.same_dropout and self.noise.size < SMALLEST_NOISE:
                stage.network.expect_dropout()
            return self._draw(stage)
        clean = stage.clean
        assert clean.start is not None
        if not self.perturbation.epsilon:
            stage.network.expect_dropout()
        step = self.perturbation.first(clean.gradient, clean.embeddings, stage.network, stage.batch)
        return clean.start.detach() + step

    def _divergence(self, clean: Sequence[Tensor], perturbed: Tensor, batch: Batch) -> Term:
        """Return the divergence of the perturbed pass from the clean one (the mean of several)."""
        each = [
            divergence_term(
                (logits, perturbed),
                batch,
                divergence=self.divergence,
                weight=self.divergence_weight,
                reduction=self.reduction,
                name="consistency",
            ).rows
            for logits in clean
        ]
        rows = each[0] if len(each) == 1 else torch.stack(each).mean(0)
        return Term(
            "consistency",
            rows,
            self.divergence_weight,
            self.reduction,
            logits=(*clean, perturbed),
        )

    def _of_dropout(self, stage: Stage, stream: str) -> Tensor:
        """Sum the divergence that the perturbed pass would have unperturbed (one pass, no graph).

        Where it is as large as the divergence itself, the objective is R-Drop's.
        """
        clean = stage.clean
        start = None if clean.start is None else clean.start.detach()
        with torch.no_grad():
            quiet = stage.logits(stream, delta=start, site=self.site, wrapped=False)
            return self._divergence(clean.logits, quiet, stage.batch).rows.sum()
