"""HiddenCut: a second pass with a span of tokens cut in every block, and a consistency loss.

``L = CE(x) + cut_weight * CE(cut x) + divergence_weight * JS(P(x) || P(cut x))``. In every encoder
block the feed-forward output of one span of tokens is zeroed: ``max(1, round(ratio n))`` of the n
real tokens, beginning at one of the fraction ``candidates`` that the block attends to most.

Source: Chen et al., ACL 2021; released code SALT-NLP/HiddenCut@8ec0cc7. Differs: no forked model;
attention comes from the clean pass, padding is identified by the attention mask and never cut,
a span always has its full length, and the cut pass keeps every dropout layer. Models run with
eager attention, which returns the attention probabilities.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field, FiniteFloat

from temper.forward import Losses, Plan, StepContext, with_weight
from temper.heads import Head
from temper.lazy import torch
from temper.methods import Method, register
from temper.methods.method import check_whole_text
from temper.seeding import generator
from temper.types import Step

if TYPE_CHECKING:
    from torch import Tensor


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

    ratio: float = Field(
        default=0.1,
        gt=0.0,
        le=1.0,
        allow_inf_nan=False,
        description="Length of a span as a fraction of the real tokens, at least one token.",
    )
    candidates: float = Field(
        default=0.4,
        gt=0.0,
        le=1.0,
        allow_inf_nan=False,
        description="Fraction of the real tokens at which a span may begin, those with the most "
        "attention.",
    )
    cut_weight: FiniteFloat = Field(
        default=1.0, ge=0.0, description="Weight of the cut pass's loss."
    )
    divergence_weight: FiniteFloat = Field(
        default=1.0, ge=0.0, description="Weight of the Jensen-Shannon divergence, the batch mean."
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
            # The cut tokens may be labeled ones.
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
            # The clean pass went through the distributed wrapper, which waits for one forward only.
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
    """Draw one span of tokens for each example.

    Of n tokens that may be cut, a span has ``max(1, round(ratio n))`` consecutive ones. It begins
    at one of the ``max(1, round(candidates n))`` tokens with the highest scores among those at
    which it fits, drawn uniformly. ``scores`` has how much each token was attended to, ``free`` the
    tokens that may be cut, both [B, T]. The result has their shape, and is all false in a row that
    has none.

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
