"""The losses of one unit, written from their equations in plain Python floats (float64)."""

from __future__ import annotations

import math
from collections.abc import Sequence


def softmax(scores: Sequence[float]) -> list[float]:
    largest = max(scores)
    exponentials = [math.exp(score - largest) for score in scores]
    return [each / math.fsum(exponentials) for each in exponentials]


def log_softmax(scores: Sequence[float]) -> list[float]:
    largest = max(scores)
    normalizer = largest + math.log(math.fsum(math.exp(score - largest) for score in scores))
    return [score - normalizer for score in scores]


def cross_entropy(
    scores: Sequence[float],
    label: int,
    weights: Sequence[float] | None = None,
    smoothing: float = 0.0,
) -> float:
    """``-sum_c w_c q_c log p_c`` with ``q = (1 - s) onehot(y) + s / C``."""
    classes = len(scores)
    target = [smoothing / classes + (1 - smoothing) * (c == label) for c in range(classes)]
    by_class = zip(weights or [1.0] * classes, target, log_softmax(scores), strict=True)
    return -math.fsum(w * q * log_p for w, q, log_p in by_class)


def binary_cross_entropy(score: float, label: int) -> float:
    """``-y log s(z) - (1 - y) log(1 - s(z))`` with the sigmoid s."""
    probability = 1 / (1 + math.exp(-score))
    return -math.log(probability if label else 1 - probability)


def kl(first: Sequence[float], second: Sequence[float]) -> float:
    """``sum_c p_c log(p_c / q_c)`` of probabilities; 0 log 0 is 0."""
    pairs = zip(first, second, strict=True)
    return math.fsum(p * math.log(p / q) for p, q in pairs if p > 0)


def js(first: Sequence[float], second: Sequence[float]) -> float:
    """``(KL(P || M) + KL(Q || M)) / 2`` with ``M = (P + Q) / 2``."""
    p, q = softmax(first), softmax(second)
    middle = [(a + b) / 2 for a, b in zip(p, q, strict=True)]
    return (kl(p, middle) + kl(q, middle)) / 2


def sym_kl(first: Sequence[float], second: Sequence[float]) -> float:
    """``(KL(P || Q) + KL(Q || P)) / 2``."""
    p, q = softmax(first), softmax(second)
    return (kl(p, q) + kl(q, p)) / 2


def distillation(student: Sequence[float], teacher: Sequence[float], temperature: float) -> float:
    """``T^2 KL(softmax(t / T) || softmax(z / T))``."""
    softened = ([score / temperature for score in scores] for scores in (teacher, student))
    return temperature**2 * kl(*(softmax(scores) for scores in softened))
