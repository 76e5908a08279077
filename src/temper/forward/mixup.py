"""Mixup: rows of a batch are mixed in pairs, and so are their losses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from temper.forward.stage import Part, Stage, labels_of
from temper.functional import norms
from temper.models.network import Network
from temper.types import Batch, LossTerms, Term

MixedLevel = Literal["words", "pooled"]


@dataclass(frozen=True)
class Mixup(Part):
    """Train on mixtures of two rows: ``q CE(z, y_i) + (1 - q) CE(z, y_j)``, z the mixture's logits.

    q ~ Beta(alpha, alpha) for each row i, and j is its partner under a random permutation of the
    micro-batch. At the ``words`` the mixture's embeddings are ``q x_i + (1 - q) x_j``, and one pass
    of its own runs on them. At the ``pooled`` state what goes into the last linear layer is mixed,
    which is to mix its logits: ``z = q z_i + (1 - q) z_j`` of the clean pass.

    Args:
        weight: Of the term.
        alpha: Of the Beta distribution, above 0.
        level: What is mixed.

    References:
        Guo et al., arXiv 1905.08941 (wordMixup, senMixup); Verma et al., ICML 2019.
    """

    weight: float
    alpha: float = 0.4
    level: MixedLevel = "words"

    terms = ("mixup",)

    @property
    def joint(self) -> bool:  # type: ignore[override]
        """Whether it reads the clean logits."""
        return self.level == "pooled"

    @property
    def clean(self) -> bool:  # type: ignore[override]
        """Whether it needs the clean pass."""
        return self.level == "pooled"

    def losses(self, stage: Stage) -> Iterator[LossTerms]:
        """Yield the term."""
        labels = labels_of(stage.batch)
        draws = np.random.default_rng(stage.rng.local("mixup"))
        device = stage.batch.device
        partner = torch.from_numpy(draws.permutation(stage.batch.size)).to(device)
        shares = torch.from_numpy(draws.beta(self.alpha, self.alpha, stage.batch.size)).to(device)
        if self.level == "pooled":
            share = shares.unsqueeze(1)
            mixed = tuple(torch.lerp(z[partner], z, share.to(z.dtype)) for z in stage.clean.logits)
        else:
            batch, delta = mixed_words(stage.network, stage.batch, partner, shares)
            mixed = (replace(stage, batch=batch).logits("mixup", delta=delta, detached=True),)
        loss = partial(stage.network.task_loss, smoothing=stage.smoothing)
        rows = [
            torch.lerp(loss(z, labels=labels[partner]), loss(z, labels=labels), shares.to(z.dtype))
            for z in mixed
        ]
        term = Term("mixup", torch.stack(rows).mean(0), self.weight, logits=mixed)
        yield LossTerms.of([term], {"mixup/share": torch.maximum(shares, 1 - shares).mean()})


def mixed_words(
    network: Network, batch: Batch, partner: Tensor, shares: Tensor
) -> tuple[Batch, Tensor]:
    """Mix the word embeddings of each row with those of its partner.

    Rows are laid over each other token by token as they stand in the batch. Where one of them is
    padding it counts as zero, and the mixture is as long as the longer of the two, from which comes
    all that the model reads beside the embeddings: token types, positions, where the text ends.

    Args:
        network: Gives the embeddings.
        batch: B rows.
        partner: Position of each row's partner [B].
        shares: Share of the row itself in the mixture, [B].

    Returns:
        The rows in whose place the mixtures are fed, and what must be added to their embeddings,
        cut off from the graph, to have the mixtures' [B, T, D].
    """
    own = batch.mask
    lengths = own.sum(1)
    places = torch.arange(batch.size, device=batch.device)
    fed = batch.take(torch.where(lengths >= lengths[partner], places, partner))
    words = network.embeddings(batch, detached=False).to(network.delta_dtype)
    words = torch.where(own.unsqueeze(-1), words, 0.0)
    base = norms.masked(network.embeddings(fed), fed.mask)
    share = shares.to(words.dtype).view(-1, 1, 1)
    return fed, share * words + (1 - share) * words[partner] - base
