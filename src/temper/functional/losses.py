"""Divergences between two passes, per row and in fp32 or fp64.

Letters: B rows, C classes. Arguments are logits [B, C] (or [B, U, C] with U units per row), results
[B] (or [B, U]) in nats, without a reduction.
"""

from __future__ import annotations

import math
from typing import Literal

from temper.functional.precision import at_least_single
from temper.lazy import Tensor, torch

Divergence = Literal["js", "sym_kl"]


def _log_probabilities(logits: Tensor) -> Tensor:
    return torch.nn.functional.log_softmax(at_least_single(logits), -1)


def jensen_shannon(first: Tensor, second: Tensor) -> Tensor:
    """Compute the Jensen-Shannon divergence of each row, in [0, ln 2].

    ``JS(P || Q) = (KL(P || M) + KL(Q || M)) / 2`` with ``M = (P + Q) / 2``.

    References:
        UEGR (arXiv 2503.16550), Eq. 4.
    """
    log_p, log_q = _log_probabilities(first), _log_probabilities(second)
    log_m = torch.logaddexp(log_p, log_q) - math.log(2.0)
    halves = log_p.exp() * (log_p - log_m) + log_q.exp() * (log_q - log_m)
    return 0.5 * halves.sum(-1)


def symmetric_kl(first: Tensor, second: Tensor) -> Tensor:
    """Compute the symmetric KL divergence of each row, the mean of both directions.

    ``symKL(p, q) = (KL(p || q) + KL(q || p)) / 2 = sum_c (p - q)(ln p - ln q) / 2``.

    References:
        R-Drop (NeurIPS 2021), section 2; R-AT (Findings of EMNLP 2022).
    """
    log_p, log_q = _log_probabilities(first), _log_probabilities(second)
    return 0.5 * ((log_p.exp() - log_q.exp()) * (log_p - log_q)).sum(-1)


def distillation(student: Tensor, teacher: Tensor, *, temperature: float = 1.0) -> Tensor:
    """Compute the distillation loss of each row at a temperature T.

    ``T^2 KL(softmax(t / T) || softmax(z / T))``, with the logits t of the teacher (or its
    log-probabilities) and z of the student. The factor ``T^2`` keeps the gradient's size
    independent of T.

    References:
        Hinton et al., arXiv 1503.02531, section 2.
    """
    log_p = _log_probabilities(teacher / temperature)
    log_q = _log_probabilities(student / temperature)
    return temperature**2 * (log_p.exp() * (log_p - log_q)).sum(-1)


def squared_difference(first: Tensor, second: Tensor) -> Tensor:
    """Compute the squared difference of two regression outputs, [B, 1] to [B]."""
    return (at_least_single(first) - at_least_single(second)).square().sum(-1)
