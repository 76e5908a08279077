"""Losses and divergences with one value per row, in fp32: nothing here is divided by the batch.

Letters: B rows, C classes, K sub-models.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, log_softmax

Divergence = Literal["js", "sym_kl"]


def task_loss(logits: Tensor, labels: Tensor, *, class_weights: Tensor | None = None) -> Tensor:
    """Compute each row's task loss: cross-entropy for class indices, squared error for floats.

    Args:
        logits: [B, C]; [B, 1] for a regression.
        labels: [B] int64 class indices, or [B] floating targets.
        class_weights: [C] factors on the rows of each class; not renormalised.

    Returns:
        [B] fp32.

    Example:
        >>> task_loss(torch.zeros(1, 2), torch.tensor([1]))
        tensor([0.6931])
    """
    if labels.is_floating_point():
        return (logits.float().reshape(labels.shape) - labels.float()).square()
    return cross_entropy(logits.float(), labels, weight=class_weights, reduction="none")


def jensen_shannon(first: Tensor, second: Tensor) -> Tensor:
    """Compute the Jensen-Shannon divergence of each row with the mixture, in [0, ln 2].

    ``JS(P || Q) = (KL(P || M) + KL(Q || M)) / 2`` with ``M = (P + Q) / 2``.

    Args:
        first: Logits [B, C].
        second: Logits [B, C].

    Returns:
        [B] fp32, in nats.

    References:
        UEGR (arXiv 2503.16550), Eq. 4.
    """
    log_p, log_q = log_softmax(first.float(), -1), log_softmax(second.float(), -1)
    log_m = torch.logaddexp(log_p, log_q) - torch.log(torch.tensor(2.0))
    halves = log_p.exp() * (log_p - log_m) + log_q.exp() * (log_q - log_m)
    return 0.5 * halves.sum(-1)


def symmetric_kl(first: Tensor, second: Tensor) -> Tensor:
    """Compute half the sum of both Kullback-Leibler divergences of each row.

    ``symKL(p, q) = (KL(p || q) + KL(q || p)) / 2 = sum_c (p - q)(ln p - ln q) / 2``.

    Args:
        first: Logits [B, C].
        second: Logits [B, C].

    Returns:
        [B] fp32, in nats.
    """
    log_p, log_q = log_softmax(first.float(), -1), log_softmax(second.float(), -1)
    return 0.5 * ((log_p.exp() - log_q.exp()) * (log_p - log_q)).sum(-1)


def squared_difference(first: Tensor, second: Tensor) -> Tensor:
    """Compute the squared difference of two regression outputs [B, 1], row by row: [B]."""
    return (first.float() - second.float()).square().sum(-1)


def pairwise_divergence(
    logits: Sequence[Tensor], *, divergence: Divergence, regression: bool = False
) -> Tensor:
    """Sum a divergence over all pairs of sub-models, row by row.

    ``sum_{l<k} D(P_l || P_k)``; for a regression D is the squared difference.

    Args:
        logits: K tensors [B, C].
        divergence: ``js`` or ``sym_kl``.
        regression: Whether the logits are values and not class scores.

    Returns:
        [B] fp32; zeros for K = 1.

    References:
        UEGR (arXiv 2503.16550), Eq. 4.
    """
    measure = {"js": jensen_shannon, "sym_kl": symmetric_kl}[divergence]
    if regression:
        measure = squared_difference
    total = logits[0].new_zeros(logits[0].shape[0], dtype=torch.float32)
    for later in range(1, len(logits)):
        for earlier in range(later):
            total = total + measure(logits[earlier], logits[later])
    return total
