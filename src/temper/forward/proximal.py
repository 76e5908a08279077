"""The proximal term: the logits stay near those of an average of the weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from temper.forward.stage import Part, Stage
from temper.forward.terms import divergence_term
from temper.forward.virtual import clean_logits
from temper.functional.losses import Divergence
from temper.types import LossTerms, Reduction


@dataclass(frozen=True)
class Proximal(Part):
    """Hold the network near its own average: ``weight * D(f(x; w), f(x; w_ema))``.

    No gradient flows through the average, and its pass drops the units that the clean pass drops.

    Args:
        weight: Of the divergence.
        divergence: ``sym_kl`` or ``js``; the squared difference for a regression.
        reduction: Of the divergence over the rows.
        rule: Name of the update rule whose state holds the average under ``weights``.

    References:
        SMART (arXiv 1911.03437), momentum Bregman proximal point.
    """

    weight: float = 1.0
    divergence: Divergence = "sym_kl"
    reduction: Reduction = "mean"
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
        weights = self._average(stage)
        logits, stream = clean_logits(stage)
        with torch.no_grad():
            teacher = stage.logits(stream, weights=weights, wrapped=False)
        term = divergence_term(
            (logits, teacher),
            stage.batch,
            divergence=self.divergence,
            weight=self.weight,
            reduction=self.reduction,
            name="proximal",
        )
        yield LossTerms.of([term])

    def _average(self, stage: Stage) -> Mapping[str, Tensor]:
        held = stage.state[self.rule]["weights"]
        model = stage.network.model
        # The average is kept in single precision; a model in half takes it in its own.
        return {name: value.to(model.get_parameter(name).dtype) for name, value in held.items()}
