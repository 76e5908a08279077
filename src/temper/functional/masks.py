"""Masks over weights: saliency to probability, probability to an unbiased draw.

A draw of probability p keeps an entry and divides it by p, so its mean is the entry itself. That
holds exactly only if the p that divides is the p that was drawn: p is rounded to q/65536 first
(16-bit draws).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

Orientation = Literal["prose", "printed"]
Normalise = Literal["rank", "range"]

LEVELS = 1 << 16
BUCKETS = 1 << 15


def keep_probability(
    saliency: Tensor, *, alpha: float, beta: float, orientation: Orientation = "prose"
) -> Tensor:
    """Turn a normalised saliency into the probability that an entry moves.

    ``p = sigmoid(2 beta (s - alpha))`` (prose: salient entries move); the printed Eq. 9 has the
    other sign.

    Args:
        saliency: s in [0, 1], any shape.
        alpha: Turning point in [0, 1]; about the fraction that is masked.
        beta: Sharpness, above 0.
        orientation: ``prose`` or ``printed``.

    Returns:
        p in (0, 1), the shape of ``saliency``.

    References:
        UEGR (arXiv 2503.16550), Eq. 9. Differs: the sign, see docs/methods/uegr.md.
    """
    sign = 2.0 if orientation == "prose" else -2.0
    return torch.sigmoid(sign * beta * (saliency - alpha))


def mean_keep_probability(alpha: float, beta: float) -> float:
    """Return the mean of p over uniform ranks: ``[ln(1+e^{2b(1-a)}) - ln(1+e^{-2ba})] / (2b)``.

    Example:
        >>> round(mean_keep_probability(0.6, 1.0), 4)
        0.4539
    """
    upper = math.log1p(math.exp(2 * beta * (1 - alpha)))
    return (upper - math.log1p(math.exp(-2 * beta * alpha))) / (2 * beta)


def quantise(probability: Tensor, *, p_min: float) -> Tensor:
    """Clamp a probability from below and round it to q/65536.

    Args:
        probability: Any shape, in [0, 1].
        p_min: Smallest probability that is used, in [0, 1]; at least 1/65536 is used in any case.

    Returns:
        q as int32 in [1, 65536].
    """
    steps = (probability.clamp(min=p_min).double() * LEVELS).round()
    return steps.clamp(1, LEVELS).to(torch.int32)


def random_levels(count: int, draws: torch.Generator) -> Tensor:
    """Draw uniform 16-bit integers.

    Four are cut from each 64-bit draw; the full signed range must be asked for, because the
    default one leaves the top bit, and so a quarter of the draws, one-sided.

    Returns:
        [count] int16, uniform over [-32768, 32767].
    """
    words = torch.empty((count + 3) // 4, dtype=torch.int64, device=draws.device)
    words.random_(-(1 << 63), None, generator=draws)
    return words.view(torch.int16)[:count]


def below(levels: Tensor, q: Tensor) -> Tensor:
    """Tell which 16-bit draws fall in a share q/65536.

    Args:
        levels: int16 from ``random_levels``.
        q: int32 in [1, 65536], broadcastable.

    Returns:
        Boolean; true with probability exactly q/65536.
    """
    return levels <= (q - (LEVELS // 2 + 1)).to(torch.int16)


def buckets_of(values: Tensor) -> Tensor:
    """Return the top 15 magnitude bits of fp32 values, which keep their order.

    They are the exponent and seven bits of the mantissa.

    Args:
        values: fp32, any shape. The sign is ignored.

    Returns:
        int32 in [0, 32767], the same shape; 0 only for zero (and magnitudes below 1e-40).
    """
    return values.view(torch.int32).bitwise_right_shift(16).bitwise_and_(BUCKETS - 1)


def thin(gradient: Tensor, q: Tensor, draws: torch.Generator, *, scale: bool) -> Tensor:
    """Keep each entry with probability q/65536 and divide what is kept by it.

    Args:
        gradient: Any shape.
        q: int32 [1, 65536], the gradient's shape.
        draws: Where the randomness comes from.
        scale: Whether to divide by the probability.

    Returns:
        ``m * g / p``, a new tensor.

    References:
        UEGR (arXiv 2503.16550), section IV-B; mean over draws is g (Theorem 1).
    """
    keep = below(random_levels(gradient.numel(), draws).view_as(gradient), q)
    kept = gradient * (LEVELS / q) if scale else gradient
    return torch.where(keep, kept, torch.zeros((), dtype=kept.dtype, device=kept.device))


def thin_by_bucket(
    gradient: Tensor, table: Tensor, draws: torch.Generator, *, scale: bool, chunk: int = 1 << 18
) -> Tensor:
    """Do what ``thin`` does with a probability for each magnitude bucket, in place.

    It works in pieces that stay in the processor's cache.

    Args:
        gradient: fp32, contiguous, any shape; overwritten.
        table: q of each bucket [32768], int32.
        draws: Where the randomness comes from.
        scale: Whether to divide by the probability.
        chunk: Entries worked on at a time.

    Returns:
        ``gradient``, holding ``m * g / p``.
    """
    threshold = (table - (LEVELS // 2 + 1)).to(torch.int16)
    factor = LEVELS / table.float()
    for piece in torch.split(gradient.view(-1), chunk):
        bucket = buckets_of(piece)
        drop = random_levels(piece.numel(), draws) > threshold.index_select(0, bucket)
        if scale:
            piece.mul_(factor.index_select(0, bucket))
        piece.masked_fill_(drop, 0.0)
    return gradient


def bucket_counts(tensors: Sequence[Tensor], *, chunk: int = 1 << 18) -> Tensor:
    """Count the non-zero entries of all tensors by magnitude bucket.

    Args:
        tensors: fp32 gradients of any shapes on one device.
        chunk: Entries counted at a time.

    Returns:
        [32768] int64; bucket 0 (zeros) is left out of the ranks and reads 0.
    """
    total = torch.zeros(BUCKETS, dtype=torch.int64, device=tensors[0].device)
    for tensor in tensors:
        for piece in torch.split(tensor.reshape(-1), chunk):
            total += torch.bincount(buckets_of(piece), minlength=BUCKETS)
    total[0] = 0
    return total


def bucket_ranks(counts: Tensor) -> Tensor:
    """Return each bucket's mid-rank in [0, 1] among the non-zero entries.

    Args:
        counts: [32768] from ``bucket_counts``.

    Returns:
        [32768] fp64.
    """
    before = counts.cumsum(0) - counts
    total = counts.sum().clamp(min=1)
    return (before.double() + counts.double() / 2) / total


def exact_ranks(values: Tensor) -> Tensor:
    """Rank magnitudes by sorting: the reference of the bucketed rank.

    Args:
        values: [n], non-zero entries only count; ties take their mid-rank.

    Returns:
        [n] fp64 in (0, 1); 0 for zeros.
    """
    size = values.abs().double()
    ordered = size[size > 0].sort().values
    if not len(ordered):
        return torch.zeros_like(size)
    low = torch.searchsorted(ordered, size, right=False)
    high = torch.searchsorted(ordered, size, right=True)
    return torch.where(size > 0, (low + high).double() / (2 * len(ordered)), 0.0)


def range_normalise(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Scale squared gradients to [0, 1] by their global smallest and largest value.

    References:
        UEGR (arXiv 2503.16550), Eq. 8, as printed.
    """
    largest = torch.stack([tensor.abs().max() for tensor in tensors]).max().float()
    largest = torch.where(largest > 0, largest, 1.0)
    shares = [(tensor.float() / largest).square() for tensor in tensors]
    low = torch.stack([share.min() for share in shares]).min()
    width = torch.where(low < 1, 1 - low, 1.0)
    return [(share - low) / width for share in shares]
