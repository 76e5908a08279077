"""HiddenCut: a second pass without a span of tokens in every block, held to the clean one.

``L = CE(x) + cut_weight * CE(cut x) + divergence_weight * JS(P(x) || P(cut x))``. In every encoder
block the feed-forward output of one span of tokens is zeroed: ``max(1, round(ratio n))`` of the n
real tokens, beginning at one of the share ``candidates`` that the block attends to most.

Source: Chen et al., ACL 2021; released code SALT-NLP/HiddenCut@8ec0cc7. Differs: no forked model;
attention comes from the clean pass, padding is told by the attention mask and never cut, a span
always has its whole length, the cut pass keeps every dropout layer. Models are run with eager
attention, which gives the probabilities.
"""

from __future__ import annotations

from typing import ClassVar, Self

from pydantic import Field, FiniteFloat

from temper.forward import Clean, Coupling, Joint
from temper.forward.consistency import SpanCut
from temper.methods import Method, MethodConfig, Published, register


@register(
    "hidden_cut",
    summary="A pass without spans of attended tokens, held to the clean one",
    cost="6F (eager attention)",
    memory="activations of two passes",
    paper="Chen et al., ACL 2021",
    claims="sub-models",
)
class HiddenCut(MethodConfig):
    """Settings of HiddenCut.

    Args:
        ratio: Length of a span as a share of the real tokens, in (0, 1], at least one token.
        candidates: Share of the real tokens that a span may begin at, the most attended to, in
            (0, 1].
        cut_weight: Weight of the cut pass's loss.
        divergence_weight: Weight of the Jensen-Shannon divergence, the batch mean.
        special_tokens: Whether [CLS], [SEP] and the like may be cut too.
    """

    PUBLISHED: ClassVar[dict[str, Published]] = {
        "ratio": Published("0.1", "released code"),
        "candidates": Published("0.4", "released code"),
        "cut_weight": Published("1", "released code"),
        "divergence_weight": Published("1", "released code"),
        "train.learning_rate": Published("7e-6", "SST-2 script"),
        "train.batch_size": Published("16", "SST-2 script"),
        "train.epochs": Published("10", "SST-2 script"),
    }

    ratio: float = Field(default=0.1, gt=0.0, le=1.0, allow_inf_nan=False)
    candidates: float = Field(default=0.4, gt=0.0, le=1.0, allow_inf_nan=False)
    cut_weight: FiniteFloat = Field(default=1.0, ge=0.0)
    divergence_weight: FiniteFloat = Field(default=1.0, ge=0.0)
    special_tokens: bool = True

    def off(self) -> Self:
        """Switch the cut pass off."""
        return self._with(cut_weight=0.0, divergence_weight=0.0)

    def build(self) -> Method:
        """Return the method."""
        if not self.cut_weight and not self.divergence_weight:
            return Method("hidden_cut", self)
        cut = SpanCut(
            ratio=self.ratio,
            candidates=self.candidates,
            weight=self.cut_weight,
            coupling=Coupling(self.divergence_weight, "js", "mean"),
            special_tokens=self.special_tokens,
        )
        return Method("hidden_cut", self, Joint(Clean(weight=1.0), (cut,)))
