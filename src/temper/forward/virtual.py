"""Virtual adversarial training: the divergence at the nearby point that changes the logits most."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from temper.forward.noise import Noise
from temper.forward.perturbations import Perturbation, relative_size
from temper.forward.stage import Part, Stage
from temper.forward.terms import divergence_term, regression
from temper.functional import norms
from temper.functional.losses import Divergence, pairwise_divergence
from temper.functional.precision import in_half_precision
from temper.models.network import Recording, Site
from temper.types import LossTerms, Reduction

UNDERFLOW_GUARD = 2.0**12
SMALLEST_IN_HALF = 1e-2
"""Noise below it is lost in the rounding of half-precision logits; SiFT starts from it."""


@dataclass(frozen=True)
class Virtual(Part):
    """Smoothness of the logits around each example; it reads no labels.

    ``weight * max_{||d|| <= epsilon} D(f(x), f(x + d))``

    d starts as small noise and takes ``perturbation.steps`` ascent steps on D, the clean logits
    held fixed, each followed by the projection to the budget. A single step has the whole budget,
    so that the noise is only where the gradient is taken: at 0 it vanishes. All passes drop the
    units that the clean pass drops, so that D is due to d alone. The gradient of the final D
    flows through both sides.

    Args:
        perturbation: The ball, and the steps in it.
        init_noise: Standard deviation of the noise that the ascent starts from, above 0.
        weight: Of the divergence.
        divergence: ``sym_kl`` or ``js``; the squared difference for a regression.
        reduction: Of the divergence over the rows.

    References:
        VAT (arXiv 1704.03976); SMART (arXiv 1911.03437), smoothness-inducing regularisation and
        the inner loop of Algorithm 1. Differs: the loop that SMART's authors released returns
        nearly the noise it starts from (docs/methods/vat.md).
    """

    perturbation: Perturbation
    init_noise: float = 1e-3
    weight: float = 1.0
    divergence: Divergence = "sym_kl"
    reduction: Reduction = "mean"

    slots = frozenset({"perturbation"})
    terms = ("smoothness",)
    joint = True
    reads_labels = False

    @property
    def site(self) -> Site:  # type: ignore[override]
        """Where the embeddings are moved."""
        return self.perturbation.site

    def losses(self, stage: Stage) -> Iterator[LossTerms]:
        """Yield the weighted divergence."""
        if self.init_noise < SMALLEST_IN_HALF and in_half_precision(stage.batch.device):
            stage.network.tell(
                f"init_noise={self.init_noise:g} is lost in the rounding of half precision, so the "
                f"ascent follows rounding errors. Set it to {SMALLEST_IN_HALF:g} or more."
            )
        clean, stream = clean_logits(stage)
        delta, notes = self._climb(stage, clean.detach(), stream)
        # The clean pass went through the distributed wrapper, which waits for one forward only.
        moved = stage.logits(stream, delta=delta, site=self.site, wrapped=False)
        term = divergence_term(
            (clean, moved),
            stage.batch,
            divergence=self.divergence,
            weight=self.weight,
            reduction=self.reduction,
            name="smoothness",
        )
        yield LossTerms.of([term], notes)

    def _climb(self, stage: Stage, clean: Tensor, stream: str) -> tuple[Tensor, dict[str, Tensor]]:
        """Return d [B, T, D], detached, and what there is to say of it."""
        network, batch, attack = stage.network, stage.batch, self.perturbation
        noise = Noise(
            self.init_noise, "normal", site=self.site, special_tokens=attack.special_tokens
        )
        delta = noise.draw(network, batch, seed=stage.rng.local("noise", "virtual"))
        step = delta
        for _ in range(attack.steps):
            gradient, embeddings = self._differentiate(stage, clean, stream, delta)
            step = attack.first(gradient, embeddings, network, batch)
            delta = attack.further(delta, gradient, embeddings, network, batch)
        return delta, {
            "attack/relative_size": relative_size(delta, embeddings, batch, network),
            "attack/alignment": alignment(delta, step),
        }

    def _differentiate(
        self, stage: Stage, clean: Tensor, stream: str, delta: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the gradient of D by d and the unperturbed embeddings [B, T, D] (2F)."""
        point, recording = delta.detach().requires_grad_(), Recording()
        logits = stage.logits(
            stream, delta=point, site=self.site, recording=recording, wrapped=False
        )
        rows = pairwise_divergence(
            (clean, logits),
            divergence=self.divergence,
            regression=regression(stage.batch, (clean,)),
        )
        # Only the direction counts, and half precision would lose the smallest entries.
        (gradient,) = torch.autograd.grad(rows.sum() * UNDERFLOW_GUARD, point)
        assert recording.embeddings is not None
        return gradient, recording.embeddings


def clean_logits(stage: Stage) -> tuple[Tensor, str]:
    """Return logits without perturbation, with their graph, and the stream of their dropout.

    Those of the clean pass, which costs nothing; where the clean stage has several passes in one
    forward, no single pass can drop as they do, and one more is run.

    Args:
        stage: The micro-batch, its clean pass run.
    """
    logits = stage.clean.logits
    if len(logits) == 1:
        return logits[0], "clean"
    return stage.logits("single", wrapped=False), "single"


def alignment(delta: Tensor, step: Tensor) -> Tensor:
    """Measure how far a perturbation is its last ascent step, and not the noise it started from.

    Args:
        delta: [B, T, D].
        step: [B, T, D].

    Returns:
        Their cosine, the mean over examples, a scalar; 0 for an example where one of them is 0.
    """
    sizes = norms.size(delta, norm="l2") * norms.size(step, norm="l2")
    products = (delta.detach() * step).sum((1, 2), keepdim=True)
    return torch.where(sizes > 0, products / sizes.clamp(min=1e-30), 0.0).mean()
