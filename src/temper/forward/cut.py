"""SpanCut: the loss with a span of tokens cut from every block, and how far it moves the answer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from temper.forward.stage import Part, Stage
from temper.forward.terms import divergence_term
from temper.seeding import generator
from temper.types import LossTerms, Term


@dataclass(frozen=True)
class SpanCut(Part):
    """Train on a cut pass too, and hold it and the clean one together, both with their gradient.

    ``weight * CE(cut x) + divergence_weight * JS(P(x) || P(cut x))``. The cut pass zeroes, in the
    feed-forward output of every encoder block, one span of tokens that begins at one of those that
    the clean pass attended to most there. 3 forward passes beside the clean 3.

    Args:
        ratio: Length of a span, as a share of the tokens that may be cut; at least one token.
        candidates: Share of them that a span may begin at, the most attended to.
        weight: Of the cut pass's task loss.
        divergence_weight: Of the divergence; the squared difference for a regression.
        special_tokens: Whether special tokens may be cut too.

    References:
        HiddenCut (Chen et al., ACL 2021), section 3.
    """

    slots = frozenset({"sub-models"})
    joint = True

    ratio: float = 0.1
    candidates: float = 0.4
    weight: float = 1.0
    divergence_weight: float = 1.0
    special_tokens: bool = True

    @property
    def terms(self) -> tuple[str, ...]:  # type: ignore[override]
        """Names of the terms whose weight is not 0."""
        named = {"cut": self.weight, "cut_divergence": self.divergence_weight}
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
        if self.divergence_weight:
            found.append(self._divergence(stage, logits))
            if stage.measuring:
                whole = found[-1].rows.detach().sum()
                with torch.no_grad():
                    uncut = stage.logits("cut", wrapped=False)
                    by_dropout = self._divergence(stage, uncut).rows.sum()
                notes["divergence/dropout_share"] = by_dropout / whole.clamp(min=1e-12)
        yield LossTerms.of(found, notes)

    def _divergence(self, stage: Stage, logits: Tensor) -> Term:
        (clean,) = stage.clean.logits
        return divergence_term(
            (clean, logits),
            stage.batch,
            divergence="js",
            weight=self.divergence_weight,
            reduction="mean",
            name="cut_divergence",
        )


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
