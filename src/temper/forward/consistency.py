"""Consistency: the divergence of a perturbed, cut or averaged pass from the clean one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from temper.forward.perturbations import Noise, Perturbation
from temper.forward.stage import UNCOUPLED, Coupling, Part, Stage, labels_of
from temper.functional import norms
from temper.functional.precision import in_half_precision
from temper.models.network import Recording, Site
from temper.seeding import generator
from temper.types import LossTerms, Term

SMALLEST_NOISE = 1e-3
"""Below it, noise on embeddings moves logits by less than dropout or rounding does."""


@dataclass(frozen=True)
class Consistency(Part):
    """Hold the clean pass and a perturbed one together, both sides with their gradient.

    ``weight * CE(x~) + lambda * D(P(x) || P(x~))``

    With an attack the clean pass is made at ``x + n``, n the noise, and ``x~ = x + n + delta`` with
    delta the attack's step along that pass's gradient: 7 forward passes in all (1 clean, 1 back to
    the embeddings, 1 perturbed, 4 back through both). Without one the clean pass is made at x, and
    ``x~ = x + n``: 6.

    Args:
        noise: On the embeddings; of size 0 none.
        perturbation: The attack, at the noise's site; None perturbs by the noise alone.
        weight: Of the perturbed task loss; at 0 there is none.
        coupling: The divergence from the clean pass.
        same_dropout: Whether both passes drop the same units.
        detached: Whether the embeddings of the perturbed pass are cut off from the graph.

    References:
        RoAST (arXiv 2312.04032); R3F (arXiv 2008.03156).
    """

    noise: Noise
    perturbation: Perturbation | None = None
    weight: float = 0.0
    coupling: Coupling = UNCOUPLED
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
        named = {"adversarial": self.weight, "consistency": self.coupling.weight}
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
        batch = stage.batch
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
        notes = stage.size_of(delta, recording.embeddings)
        if self.coupling.weight:
            found.append(self._divergence(stage, perturbed))
            if stage.measuring and not self.same_dropout:
                notes |= stage.dropout_share(found[-1], lambda: self._unperturbed(stage, stream))
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

    def _divergence(self, stage: Stage, perturbed: Tensor) -> Term:
        """Return the divergence of the perturbed pass from the clean one (the mean of several)."""
        clean = stage.clean.logits
        pairs = [self.coupling.rows((logits, perturbed), stage.batch) for logits in clean]
        rows = pairs[0] if len(pairs) == 1 else torch.stack(pairs).mean(0)
        coupling, logits = self.coupling, (*clean, perturbed)
        return Term("consistency", rows, coupling.weight, coupling.reduction, logits=logits)

    def _unperturbed(self, stage: Stage, stream: str) -> Tensor:
        start = None if stage.clean.start is None else stage.clean.start.detach()
        quiet = stage.logits(stream, delta=start, site=self.site, wrapped=False)
        return self._divergence(stage, quiet).rows


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
        coupling: The divergence.

    References:
        VAT (arXiv 1704.03976); SMART (arXiv 1911.03437), smoothness-inducing regularisation and
        the inner loop of Algorithm 1. Differs: the loop that SMART's authors released returns
        nearly the noise it starts from (docs/methods/vat.md).
    """

    perturbation: Perturbation
    init_noise: float
    coupling: Coupling

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
        term = self.coupling.term((clean, moved), stage.batch, name="smoothness")
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
            **stage.size_of(delta, embeddings),
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
        rows = self.coupling.rows((clean, logits), stage.batch)
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


