"""Masks over weights: saliency to probability, probability to an unbiased draw.

A draw of probability p keeps an entry and divides it by p, so its mean is the entry itself. That
holds exactly only if the p that divides is the p that was drawn: p is rounded to q/65536 first
(16-bit draws, q as int32), or to q/2^32 where it may be tiny (32-bit draws, q as int64). A mask
that must be kept is rounded further, to one of 255 such q, and takes one byte an entry.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Literal

from temper.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

Orientation = Literal["prose", "printed"]
Normalize = Literal["rank", "range"]

LEVELS = 1 << 16
FINE_LEVELS = 1 << 32
BUCKETS = 1 << 15
CHUNK_ON_DEVICE = 1 << 24
CODES = 256
"""Number of codes of one byte: 0 for dropped entries, 1 to 255 for probabilities."""


def keep_probability(
    saliency: Tensor, *, alpha: float, beta: float, orientation: Orientation = "prose"
) -> Tensor:
    """Turn a normalized saliency into the probability that an entry moves.

    ``p = sigmoid(2 beta (s - alpha))`` of the saliency s in [0, 1] (prose: salient entries move);
    the printed Eq. 9 has the other sign. About the fraction alpha is masked; beta > 0 is the
    sharpness.

    References:
        UEGR (arXiv 2503.16550), Eq. 9. Differs: the sign, see docs/methods/uegr.md.
    """
    sign = 2.0 if orientation == "prose" else -2.0
    return torch.sigmoid(sign * beta * (saliency - alpha))


def quantize(probability: Tensor, *, p_min: float, levels: int = LEVELS) -> Tensor:
    """Clamp a probability from below and round it to q/levels, with q in [1, levels].

    q is int32, or int64 for `FINE_LEVELS`; at least 1 even if ``p_min`` is 0.
    """
    steps = (probability.clamp(min=p_min).double() * levels).round()
    return steps.clamp(1, levels).to(torch.int32 if levels == LEVELS else torch.int64)


def levels_of(q: Tensor) -> int:
    """Return the number of levels of a ``quantize``d probability, which its type decides."""
    return LEVELS if q.dtype == torch.int32 else FINE_LEVELS


def random_levels(count: int, draws: torch.Generator) -> Tensor:
    """Draw uniform 16-bit integers, [count] int16."""
    words = torch.empty((count + 3) // 4, dtype=torch.int64, device=draws.device)
    # The default range leaves the top bit, and so a quarter of the draws, one-sided.
    words.random_(-(1 << 63), None, generator=draws)
    return words.view(torch.int16)[:count]


def keyed_levels(
    count: int,
    key: int,
    *,
    start: int = 0,
    levels: int = LEVELS,
    device: torch.device | str = "cpu",
) -> Tensor:
    """Draw uniform 16-bit or 32-bit integers that depend only on a key and their position, [count].

    So a mask is the same in any pieces, order or shards, and on every device. A 32-bit word is a
    hash of its number and the key: two draws of `LEVELS`, one of `FINE_LEVELS`. Draws of two keys
    in [0, 2^63) are independent. Positions repeat after 2^32 words.

    References:
        Wellons' hash triple32 (github.com/skeeto/hash-prospector), after a round for the key.
    """
    return _keyed([(count, key, start)], levels=levels, device=device)


def pieces_with_draws(
    tensors: Sequence[Tensor],
    keys: Sequence[int],
    starts: Sequence[int],
    *,
    levels: int = LEVELS,
    chunk: int = 1 << 18,
) -> Iterator[tuple[list[Tensor], Tensor]]:
    """Yield groups of pieces of contiguous tensors, as flat views, with the draws of their entries.

    Each tensor has a key and the position of its first entry, as in `keyed_levels`. A group has at
    most ``chunk`` entries, few enough to stay in the processor's cache; on a GPU groups are larger.
    """
    flat, device = [tensor.view(-1) for tensor in tensors], tensors[0].device
    # On a CPU, keys for each word cost more time than the calls that a group saves.
    for group in _groups(flat, chunk, join=wants_few_kernels(device)):
        pieces = [flat[index][first : first + count] for index, first, count in group]
        spans = [(count, keys[index], starts[index] + first) for index, first, count in group]
        yield pieces, _keyed(spans, levels=levels, device=device)


def wants_few_kernels(device: torch.device) -> bool:
    """Return whether few kernels matter more than the cache: on a GPU."""
    return device.type != "cpu"


def _groups(
    flat: Sequence[Tensor], chunk: int, *, join: bool
) -> Iterator[list[tuple[int, int, int]]]:
    """Yield groups of at most ``chunk`` entries: index of the vector, first entry, entries.

    A vector is cut only if it has more. Without ``join`` a group has one piece.
    """
    if flat and wants_few_kernels(flat[0].device):
        chunk = max(chunk, CHUNK_ON_DEVICE)
    group: list[tuple[int, int, int]] = []
    room = chunk
    for index, vector in enumerate(flat):
        for first in range(0, len(vector), chunk):
            count = min(chunk, len(vector) - first)
            if group and (count > room or not join):
                yield group
                group, room = [], chunk
            group.append((index, first, count))
            room -= count
    if group:
        yield group


def _keyed(
    spans: Sequence[tuple[int, int, int]], *, levels: int, device: torch.device | str
) -> Tensor:
    """Return the draws of several (count, key, start), one after the other.

    The number of kernels does not depend on the number of spans.
    """
    lanes = 2 if levels == LEVELS else 1
    rows, cuts, total = [], [], 0
    for count, key, start in spans:
        first, end = start // lanes, (start + count + lanes - 1) // lanes
        rows.append((_signed(first - total), _signed(key), _signed(key >> 32), end - first))
        cuts.append(slice(lanes * total + start % lanes, lanes * total + start % lanes + count))
        total += end - first
    words = torch.arange(total, dtype=torch.int32, device=device)
    if len(rows) == 1:
        _hashed(words, *rows[0][:3])
    else:
        # A copy that does not block: a GPU's queue never runs empty.
        table = torch.tensor(rows, dtype=torch.int32).T.to(device, non_blocking=True)
        _hashed(words, *table[:3].repeat_interleave(table[3], dim=1, output_size=total))
    drawn = words.view(torch.int16) if lanes == 2 else words
    return _joined([drawn[cut] for cut in cuts])


def _joined(vectors: Sequence[Tensor]) -> Tensor:
    return vectors[0] if len(vectors) == 1 else torch.cat(list(vectors))


def _signed(word: int) -> int:
    """Return the int32 that has the low 32 bits of a number."""
    return ((word + (1 << 31)) & 0xFFFFFFFF) - (1 << 31)


def _hashed(words: Tensor, shift: Tensor | int, low: Tensor | int, high: Tensor | int) -> Tensor:
    """Shift the numbers of words and hash them with the two halves of a key, in place."""
    words.add_(shift).bitwise_xor_(low)
    _folded(words, 16).mul_(_signed(0x21F0AAAD)).add_(high)
    _folded(words, 17).mul_(_signed(0xED5AD4BB))
    _folded(words, 11).mul_(_signed(0xAC4C1B51))
    _folded(words, 15).mul_(_signed(0x31848BAB))
    return _folded(words, 14)


def _folded(words: Tensor, by: int) -> Tensor:
    """Add (without carry) the high bits to the low ones, in place; int32 shifts repeat the sign."""
    return words.bitwise_xor_(words.bitwise_right_shift(by).bitwise_and_((1 << (32 - by)) - 1))


def highest_kept(q: Tensor) -> Tensor:
    """Return the largest draw that is kept with probability q/levels; see `keyed_levels`."""
    kind = torch.int16 if q.dtype == torch.int32 else torch.int32
    return (q - (levels_of(q) // 2 + 1)).to(kind)


def below(levels: Tensor, q: Tensor) -> Tensor:
    """Return which draws are kept, each with probability exactly q/levels."""
    return levels <= highest_kept(q)


def buckets_of(values: Tensor) -> Tensor:
    """Return the top 15 magnitude bits of fp32 values, which keep their order: int32 in [0, 32767].

    They are the exponent and seven bits of the mantissa; 0 only for zero and magnitudes below
    1e-40.
    """
    return values.view(torch.int32).bitwise_right_shift(16).bitwise_and_(BUCKETS - 1)


def thin(gradient: Tensor, q: Tensor, key: int, *, start: int = 0, scale: bool) -> Tensor:
    """Keep each entry with probability q/levels and divide kept entries by it: ``m * g / p``.

    ``start`` is the position of the first entry if the gradient is a part of a larger one. Without
    ``scale`` nothing is divided.

    References:
        UEGR (arXiv 2503.16550), section IV-B; mean over draws is g (Theorem 1).
    """
    levels = levels_of(q)
    drawn = keyed_levels(gradient.numel(), key, start=start, levels=levels, device=gradient.device)
    keep = below(drawn.view_as(gradient), q)
    kept = gradient * (levels / q) if scale else gradient
    return torch.where(keep, kept, torch.zeros((), dtype=kept.dtype, device=kept.device))


def bucket_factors(table: Tensor) -> Tensor:
    """Return 1/p of each bucket, [32768] fp32 (fp64 for `FINE_LEVELS`), for `thin_by_bucket`."""
    levels = levels_of(table)
    return (levels / table.double()).to(torch.float32 if levels == LEVELS else torch.float64)


def thin_by_bucket(
    gradients: Sequence[Tensor],
    factors: Tensor,
    keys: Sequence[int],
    *,
    starts: Sequence[int] | None = None,
    scale: bool,
    chunk: int = 1 << 18,
) -> None:
    """Apply ``thin`` with a probability for each magnitude bucket, in place: ``m * g / p``.

    It works in groups of pieces (see `pieces_with_draws`), and looks up one number per entry: the
    factor 1/p, by which the draw is also multiplied. For u from 0 to levels - 1, ``u < q`` is
    equivalent to ``u * (levels / q) < levels - 1/2`` even if the product is rounded.

    Gradients are fp32, contiguous and on one device; for keys and starts see `pieces_with_draws`.
    """
    dtype = factors.dtype
    levels = LEVELS if dtype == torch.float32 else FINE_LEVELS
    starts = [0] * len(gradients) if starts is None else starts
    for pieces, drawn in pieces_with_draws(gradients, keys, starts, levels=levels, chunk=chunk):
        entries = _joined(pieces)
        factor = factors.index_select(0, buckets_of(entries))
        # Boolean masks take several times as long as numbers.
        kept = drawn.to(dtype).add_(levels // 2).mul_(factor)
        torch.lt(kept, levels - 0.5, out=kept)
        entries.mul_(kept.mul_(factor) if scale else kept)
        if len(pieces) > 1:
            torch._foreach_copy_(pieces, torch.split(entries, [len(piece) for piece in pieces]))


def spaced_levels(*, p_min: float) -> Tensor:
    """Return 255 geometrically spaced probabilities, so that one byte per entry is enough.

    They run from the smallest one used to 1, as fractions of 2^32. A probability is rounded to the
    nearest of them, and the rounded value is used for the draw *and* the division, which keeps the
    mean of ``m * g / p`` at g. p itself changes by at most 1.4% with a ``p_min`` of 1e-3, and by
    4.5% without one (if it is above 1e-6).

    Returns:
        q by code [256] int64, ascending; entry 0, the code of dropped entries, is 0.
    """
    smallest = torch.tensor(p_min, dtype=torch.float64)
    low = int(quantize(smallest, p_min=p_min, levels=FINE_LEVELS))
    steps = torch.arange(CODES - 1, dtype=torch.float64) / (CODES - 2)
    spaced = low * torch.exp2(steps * (math.log2(FINE_LEVELS) - math.log2(low)))
    return torch.cat([torch.zeros(1), spaced.round().clamp(low, FINE_LEVELS)]).to(torch.int64)


def nearest_codes(q: Tensor, table: Tensor) -> Tensor:
    """Return the codes, uint8 in [1, 255], of the nearest probabilities in `spaced_levels`."""
    # The border of two neighbors is the geometric mean, because the relative error matters.
    spaced = table[1:].double()
    ends = (spaced[:-1] * spaced[1:]).sqrt()
    return (torch.bucketize(q.double(), ends) + 1).to(torch.uint8)


def drop_codes(
    codes: Tensor, table: Tensor, key: int, *, start: int = 0, chunk: int = 1 << 18
) -> Tensor:
    """Draw a mask: keep each code with its probability and set the others to 0, in place.

    The codes must be contiguous; for ``key`` and ``start`` see `keyed_levels`.
    """
    threshold = highest_kept(table)
    pieces = pieces_with_draws([codes], [key], [start], levels=FINE_LEVELS, chunk=chunk)
    for (piece,), drawn in pieces:
        piece.masked_fill_(drawn > threshold.index_select(0, piece.int()), 0)
    return codes


def thin_by_code(
    gradient: Tensor, codes: Tensor, table: Tensor, *, scale: bool, chunk: int = 1 << 18
) -> Tensor:
    """Apply a mask of `drop_codes` in place, by one multiplication by a factor of 256.

    The gradient is fp32 and contiguous. Without ``scale`` kept entries are not divided by p.
    """
    factor = (table > 0).to(gradient.dtype)
    if scale:
        factor[1:] = (FINE_LEVELS / table[1:].double()).to(gradient.dtype)
    pieces = torch.split(gradient.view(-1), chunk)
    for piece, named in zip(pieces, torch.split(codes.view(-1), chunk), strict=True):
        piece.mul_(factor.index_select(0, named.int()))
    return gradient


SAMPLED_FROM = 1 << 17
"""Minimum number of entries of a tensor to count magnitudes by a sample."""
STEPS = (11, 13)
"""Possible strides of a sample; one is chosen that covers all positions of a row."""


def bucket_counts(
    tensors: Sequence[Tensor],
    *,
    parts: Sequence[tuple[int, torch.Size]] | None = None,
    chunk: int = 1 << 18,
) -> Tensor:
    """Count the non-zero entries of all tensors by magnitude bucket, [32768] int64.

    In a tensor of `SAMPLED_FROM` entries or more, every 11th entry is counted 11 times (every 13th
    if the length of a row is a multiple of 11). The error of a rank is then about
    ``1/2 sqrt(11/n)``: 0.5% for the smallest n, 0.05% for ten million; a bucket is some 0.3% wide.
    That changes the probabilities p slightly, and the masked gradient ``m * g / p`` stays unbiased.

    ``parts`` has the position of the first entry and the larger tensor's shape for tensors that are
    parts; the counts of parts add up to those of the whole. Bucket 0 (zeros) is left out of the
    ranks and reads 0.
    """
    total = torch.zeros(BUCKETS, dtype=torch.int64, device=tensors[0].device)
    parts = [(0, tensor.shape) for tensor in tensors] if parts is None else parts
    samples: dict[int, list[Tensor]] = {}
    for tensor, (start, shape) in zip(tensors, parts, strict=True):
        every = _sampled_every(shape)
        samples.setdefault(every, []).append(tensor.reshape(-1)[-start % every :: every])
    for every, flat in samples.items():
        for group in _groups(flat, chunk, join=True):
            entries = _joined([flat[index][first:][:count] for index, first, count in group])
            # A bincount waits for the device, so there are few.
            counts = torch.bincount(buckets_of(entries).long(), minlength=BUCKETS)
            total.add_(counts, alpha=every)
    total[0] = 0
    return total


def _sampled_every(shape: torch.Size) -> int:
    if shape.numel() < SAMPLED_FROM:
        return 1
    # With a common factor, the sample would miss some positions of a row.
    return next((step for step in STEPS if shape[1:].numel() % step), 1)


def bucket_ranks(counts: Tensor) -> Tensor:
    """Return each bucket's mid-rank in [0, 1] among the non-zero entries, [32768] fp64."""
    before = counts.cumsum(0) - counts
    total = counts.sum().clamp(min=1)
    return (before.double() + counts.double() / 2) / total


