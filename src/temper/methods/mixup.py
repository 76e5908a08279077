"""Mixup: train on mixtures of two rows, with their losses mixed in the same ratio.

``L = clean_weight * CE(z_i, y_i) + weight * (q CE(z, y_i) + (1 - q) CE(z, y_j))``, with z the
logits of ``q x_i + (1 - q) x_j``. Here x are the word embeddings or the states before the last
linear layer, ``q ~ Beta(alpha, alpha)`` is drawn for each row i, and j is its partner in a random
permutation of the micro-batch.

Source: Guo et al., arXiv 1905.08941; Verma et al., ICML 2019 (manifold mixup). Differs:
docs/methods/mixup.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from pydantic import Field

from temper.forward import Losses, Plan, StepContext, plain
from temper.functional import norms
from temper.heads import Head
from temper.lazy import Tensor, torch
from temper.methods import Method, register
from temper.methods.bounds import Nonnegative, Positive
from temper.methods.method import check_whole_text
from temper.types import Batch, Step, Term

if TYPE_CHECKING:
    from temper.models.network import Network


@register(
    "mixup",
    summary="Mixtures of two rows, at the word embeddings or before the last layer",
    cost="3F (+3F with the clean loss at the words)",
    memory="none",
    paper="Guo et al., arXiv 1905.08941",
)
class MixupConfig(Method):
    """Settings of mixup."""

    OFF: ClassVar = {"weight": 0.0, "clean_weight": 1.0}

    weight: Nonnegative = Field(default=1.0, description="Weight of the loss on mixtures.")
    alpha: Positive = Field(
        default=0.4,
        description="Parameter > 0 of the Beta distribution of q. Small values leave most rows "
        "nearly unmixed; 1 is uniform.",
    )
    level: Literal["words", "pooled"] = Field(
        default="words",
        description="Where rows are mixed: `words`, the word embeddings, or `pooled`, the state "
        "that the last linear layer reads.",
    )
    clean_weight: Nonnegative = Field(
        default=0.0, description="Weight of the loss on the unmixed rows."
    )

    def check(self) -> None:
        super().check()
        if not self.weight and not self.clean_weight:
            raise ValueError(
                "weight and clean_weight are both 0, so nothing is minimized; set one above 0"
            )

    def plan(self, now: Step) -> Plan:
        if not self.weight:
            return plain(self.clean_weight)
        # Mixed logits belong to the clean total; mixed words need a further pass.
        pooled = self.level == "pooled"
        return Plan(clean=pooled, totals=int(not pooled), task_weight=self.clean_weight)

    def check_head(self, head: type[Head]) -> None:
        if self.weight:
            # Tags, positions or target tokens of two texts cannot be mixed.
            check_whole_text(self, head)

    def losses(self, step: StepContext) -> Iterator[Losses]:
        """Yield ``q CE(z, y_i) + (1 - q) CE(z, y_j)``."""
        labels, batch = step.labels, step.batch
        draws = np.random.default_rng(step.streams.local("mixup"))
        partner = torch.from_numpy(draws.permutation(batch.size)).to(batch.device)  # j, [B]
        q = torch.from_numpy(draws.beta(self.alpha, self.alpha, batch.size)).to(batch.device)  # [B]
        if self.level == "pooled":
            # The last layer is linear, so mixing its inputs equals mixing its logits [B, U, C].
            ratio = q.view(-1, 1, 1)
            mixed = tuple(torch.lerp(z[partner], z, ratio.to(z.dtype)) for z in step.clean.logits)
        else:
            longer, delta = mixed_words(step.network, batch, partner, q)
            mixed = (replace(step, batch=longer).logits("mixup", delta=delta, detached=True),)
        rows = [
            torch.lerp(step.task_rows(z, labels[partner]), step.task_rows(z, labels), q.to(z.dtype))
            for z in mixed
        ]
        step.notes["mixup/fraction"] = torch.maximum(q, 1 - q).mean()
        term = Term("mixup", torch.stack(rows).mean(0), self.weight, logits=mixed)
        yield [step.clean.task, term] if self.level == "pooled" else [term]


def mixed_words(
    network: Network, batch: Batch, partner: Tensor, ratios: Tensor
) -> tuple[Batch, Tensor]:
    """Mix the word embeddings of each row with those of its partner, token by token.

    Padding counts as zero. The longer row of each pair provides all other inputs: token types,
    positions, and the attention mask.

    Args:
        network: The model.
        batch: Rows to mix.
        partner: Index of each row's partner, [B].
        ratios: Weight q of the row itself, [B].

    Returns:
        A batch of the longer rows, and the delta [B, T, D] that turns their detached embeddings
        into the mixtures.
    """
    lengths = batch.mask.sum(1)  # [B]
    rows = torch.arange(batch.size, device=batch.device)
    longer = batch.take(torch.where(lengths >= lengths[partner], rows, partner))
    words = network.embeddings(batch, detached=False).to(network.delta_dtype)
    words = torch.where(batch.mask.unsqueeze(-1), words, 0.0)  # x, [B, T, D]
    base = norms.masked(network.embeddings(longer), longer.mask)
    q = ratios.to(words.dtype).view(-1, 1, 1)  # [B, 1, 1]
    return longer, q * words + (1 - q) * words[partner] - base
