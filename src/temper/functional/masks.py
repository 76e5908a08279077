"""Random masks over gradients: from saliency to probability, and unbiased draws.

An entry g is kept with probability p and then divided by p, so its mean over draws is g. This is
exact only if both use the same p. So p is first rounded to ``q / levels``: q/65536 (16-bit draws, q
is int32), or q/2^32 if p may be tiny (32-bit draws, q is int64). Stored masks use one byte per
entry, which encodes one of 255 such q.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

from temper.lazy import Tensor, torch

Orientation = Literal["prose", "printed"]
Normalize = Literal["rank", "range"]

LEVELS = 1 << 16
FINE_LEVELS = 1 << 32
BUCKETS = 1 << 15
CHUNK = 1 << 18
"""Entries that are processed at once; they fit in a CPU core's cache."""
CHUNK_ON_DEVICE = 1 << 24
"""The same on a GPU, where larger chunks save kernel launches."""
CODES = 256
"""Number of one-byte codes: 0 for dropped entries, 1 to 255 for probabilities."""


def keep_probability(
    saliency: Tensor, *, alpha: float, beta: float, orientation: Orientation = "prose"
) -> Tensor:
    """Return the probability of keeping each gradient entry, from its normalized saliency.

    ``p = sigmoid(2 beta (s - alpha))`` with the saliency s in [0, 1]: entries with a larger
    saliency are kept more often. About the fraction alpha is dropped; beta > 0 is the sharpness.
    The orientation ``prose`` follows the paper's text; ``printed`` is Eq. 9 as printed, which has
    the opposite sign.

    References:
        UEGR (arXiv 2503.16550), Eq. 9. Differs: the sign, see docs/methods/uegr.md.
    """
    sign = 2.0 if orientation == "prose" else -2.0
    return torch.sigmoid(sign * beta * (saliency - alpha))


def quantize(probability: Tensor, *, p_min: float, levels: int = LEVELS) -> Tensor:
    """Clamp a probability to at least ``p_min`` and round it to q/levels; return q in [1, levels].

    q is int32 for `LEVELS` and int64 for `FINE_LEVELS`.
    """
    steps = (probability.clamp(min=p_min).double() * levels).round()
    return steps.clamp(1, levels).to(torch.int32 if levels == LEVELS else torch.int64)


def levels_of(q: Tensor) -> int:
    """Return the number of levels of a ``quantize``d probability, from its dtype."""
    return LEVELS if q.dtype == torch.int32 else FINE_LEVELS


