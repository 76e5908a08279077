"""Objectives: what a step minimises, total after total, so that one graph is alive at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from temper.forward.perturbations import Perturbation
from temper.forward.submodels import SubModels
from temper.forward.terms import divergence_term, labels_of, task_term
from temper.functional.losses import Divergence, task_loss
from temper.functional.norms import scoped_norm
from temper.functional.precision import at_least_single
from temper.models.network import Network, Recording
from temper.seeding import Streams
from temper.types import Batch, LossTerms, Reduction, State, Step


class Objective(Protocol):
    """What is minimised: yields totals, and resumes after the caller has run backward on each."""

    def passes(self, step: Step) -> int:
        """Return how many totals ``losses`` yields; gradients are synchronised on the last.

        Args:
            step: Where training stands.
        """

    def losses(
        self, network: Network, batch: Batch, state: State, step: Step, rng: Streams
    ) -> Iterator[LossTerms]:
        """Yield loss terms; the caller runs backward on each total before asking for the next.

        Args:
            network: Gives logits under perturbations and dropout plans.
            batch: One micro-batch.
            state: The update rule's state.
            step: Where training stands, and what the losses are divided by.
            rng: Streams of this micro-batch.

        Yields:
            The terms of one total; as many totals as ``passes`` says.
        """


@dataclass(frozen=True)
class Clean:
    """The task's loss on the batch as it is, in one pass: plain fine-tuning."""

    def passes(self, step: Step) -> int:
        """Return 1."""
        return 1

    def losses(
        self, network: Network, batch: Batch, state: State, step: Step, rng: Streams
    ) -> Iterator[LossTerms]:
        """Yield the task's loss."""
        logits = network.logits(batch, seed=rng.local("dropout", "clean"))
        yield LossTerms.of([task_term(network, [logits], batch)])


@dataclass(frozen=True)
class Repeated:
    """K passes over the clean batch and their divergence: R-Drop, or dropout at a set rate (K = 1).

    ``1/K sum_k CE(z_k, y) + weight * sum_{l<k} D(P_l || P_k)``.

    Args:
        submodels: The passes.
        weight: Of the divergence; at weight 0 no second pass should be asked for.
        divergence: ``js`` or ``sym_kl``.
        reduction: Of the divergence over the rows.
    """

    submodels: SubModels
    weight: float = 0.0
    divergence: Divergence = "sym_kl"
    reduction: Reduction = "sum"

    def passes(self, step: Step) -> int:
        """Return 1."""
        return 1

    def losses(
        self, network: Network, batch: Batch, state: State, step: Step, rng: Streams
    ) -> Iterator[LossTerms]:
        """Yield the mean task loss and the divergence in one total."""
        logits = self.submodels.logits(network, batch, rng=rng)
        terms = [task_term(network, logits, batch)]
        if self.weight:
            terms.append(
                divergence_term(
                    logits,
                    batch,
                    divergence=self.divergence,
                    weight=self.weight,
                    reduction=self.reduction,
                )
            )
        yield LossTerms.of(terms)


@dataclass(frozen=True)
class Attacked:
    """Clean loss, loss of K sub-models under attack, and their divergence.

    ``CE(x) + adversarial_weight * 1/K sum_k CE_k(x + delta) + divergence_weight * sum_{l<k} D(P_l
    || P_k)``

    The gradient that makes delta comes out of the clean pass's own backward (``reuse``), which the
    weights needed anyway: 3 + 3K forward passes in all. Without reuse a pass of its own makes it
    and is thrown away (two more), as R-AT's released code does.

    Args:
        perturbation: The attack.
        submodels: The passes under attack.
        adversarial_weight: Of the attacked task loss.
        divergence_weight: Of the divergence.
        divergence: ``js`` or ``sym_kl``.
        reduction: Of the divergence over the rows.
        reuse: Whether clean pass and attack share one backward.

    References:
        UEGR (arXiv 2503.16550), Algorithm 1, Eqs. 2 to 6; R-AT (Findings of EMNLP 2022).
    """

    perturbation: Perturbation
    submodels: SubModels
    adversarial_weight: float = 1.0
    divergence_weight: float = 0.0
    divergence: Divergence = "js"
    reduction: Reduction = "sum"
    reuse: bool = True

    def passes(self, step: Step) -> int:
        """Return 2 where the attack reuses the clean backward, else 1."""
        return 2 if self.reuse else 1

    def losses(
        self, network: Network, batch: Batch, state: State, step: Step, rng: Streams
    ) -> Iterator[LossTerms]:
        """Yield the clean loss, then the attacked terms (or all in one total without ``reuse``)."""
        if self.reuse:
            recording = Recording(channel_norms=self.submodels.follows_gradient)
            zero = self.perturbation.zeros(network, batch)
            logits = network.logits(
                batch,
                delta=zero,
                site=self.perturbation.site,
                recording=recording,
                seed=rng.local("dropout", "clean"),
            )
            yield LossTerms.of([task_term(network, [logits], batch)])
            del logits
            gradient = zero.grad
            if gradient is None:
                raise ValueError(
                    "Backward must run on the clean total before the attack is asked for."
                )
            clean = []
        else:
            gradient, recording = self._gradient(network, batch, None, rng)
            logits = network.logits(batch, seed=rng.local("dropout", "clean"))
            clean = [task_term(network, [logits], batch)]
        delta, diagnostics = self._attack(gradient, recording, network, batch, rng)
        attacked = self.submodels.logits(
            network, batch, rng=rng, delta=delta, site=self.perturbation.site, recording=recording
        )
        terms = clean
        if self.adversarial_weight:
            terms = [
                *terms,
                task_term(
                    network, attacked, batch, name="adversarial", weight=self.adversarial_weight
                ),
            ]
        if self.divergence_weight:
            term = divergence_term(
                attacked,
                batch,
                divergence=self.divergence,
                weight=self.divergence_weight,
                reduction=self.reduction,
            )
            terms = [*terms, term]
        yield LossTerms.of(terms, diagnostics)

    def _attack(
        self, gradient: Tensor, recording: Recording, network: Network, batch: Batch, rng: Streams
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Make delta from the clean gradient, with further ascent steps where asked."""
        embeddings = recording.embeddings
        assert embeddings is not None
        delta = self.perturbation.first(gradient, embeddings, network, batch)
        for _ in range(self.perturbation.steps - 1):
            further, _unused = self._gradient(network, batch, delta, rng)
            delta = self.perturbation.further(delta, further, embeddings, network, batch)
        inside = torch.where(batch.mask.unsqueeze(-1), at_least_single(embeddings), 0.0)
        share = scoped_norm(delta, norm="l2", scope="example") / scoped_norm(
            inside, norm="l2", scope="example"
        ).clamp(min=1e-12)
        return delta, {"attack/relative_size": share.mean()}

    def _gradient(
        self, network: Network, batch: Batch, delta: Tensor | None, rng: Streams
    ) -> tuple[Tensor, Recording]:
        """Differentiate the clean loss by delta alone, outside any distributed wrapper (2F)."""
        point = self.perturbation.zeros(network, batch) if delta is None else delta.requires_grad_()
        recording = Recording(channel_norms=delta is None and self.submodels.follows_gradient)
        logits = network.logits(
            batch,
            delta=point,
            site=self.perturbation.site,
            recording=recording,
            seed=rng.local("dropout", "attack"),
            wrapped=False,
        )
        loss = task_loss(logits, labels_of(batch), class_weights=network.class_weights).sum()
        (gradient,) = torch.autograd.grad(loss, point)
        return gradient, recording
