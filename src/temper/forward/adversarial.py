"""Losses under attack: at a step off the clean pass, along FreeLB's ascent, and at PGD's end."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from temper.forward.perturbations import Noise, Perturbation
from temper.forward.stage import UNCOUPLED, Coupling, Part, Stage, labels_of
from temper.forward.submodels import SubModels
from temper.functional import norms
from temper.models.network import Recording, Site
from temper.seeding import generator
from temper.types import LossTerms, Step


@dataclass(frozen=True)
class AdversarialLoss(Part):
    """Losses under an attack on the embeddings.

    ``weight * 1/K sum_k CE_k(x + delta) + lambda * sum_{l<k} D(P_l || P_k)``

    The gradient that makes delta comes out of the clean pass's own backward (``reuse``), which the
    weights needed anyway: 3 + 3K forward passes in all. Without reuse a pass of its own makes it
    and is thrown away (two more), as R-AT's released code does.

    For less, the attack may rest: in every k-th step (``every``) a share s of the rows (``share``),
    drawn anew, is attacked, and its terms have k / s times their weight; other steps are the clean
    stage alone. The mean over steps and draws is the same objective, at 3 + 3K s / k passes.

    Args:
        perturbation: The attack.
        submodels: The passes under attack; a single one takes the objective's own rates.
        weight: Of the attacked task loss.
        coupling: The divergence of the passes.
        reuse: Whether clean pass and attack share one backward.
        every: k, steps from one attack to the next.
        share: s, of each micro-batch's rows, above 0; one row at least is attacked.
        with_clean: Whether the clean pass's answers, as constants, stand among those that the
            divergence compares, so that one attacked pass has one, too.

    References:
        UEGR (arXiv 2503.16550), Algorithm 1, Eqs. 2 to 6; R-AT (Findings of EMNLP 2022).
    """

    perturbation: Perturbation
    submodels: SubModels = field(default_factory=lambda: SubModels(passes=1))
    weight: float = 1.0
    coupling: Coupling = UNCOUPLED
    reuse: bool = True
    every: int = 1
    share: float = 1.0
    with_clean: bool = False

    @property
    def slots(self) -> frozenset[str]:  # type: ignore[override]
        """The perturbation, and the sub-models where there are several."""
        own = set() if self.submodels.single else {"sub-models"}
        return frozenset({"perturbation", *own})

    @property
    def terms(self) -> tuple[str, ...]:  # type: ignore[override]
        """Names of the terms whose weight is not 0."""
        named = {"adversarial": self.weight, "divergence": self.coupling.weight}
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

    def rests(self, step: Step) -> bool:
        """Tell whether no attack is due."""
        return step.number % self.every != 0

    def start(self, stage: Stage) -> Tensor:
        """Return a zero leaf."""
        return self.perturbation.zeros(stage.network, stage.batch)

    def losses(self, stage: Stage) -> Iterator[LossTerms]:
        """Yield the attacked terms."""
        gradient, recording, answers = None, None, stage.clean.answers
        if self.reuse:
            gradient, recording = stage.clean.gradient, stage.clean.recording
        whole, places = stage.batch.size, self._places(stage)
        if places is not None:
            stage = stage.of(places)
            answers = tuple(each[places] for each in answers)
            if gradient is not None and recording is not None:
                gradient, recording = gradient[places], recording.take(places)
        network, batch = stage.network, stage.batch
        if gradient is None or recording is None:
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
        attacked = stage.passes(
            submodels,
            delta=delta,
            site=self.perturbation.site,
            followed=recording,
        )
        found = []
        if self.weight:
            found.append(stage.task_term(attacked, name="adversarial", weight=self.weight))
        if self.coupling.weight:
            compared = (*answers, *attacked) if self.with_clean else attacked
            found.append(self.coupling.term(compared, batch))
        factor = self.every * whole / batch.size
        found = [replace(term, weight=term.weight * factor) for term in found]
        yield LossTerms.of(found, stage.size_of(delta, embeddings))

    def _places(self, stage: Stage) -> Tensor | None:
        """Draw the rows that are attacked [b], in their order; None for all."""
        size = stage.batch.size
        count = max(1, round(self.share * size))
        if count >= size:
            return None
        draws = generator(stage.rng.local("rows", "adversarial"))
        drawn = torch.randperm(size, generator=draws)[:count].sort().values
        return drawn.to(stage.batch.device)


def gradient_at(
    stage: Stage,
    perturbation: Perturbation,
    delta: Tensor | None,
    *,
    norms: bool = False,
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
        "attack",
        delta=point,
        site=perturbation.site,
        recording=recording,
        wrapped=False,
    )
    labels = labels_of(stage.batch)
    loss = stage.network.task_loss(logits, labels, smoothing=stage.smoothing)
    (gradient,) = torch.autograd.grad(loss.sum(), point)
    return gradient, recording


@dataclass(frozen=True)
class FreeAscent(Part):
    """K passes along an ascent, each of which trains: ``weight / K * sum_k CE(x + d_k)``.

    The backward that the weights need gives the gradient by delta too, so a step up costs nothing
    (3KF in all). All passes drop the same units, so that delta climbs one function.

    Args:
        steps: K, passes in all: the first stands at the start, each other one a step further.
        step_size: l2 length of a step of each example.
        init: Size of the start, ``U(-1, 1) * init / sqrt(n D)`` an entry, n the example's real
            tokens; its l2 norm is about init / sqrt 3. 0 starts at the clean example.
        max_norm: Radius of the ball that each example's delta is kept in; 0 for no ball.
        relative: Whether these three are shares of the example's own embedding norm.
        special_tokens: Whether special tokens move too.
        weight: Of the mean loss.

    References:
        FreeLB (arXiv 1909.11764), Algorithm 1.
    """

    slots = frozenset({"perturbation"})
    terms = ("adversarial",)
    clean = False

    steps: int
    step_size: float
    init: float = 0.0
    max_norm: float = 0.0
    relative: bool = False
    special_tokens: bool = True
    weight: float = 1.0

    def passes(self, step: Step) -> int:
        """Return K."""
        return self.steps

    def losses(self, stage: Stage) -> Iterator[LossTerms]:
        """Yield K totals of one term each; read delta's gradient after each one's backward."""
        embeddings = stage.network.embeddings(stage.batch)
        mask = stage.network.movable(stage.batch, special_tokens=self.special_tokens)
        unit = norms.size(norms.masked(embeddings, mask), norm="l2")
        if not self.relative:
            unit = torch.ones_like(unit)
        delta = self._inside_ball(self._start(stage, embeddings) * unit, unit)
        first: Tensor | None = None
        for place in range(self.steps):
            delta = delta.detach().requires_grad_()
            logits = stage.logits("adversarial", delta=delta)
            share = self.weight / self.steps
            term = stage.task_term((logits,), name="adversarial", weight=share)
            reached = term.rows.detach().mean()
            first = reached if first is None else first
            last = place == self.steps - 1
            notes: dict[str, Tensor] = {}
            if last:
                notes = stage.size_of(delta, embeddings) | {"attack/loss_rise": reached - first}
            yield LossTerms.of([term], notes)
            # The graph is spent: nothing of it may live beside the next pass.
            del logits, term
            if not last:
                delta = self._further(delta, mask, unit)

    def _start(self, stage: Stage, embeddings: Tensor) -> Tensor:
        if not self.init:
            return torch.zeros_like(embeddings, dtype=stage.network.delta_dtype)
        noise = Noise(self.init, per="length", special_tokens=self.special_tokens)
        seed = stage.rng.local("noise", "adversarial")
        return noise.draw(stage.network, stage.batch, seed=seed)

    def _further(self, delta: Tensor, mask: Tensor, unit: Tensor) -> Tensor:
        # Delta's own gradient: those of the weights hold earlier micro-batches.
        if delta.grad is None:
            raise ValueError("Backward must run on a pass's total before the next is asked for.")
        direction = norms.steepest(norms.masked(delta.grad, mask), norm="l2")
        return self._inside_ball(delta.detach() + direction * (self.step_size * unit), unit)

    def _inside_ball(self, delta: Tensor, unit: Tensor) -> Tensor:
        if not self.max_norm:
            return delta
        return norms.project(delta, self.max_norm * unit, norm="l2")


@dataclass(frozen=True)
class ProjectedAscent(Part):
    """The loss at the end of K projected steps (PGD), whose own backwards reach delta alone.

    ``weight * CE(x + d_K)``, ``d_{k+1} = project(d_k + step)``. All steps and the pass that trains
    drop the same units, so that the loss is that of the network which was attacked. 3 + 2K forward
    passes.

    Args:
        perturbation: Budget, geometry and size of a step.
        steps: K, at least 1.
        random_start: Whether to start from noise of the budget's size in place of 0: uniform on
            ``[-r, r]`` in each entry, r the budget, for ``l2`` over the root of the number of
            entries (norm about budget / sqrt 3).
        weight: Of the loss.

    References:
        Madry et al., ICLR 2018, Eq. 2.1 and section 2.
    """

    slots = frozenset({"perturbation"})
    terms = ("adversarial",)
    clean = False

    perturbation: Perturbation
    steps: int = 3
    random_start: bool = False
    weight: float = 1.0

    def losses(self, stage: Stage) -> Iterator[LossTerms]:
        """Yield the attacked term."""
        network, batch, attack = stage.network, stage.batch, self.perturbation
        delta = self._start(stage) if self.random_start else attack.zeros(network, batch)
        for _ in range(self.steps):
            gradient, noted = gradient_at(stage, attack, delta)
            assert noted.embeddings is not None
            delta = attack.further(delta, gradient, noted.embeddings, network, batch)
        recording = Recording()
        logits = stage.logits("attack", delta=delta, site=attack.site, recording=recording)
        term = stage.task_term((logits,), name="adversarial", weight=self.weight)
        yield LossTerms.of([term], stage.size_of(delta, recording.embeddings))

    def _start(self, stage: Stage) -> Tensor:
        network, batch, attack = stage.network, stage.batch, self.perturbation
        zero = attack.zeros(network, batch).detach()
        mask = network.movable(batch, special_tokens=attack.special_tokens)
        draws = generator(stage.rng.local("noise", "adversarial"), batch.device)
        noise = torch.empty_like(zero).uniform_(-1.0, 1.0, generator=draws)
        assert attack.scope != "matrix"
        radius = attack.radius(self._embeddings(stage, zero) if attack.relative else zero, mask)
        if attack.norm == "l2":
            # The root of how many entries share a budget is the norm of as many ones.
            ones = norms.masked(torch.ones_like(zero), mask)
            entries = norms.size(ones, norm="l2", scope=attack.scope)
            radius = radius / entries.clamp(min=math.sqrt(zero.shape[-1]))
        return norms.masked(noise, mask) * radius

    def _embeddings(self, stage: Stage, zero: Tensor) -> Tensor:
        """Return what a relative budget is a share of [B, T, D]."""
        if self.perturbation.site == "word":
            return stage.network.embeddings(stage.batch)
        # The blocks' input shows in a forward only.
        recording = Recording()
        with torch.no_grad():
            stage.logits("attack", delta=zero, site="output", recording=recording, wrapped=False)
        assert recording.embeddings is not None
        return recording.embeddings
