"""HiddenCut: a second pass without a span of tokens in each block, and a consistency loss.

``L = CE(x) + cut_weight * CE(cut x) + divergence_weight * JS(P(x) || P(cut x))``. In every encoder
block the feed-forward output of one span of tokens is set to 0. The span has ``max(1, round(ratio
n))`` of the n real tokens. It begins at a random one of the tokens with the most attention (the
fraction ``candidates``).

Source: Chen et al., ACL 2021; released code SALT-NLP/HiddenCut@8ec0cc7. Differs: models are
unmodified, with eager attention (which returns the probabilities). Attention comes from the clean
pass, padding is never cut, a span always has its full length, and dropout stays on in the cut pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import ClassVar

from pydantic import Field

from temper.forward import Losses, Plan, StepContext, with_weight
from temper.heads import Head
from temper.lazy import Tensor, torch
from temper.methods import Method, register
from temper.methods.bounds import Nonnegative, PositiveFraction
from temper.methods.method import check_whole_text
from temper.seeding import generator
from temper.types import Step


@register(
    "hidden_cut",
    summary="A pass without spans of attended tokens, and its divergence from the clean pass",
    cost="6F (eager attention)",
    memory="activations of two passes",
    paper="Chen et al., ACL 2021",
)
class HiddenCut(Method):
    """Settings of HiddenCut."""

    OFF: ClassVar = {"cut_weight": 0.0, "divergence_weight": 0.0}

    ratio: PositiveFraction = Field(
        default=0.1,
        description="Length of a span as a fraction of the real tokens, at least one token.",
    )
    candidates: PositiveFraction = Field(
        default=0.4,
        description="Fraction of the real tokens at which a span may begin: those with the most "
        "attention.",
    )
    cut_weight: Nonnegative = Field(default=1.0, description="Weight of the cut pass's loss.")
    divergence_weight: Nonnegative = Field(
        default=1.0, description="Weight of the Jensen-Shannon divergence, averaged over the rows."
    )
    special_tokens: bool = Field(
        default=True, description="Also cut special tokens such as [CLS] and [SEP]."
    )

    @property
    def cuts(self) -> bool:
        return bool(self.cut_weight or self.divergence_weight)

    def plan(self, now: Step) -> Plan:
        if not self.cuts:
            return Plan()
        return Plan(
            clean=True,
            task_weight=1.0,
            watch={"attention": _watch_attention},
            conflicts=frozenset({"sub-models"}),
        )

    def check_head(self, head: type[Head]) -> None:
        if self.cuts:
            # A cut token may be one that has a label.
            check_whole_text(self, head)

    def losses(self, step: StepContext) -> Iterator[Losses]:
        """Yield the clean loss, the loss of the cut pass and their divergence in one total."""
        clean, batch = step.clean, step.batch
        blocks = step.network.cuts(batch)
        free = step.network.movable(batch, special_tokens=self.special_tokens)
        spans_of_blocks = [  # a span for each block, [B, T]
            spans(
                attended,
                free,
                ratio=self.ratio,
                candidates=self.candidates,
                draws=generator(step.streams.local("cut", block), batch.device),
            )
            for block, attended in enumerate(blocks.scores)
        ]
        with blocks.cutting(spans_of_blocks):
            # The clean pass used the distributed wrapper, which allows one forward per backward.
            cut = step.logits("cut", wrapped=False)  # f(cut x), [B, U, C]
        lengths = torch.stack([span.sum() for span in spans_of_blocks]).float()
        step.notes["cut/fraction"] = lengths.mean() / batch.mask.sum()
        pair, weight = (clean.logits[0], cut), self.divergence_weight
        term = step.divergence(pair, "js", "mean", weight=weight, name="cut_divergence")

        def uncut() -> Tensor:
            whole = step.logits("cut", wrapped=False)
            return step.divergence_rows((clean.logits[0], whole), "js")

        if weight:
            step.note_dropout_fraction(term, uncut)
        task = step.task((cut,), name="cut", weight=self.cut_weight)
        yield [clean.task, *with_weight(task, term)]


def _watch_attention(step: StepContext) -> AbstractContextManager[None]:
    step.network.cuts(step.batch).watch(step.batch.mask)
    return nullcontext()


def spans(
    scores: Tensor, free: Tensor, *, ratio: float, candidates: float, draws: torch.Generator
) -> Tensor:
    """Draw one span of tokens for each example, as a boolean mask [B, T].

    A span has ``max(1, round(ratio n))`` of the n tokens that may be cut (``free`` [B, T]). It
    begins at one of the ``max(1, round(candidates n))`` tokens with the highest ``scores`` [B, T],
    such as attention, where it fits. A row without free tokens has no span.

    Example:
        >>> free = torch.tensor([[True, True, True, True, False]])
        >>> scores = torch.tensor([[0.1, 0.9, 0.2, 0.3, 5.0]])
        >>> spans(scores, free, ratio=0.5, candidates=0.25, draws=torch.Generator()).int()
        tensor([[0, 1, 1, 0, 0]], dtype=torch.int32)
    """
    index = free.cumsum(1) - 1  # of a token among those that may be cut, [B, T]
    count = free.sum(1, keepdim=True)  # n, [B, 1]
    length = (ratio * count).round().long().clamp(min=1)
    fits = free & (index <= count - length)
    best = (candidates * count).round().long().clamp(min=1)
    best = torch.minimum(best, fits.sum(1, keepdim=True).clamp(min=1))
    order = torch.where(fits, scores, -torch.inf).argsort(dim=1, descending=True, stable=True)
    uniform = torch.rand(len(scores), 1, generator=draws, device=scores.device)
    chosen = torch.minimum((uniform * best).long(), best - 1)
    begin = index.gather(1, order.gather(1, chosen))
    return free & (index >= begin) & (index < begin + length)