def range_normalize(
    tensors: Sequence[Tensor],
    *,
    largest: Callable[[Tensor], Tensor] = lambda values: values.max(),
) -> list[Tensor]:
    """Scale squared gradients by their global extremes: ``(g^2 - min) / (max - min)`` in fp32.

    ``largest`` returns a maximum over all processes if the gradients are shards.

    References:
        UEGR (arXiv 2503.16550), Eq. 8. Differs: as printed it does not take the smallest away.
    """
    full = [tensor.abs().float() for tensor in tensors if tensor.numel()]
    most = largest(torch.stack([tensor.max() for tensor in full]))
    most = torch.where(most > 0, most, 1.0)
    fractions = [(tensor.float() / most).square() for tensor in tensors]
    # Squares and quotients keep the order, so this is the smallest value.
    low = (-largest(torch.stack([-tensor.min() for tensor in full])) / most).square()
    width = torch.where(low < 1, 1 - low, 1.0)
    return [(fraction - low) / width for fraction in fractions]


MANY_ROWS = 8192
"""Minimum number of rows for which the search is worth a pass; only vocabularies have so many."""


def touched_rows(
    gradient: Tensor,
    whole: torch.Size | None = None,
    *,
    counted: Callable[[int], int] = int,
) -> Tensor | None:
    """Find the rows of a tall matrix whose gradient is not zero.

    A batch touches a few hundred words of tens of thousands. Values that are zero where the
    gradient is zero need not be computed, copied or drawn for the others.

    ``whole`` is the shape of the matrix of which this is a shard; ``counted`` converts the number
    of touched rows of the shard to that of the matrix. The indices [n] are ascending; None if all
    rows count: for fewer than `MANY_ROWS` rows, for other than two axes, and if more than half of
    the rows are touched. A row whose entries are all below 1e-22 (their squares vanish in fp32)
    counts as zero; one that is not finite counts as touched.
    """
    whole = gradient.shape if whole is None else whole
    if len(whole) != 2 or whole[0] < MANY_ROWS:
        return None
    single = torch.promote_types(gradient.dtype, torch.float32)
    norms = torch.linalg.vector_norm(gradient, dim=1, dtype=single)
    rows = norms.nonzero().squeeze(1)
    return rows if 2 * counted(len(rows)) <= whole[0] else None