@dataclass(frozen=True)
class SpanCut(Part):
    """Train on a cut pass too, and hold it and the clean one together, both with their gradient.

    ``weight * CE(cut x) + lambda * JS(P(x) || P(cut x))``. The cut pass zeroes, in the
    feed-forward output of every encoder block, one span of tokens that begins at one of those that
    the clean pass attended to most there. 3 forward passes beside the clean 3.

    Args:
        ratio: Length of a span, as a share of the tokens that may be cut; at least one token.
        candidates: Share of them that a span may begin at, the most attended to.
        weight: Of the cut pass's task loss.
        coupling: The divergence from the clean pass.
        special_tokens: Whether special tokens may be cut too.

    References:
        HiddenCut (Chen et al., ACL 2021), section 3.
    """

    slots = frozenset({"sub-models"})
    joint = True

    ratio: float = 0.1
    candidates: float = 0.4
    weight: float = 1.0
    coupling: Coupling = UNCOUPLED
    special_tokens: bool = True

    @property
    def terms(self) -> tuple[str, ...]:  # type: ignore[override]
        """Names of the terms whose weight is not 0."""
        named = {"cut": self.weight, "cut_divergence": self.coupling.weight}
        return tuple(name for name, weight in named.items() if weight)

    def watching(self, stage: Stage) -> AbstractContextManager[None]:
        """Have the clean pass note what it attends to.

        Raises:
            ModelError: If the model gives no attention probabilities.
        """
        stage.network.cuts(stage.batch).watch(stage.batch.mask)
        return nullcontext()

    def losses(self, stage: Stage) -> Iterator[LossTerms]:
        """Yield the cut terms."""
        network, batch = stage.network, stage.batch
        blocks = network.cuts(batch)
        free = network.movable(batch, special_tokens=self.special_tokens)
        cuts = [
            spans(
                scores,
                free,
                ratio=self.ratio,
                candidates=self.candidates,
                draws=generator(stage.rng.local("cut", place), batch.device),
            )
            for place, scores in enumerate(blocks.scores)
        ]
        with blocks.cutting(cuts):
            # The clean pass went through the distributed wrapper, which waits for one forward only.
            logits = stage.logits("cut", wrapped=False)
        found: list[Term] = []
        share = torch.stack([cut.sum() for cut in cuts]).float().mean() / batch.mask.sum()
        notes = {"cut/share": share}
        if self.weight:
            found.append(stage.task_term((logits,), name="cut", weight=self.weight))
        if self.coupling.weight:
            (clean,) = stage.clean.logits
            found.append(self.coupling.term((clean, logits), batch, name="cut_divergence"))

            def uncut() -> Tensor:
                return self.coupling.rows((clean, stage.logits("cut", wrapped=False)), batch)

            if stage.measuring:
                notes |= stage.dropout_share(found[-1], uncut)
        yield LossTerms.of(found, notes)


def spans(
    scores: Tensor, free: Tensor, *, ratio: float, candidates: float, draws: torch.Generator
) -> Tensor:
    """Draw one span of tokens for each example.

    Of n tokens that may be cut, a span holds ``max(1, round(ratio n))`` that follow each other. It
    begins at one of the ``max(1, round(candidates n))`` with the highest scores among those at
    which it fits, each as likely as the other.

    Args:
        scores: How much each token was attended to [B, T].
        free: Tokens that may be cut [B, T], boolean.
        ratio: Share of the tokens that a span holds, in (0, 1].
        candidates: Share of the tokens that it may begin at, in (0, 1].
        draws: One uniform number is drawn for each example.

    Returns:
        [B, T], boolean; true in the span, nowhere in a row of which no token may be cut.

    Example:
        >>> free = torch.tensor([[True, True, True, True, False]])
        >>> scores = torch.tensor([[0.1, 0.9, 0.2, 0.3, 5.0]])
        >>> spans(scores, free, ratio=0.5, candidates=0.25, draws=torch.Generator()).int()
        tensor([[0, 1, 1, 0, 0]], dtype=torch.int32)
    """
    place = free.cumsum(1) - 1
    count = free.sum(1, keepdim=True)
    length = (ratio * count).round().long().clamp(min=1)
    fits = free & (place <= count - length)
    best = (candidates * count).round().long().clamp(min=1)
    best = torch.minimum(best, fits.sum(1, keepdim=True).clamp(min=1))
    order = torch.where(fits, scores, -torch.inf).argsort(dim=1, descending=True, stable=True)
    uniform = torch.rand(len(scores), 1, generator=draws, device=scores.device)
    chosen = torch.minimum((uniform * best).long(), best - 1)
    begin = place.gather(1, order.gather(1, chosen))
    return free & (place >= begin) & (place < begin + length)


@dataclass(frozen=True)
class Proximal(Part):
    """Hold the network near its own average: ``weight * D(f(x; w), f(x; w_ema))``.

    No gradient flows through the average, and its pass drops the units that the clean pass drops.

    Args:
        coupling: The divergence.
        rule: Name of the update rule whose state holds the average under ``weights``.

    References:
        SMART (arXiv 1911.03437), momentum Bregman proximal point.
    """

    coupling: Coupling
    rule: str = "average"

    terms = ("proximal",)
    joint = True
    reads_labels = False

    @property
    def needs(self) -> frozenset[str]:  # type: ignore[override]
        """The rule that keeps the average."""
        return frozenset({self.rule})

    def losses(self, stage: Stage) -> Iterator[LossTerms]:
        """Yield the weighted divergence."""
        weights = average_of(stage, self.rule)
        logits, stream = clean_logits(stage)
        with torch.no_grad():
            teacher = stage.logits(stream, weights=weights, wrapped=False)
        yield LossTerms.of([self.coupling.term((logits, teacher), stage.batch, name="proximal")])


def average_of(stage: Stage, rule: str) -> dict[str, Tensor]:
    """Return the average of the weights that an update rule keeps, in the model's own precision.

    Args:
        stage: The micro-batch.
        rule: Name of the rule, whose state holds the average under ``weights``.
    """
    model = stage.network.model
    held: Mapping[str, Tensor] = stage.state[rule]["weights"]
    return {name: value.to(model.get_parameter(name).dtype) for name, value in held.items()}