def random_levels(count: int, draws: torch.Generator) -> Tensor:
    """Draw uniform 16-bit integers, [count] int16."""
    words = torch.empty((count + 3) // 4, dtype=torch.int64, device=draws.device)
    # The default range is [0, 2^63): the top bit, and so the sign of every fourth draw, would be 0.
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
    """Return pseudorandom integers that depend only on a key and their position, [count].

    So a mask is the same on every device and for every split into pieces or shards. They are
    uniform int16 (`LEVELS`) or int32 (`FINE_LEVELS`) from position ``start`` on. Each 32-bit word
    is a hash of its position and the key. Keys are in [0, 2^63) and independent. The sequence
    repeats after 2^32 words.

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
    chunk: int = CHUNK,
) -> Iterator[tuple[list[Tensor], Tensor]]:
    """Yield contiguous tensors in groups of flat views, each group with its random integers.

    Each tensor has a key and a start, see `keyed_levels`. A group has at most ``chunk`` entries,
    which fit into the CPU's cache. On a GPU groups are larger.
    """
    flat, device = [tensor.view(-1) for tensor in tensors], tensors[0].device
    # On a CPU, joining tensors (a key for each word) costs more time than it saves in calls.
    for group in _groups(flat, chunk, join=wants_few_kernels(device)):
        pieces = [flat[index][first : first + count] for index, first, count in group]
        spans = [(count, keys[index], starts[index] + first) for index, first, count in group]
        yield pieces, _keyed(spans, levels=levels, device=device)


def wants_few_kernels(device: torch.device) -> bool:
    """Return whether few kernel launches matter more than the cache (on a GPU)."""
    return device.type != "cpu"


def _groups(
    flat: Sequence[Tensor], chunk: int, *, join: bool
) -> Iterator[list[tuple[int, int, int]]]:
    """Yield groups of (vector index, first entry, count), at most ``chunk`` entries per group.

    Only vectors above ``chunk`` entries are split. Without ``join`` each group has one piece.
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
    """Return the concatenated random integers of several (count, key, start).

    The number of kernel launches does not depend on the number of spans.
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
        # Non-blocking, so the GPU's queue does not run empty.
        table = torch.tensor(rows, dtype=torch.int32).T.to(device, non_blocking=True)
        _hashed(words, *table[:3].repeat_interleave(table[3], dim=1, output_size=total))
    drawn = words.view(torch.int16) if lanes == 2 else words
    return _joined([drawn[cut] for cut in cuts])


def _joined(vectors: Sequence[Tensor]) -> Tensor:
    return vectors[0] if len(vectors) == 1 else torch.cat(list(vectors))


def _signed(word: int) -> int:
    """Return the low 32 bits of a number as a signed int32."""
    return ((word + (1 << 31)) & 0xFFFFFFFF) - (1 << 31)


def _hashed(words: Tensor, shift: Tensor | int, low: Tensor | int, high: Tensor | int) -> Tensor:
    """Add ``shift`` to the words and hash them with the two 32-bit halves of a key, in place."""
    words.add_(shift).bitwise_xor_(low)
    _folded(words, 16).mul_(_signed(0x21F0AAAD)).add_(high)
    _folded(words, 17).mul_(_signed(0xED5AD4BB))
    _folded(words, 11).mul_(_signed(0xAC4C1B51))
    _folded(words, 15).mul_(_signed(0x31848BAB))
    return _folded(words, 14)


def _folded(words: Tensor, by: int) -> Tensor:
    """XOR words with themselves shifted right by ``by`` bits (unsigned), in place."""
    return words.bitwise_xor_(words.bitwise_right_shift(by).bitwise_and_((1 << (32 - by)) - 1))


def highest_kept(q: Tensor) -> Tensor:
    """Return the largest random integer that keeps an entry of probability q/levels."""
    kind = torch.int16 if q.dtype == torch.int32 else torch.int32
    # The integers are signed, from -levels / 2, so exactly q of them are at most this.
    return (q - (levels_of(q) // 2 + 1)).to(kind)


def below(levels: Tensor, q: Tensor) -> Tensor:
    """Return which random integers keep their entry, each with probability exactly q/levels."""
    return levels <= highest_kept(q)


def buckets_of(values: Tensor) -> Tensor:
    """Return the magnitude bucket of fp32 values, an int32 in [0, 32767].

    It is the exponent and the top seven bits of the mantissa, so larger magnitudes have larger
    buckets. Only magnitudes below 1e-40 are in bucket 0.
    """
    return values.view(torch.int32).bitwise_right_shift(16).bitwise_and_(BUCKETS - 1)


def thin(gradient: Tensor, q: Tensor, key: int, *, start: int = 0, scale: bool) -> Tensor:
    """Mask a gradient: keep entries with probability p = q/levels and divide them by p.

    ``start`` is the position of the first entry in the whole gradient. Without ``scale`` kept
    entries are not divided.

    References:
        UEGR (arXiv 2503.16550), section IV-B; the mean over draws is the gradient (Theorem 1).
    """
    levels = levels_of(q)
    drawn = keyed_levels(gradient.numel(), key, start=start, levels=levels, device=gradient.device)
    keep = below(drawn.view_as(gradient), q)
    kept = gradient * (levels / q) if scale else gradient
    return torch.where(keep, kept, torch.zeros((), dtype=kept.dtype, device=kept.device))


def bucket_factors(table: Tensor) -> Tensor:
    """Return 1/p of each magnitude bucket, [32768] fp32 (fp64 for `FINE_LEVELS`)."""
    levels = levels_of(table)
    return (levels / table.double()).to(torch.float32 if levels == LEVELS else torch.float64)


def thin_by_bucket(
    gradients: Sequence[Tensor],
    factors: Tensor,
    keys: Sequence[int],
    *,
    starts: Sequence[int] | None = None,
    scale: bool,
    chunk: int = CHUNK,
) -> None:
    """Mask gradients in place, with one probability p per magnitude bucket (see `thin`).

    Only 1/p is looked up for each entry (`bucket_factors`). For draws u from 0 to levels - 1, the
    condition ``u < q`` is equivalent to ``u * (levels / q) < levels - 1/2`` even after rounding.

    Gradients are fp32, contiguous and on one device. Each has a key and a start, see
    `keyed_levels`.
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
    """Return a table of 255 geometrically spaced probabilities, which one byte can encode.

    They range from ``p_min`` to 1, as q/2^32. Rounding p to the nearest one changes it by at most
    1.4% with a ``p_min`` of 1e-3, and by at most 4.5% with 0 (if p > 1e-6). The masked gradient
    stays unbiased, because the rounded p is used for the draw *and* the division.

    Returns:
        q by code, [256] int64, ascending. Entry 0, for dropped entries, is 0.
    """
    smallest = torch.tensor(p_min, dtype=torch.float64)
    low = int(quantize(smallest, p_min=p_min, levels=FINE_LEVELS))
    steps = torch.arange(CODES - 1, dtype=torch.float64) / (CODES - 2)
    spaced = low * torch.exp2(steps * (math.log2(FINE_LEVELS) - math.log2(low)))
    return torch.cat([torch.zeros(1), spaced.round().clamp(low, FINE_LEVELS)]).to(torch.int64)


def nearest_codes(q: Tensor, table: Tensor) -> Tensor:
    """Return the codes (uint8, 1 to 255) of the nearest probabilities in `spaced_levels`."""
    # The border of two neighbors is the geometric mean, because the relative error matters.
    spaced = table[1:].double()
    ends = (spaced[:-1] * spaced[1:]).sqrt()
    return (torch.bucketize(q.double(), ends) + 1).to(torch.uint8)


def drop_codes(
    codes: Tensor, table: Tensor, key: int, *, start: int = 0, chunk: int = CHUNK
) -> Tensor:
    """Draw a mask in place: keep each code with its probability in ``table``, else set it to 0.

    The codes must be contiguous; for ``key`` and ``start`` see `keyed_levels`.
    """
    threshold = highest_kept(table)
    pieces = pieces_with_draws([codes], [key], [start], levels=FINE_LEVELS, chunk=chunk)
    for (piece,), drawn in pieces:
        piece.masked_fill_(drawn > threshold.index_select(0, piece.int()), 0)
    return codes


def thin_by_code(
    gradient: Tensor, codes: Tensor, table: Tensor, *, scale: bool, chunk: int = CHUNK
) -> Tensor:
    """Mask a gradient in place with the codes of `drop_codes`.

    The gradient is fp32 and contiguous. With ``scale`` kept entries are divided by their
    probability.
    """
    factor = (table > 0).to(gradient.dtype)
    if scale:
        factor[1:] = (FINE_LEVELS / table[1:].double()).to(gradient.dtype)
    pieces = torch.split(gradient.view(-1), chunk)
    for piece, named in zip(pieces, torch.split(codes.view(-1), chunk), strict=True):
        piece.mul_(factor.index_select(0, named.int()))
    return gradient


SAMPLED_FROM = 1 << 17
"""Minimum number of entries of a tensor for which `bucket_counts` uses a sample."""
STEPS = (11, 13)
"""Strides of a sample: the first one that is not a divisor of the row length is used."""


def bucket_counts(
    tensors: Sequence[Tensor],
    *,
    parts: Sequence[tuple[int, torch.Size]] | None = None,
    chunk: int = CHUNK,
) -> Tensor:
    """Count the non-zero entries of all tensors by magnitude bucket, [32768] int64.

    In tensors of at least `SAMPLED_FROM` entries, every 11th entry is counted 11 times (every 13th
    if the row length is a multiple of 11). The error of a rank is then about ``1/2 sqrt(11/n)``:
    0.5% for the smallest such n, 0.05% for ten million. This changes the probabilities slightly,
    but the masked gradient stays unbiased.

    If the tensors are shards, ``parts`` has for each the position of its first entry in the whole
    tensor, and that tensor's shape. The counts of all shards add up to those of the whole. Bucket 0
    (zeros) is returned as 0.
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
            # Each bincount synchronizes with the device, so tensors are joined first.
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
    """Scale squared gradients to [0, 1] over all tensors: ``(g^2 - min) / (max - min)`` in fp32.

    ``largest`` reduces a tensor to its maximum; for shards, over all processes.

    References:
        UEGR (arXiv 2503.16550), Eq. 8. Differs: the printed equation does not subtract the minimum.
    """
    full = [tensor.abs().float() for tensor in tensors if tensor.numel()]
    most = largest(torch.stack([tensor.max() for tensor in full]))
    most = torch.where(most > 0, most, 1.0)
    fractions = [(tensor.float() / most).square() for tensor in tensors]
    # The smallest absolute gradient, scaled like the others; squaring keeps its order.
    low = (-largest(torch.stack([-tensor.min() for tensor in full])) / most).square()
    width = torch.where(low < 1, 1 - low, 1.0)
    return [(fraction - low) / width for fraction in fractions]


MANY_ROWS = 8192
"""Minimum number of rows for `touched_rows` to search; only vocabularies have so many."""


def touched_rows(
    gradient: Tensor,
    whole: torch.Size | None = None,
    *,
    counted: Callable[[int], int] = int,
) -> Tensor | None:
    """Return the rows of an embedding matrix whose gradient is not zero, ascending indices [n].

    A batch contains only a few hundred words of the vocabulary, so callers can skip all other rows.

    The result is None, which means all rows, for fewer than `MANY_ROWS` rows, for a tensor that is
    not a matrix, and if more than half of the rows are touched. A row counts as zero if all entries
    are below 1e-22, whose squares underflow in fp32.

    For a shard, ``whole`` is the shape of the whole matrix, and ``counted`` converts the shard's
    number of touched rows to that of the whole.
    """
    whole = gradient.shape if whole is None else whole
    if len(whole) != 2 or whole[0] < MANY_ROWS:
        return None
    single = torch.promote_types(gradient.dtype, torch.float32)
    norms = torch.linalg.vector_norm(gradient, dim=1, dtype=single)
    rows = norms.nonzero().squeeze(1)
    return rows if 2 * counted(len(rows)) <= whole[0] else None
