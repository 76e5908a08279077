"""Divergences over the last axis, in fp32 or fp64: nothing is divided by the batch.

Letters: B rows, C classes. Arguments are logits [B, C], results [B] in nats. Further axes before C
(units of a row) are kept.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

from temper.functional.precision import at_least_single
from temper.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

Divergence = Literal["js", "sym_kl"]


def _log_probabilities(logits: Tensor) -> Tensor:
    return torch.nn.functional.log_softmax(at_least_single(logits), -1)


def jensen_shannon(first: Tensor, second: Tensor) -> Tensor:
    """Compute the Jensen-Shannon divergence of each row with the mixture, in [0, ln 2].

    ``JS(P || Q) = (KL(P || M) + KL(Q || M)) / 2`` with ``M = (P + Q) / 2``.

    References:
        UEGR (arXiv 2503.16550), Eq. 4.
    """
    log_p, log_q = _log_probabilities(first), _log_probabilities(second)
    log_m = torch.logaddexp(log_p, log_q) - math.log(2.0)
    halves = log_p.exp() * (log_p - log_m) + log_q.exp() * (log_q - log_m)
    return 0.5 * halves.sum(-1)


def symmetric_kl(first: Tensor, second: Tensor) -> Tensor:
    """Compute half the sum of both Kullback-Leibler divergences of each row.

    ``symKL(p, q) = (KL(p || q) + KL(q || p)) / 2 = sum_c (p - q)(ln p - ln q) / 2``.

    References:
        R-Drop (NeurIPS 2021), section 2; R-AT (Findings of EMNLP 2022).
    """
    log_p, log_q = _log_probabilities(first), _log_probabilities(second)
    return 0.5 * ((log_p.exp() - log_q.exp()) * (log_p - log_q)).sum(-1)


def distillation(student: Tensor, teacher: Tensor, *, temperature: float = 1.0) -> Tensor:
    """Compute how far each row's softened prediction is from a teacher's.

    ``T^2 KL(softmax(t / T) || softmax(z / T))``, whose gradient w.r.t. the student's z keeps its
    size as T grows. The teacher's t may be log-probabilities.

    References:
        Hinton et al., arXiv 1503.02531, section 2.
    """
    log_p = _log_probabilities(teacher / temperature)
    log_q = _log_probabilities(student / temperature)
    return temperature**2 * (log_p.exp() * (log_p - log_q)).sum(-1)


def squared_difference(first: Tensor, second: Tensor) -> Tensor:
    """Compute the squared difference of two regression outputs [B, 1], row by row: [B]."""
    return (at_least_single(first) - at_least_single(second)).square().sum(-1)
