from __future__ import annotations

import math
from itertools import pairwise

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import example, given
from scipy import stats

from dev.benchmarks.mask_kernels import Operations, as_on_a_gpu
from reproduction.theorem import exact_ranks
from temper.functional import masks
from temper.functional.masks import (
    CODES,
    FINE_LEVELS,
    LEVELS,
    below,
    bucket_counts,
    bucket_factors,
    bucket_ranks,
    buckets_of,
    drop_codes,
    highest_kept,
    keyed_levels,
    nearest_codes,
    quantize,
    random_levels,
    range_normalize,
    spaced_levels,
    thin,
    thin_by_bucket,
    thin_by_code,
)
from temper.seeding import generator

EVERY_LEVEL = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16)


@given(st.floats(0, 1), st.floats(0, 1))
def test_a_probability_is_clamped_then_rounded_to_levels(p: float, p_min: float) -> None:
    q = quantize(torch.tensor([p], dtype=torch.float64), p_min=p_min)
    assert q.dtype == torch.int32
    assert q.item() == min(max(round(max(p, p_min) * 65536), 1), 65536)


@pytest.mark.parametrize("q", [1, 2, 66, 32767, 32768, 32769, 65535, 65536])
def test_exactly_q_of_all_65536_levels_are_kept(q: int) -> None:
    assert int(below(EVERY_LEVEL, torch.tensor(q, dtype=torch.int32)).sum()) == q


@pytest.mark.parametrize("levels", [LEVELS, FINE_LEVELS])
def test_draws_and_thresholds_have_one_dtype(levels: int) -> None:
    q = quantize(torch.tensor([0.5]), p_min=0.0, levels=levels)
    assert highest_kept(q).dtype == keyed_levels(1, 0, levels=levels).dtype


@pytest.mark.parametrize("q", [1, 3, FINE_LEVELS // 2, FINE_LEVELS - 1])
def test_a_32_bit_probability_is_exact_to_one_draw(q: int) -> None:
    last = q - 1 - (1 << 31)
    drawn = torch.tensor([-(1 << 31), last, last + 1, (1 << 31) - 1]).to(torch.int32)
    assert below(drawn, torch.tensor(q)).tolist() == [True, True, False, False]


def test_fine_levels_hold_probabilities_that_16_bits_cannot() -> None:
    p = torch.tensor([5.6e-9, 0.3, 1.0], dtype=torch.float64)
    fine = quantize(p, p_min=0.0, levels=FINE_LEVELS)
    assert fine.tolist() == [24, round(0.3 * 2**32), 2**32]
    assert quantize(p, p_min=0.0).tolist() == [1, round(0.3 * 2**16), 2**16]
    drawn = keyed_levels(100_001, 1, levels=FINE_LEVELS)
    assert (len(drawn), drawn.dtype) == (100_001, torch.int32)
    for lane in (drawn[::2], drawn[1::2]):
        # The standard error of the mean of 50,000 draws is 2^32 / sqrt(12 * 5e4).
        assert abs(lane.double().mean().item()) < 5 * 2**32 / math.sqrt(12 * 5e4)


def test_every_lane_of_a_draw_is_uniform() -> None:
    # The trap: random_ without bounds leaves the top bit of each 64-bit word 0, so that the last
    # of four 16-bit numbers is never negative.
    levels = random_levels(400_000, generator(1)).view(-1, 4).to(torch.int64)
    for lane in range(4):
        values = levels[:, lane]
        assert values.min() < -32_700
        assert values.max() > 32_700
        # 100,000 uniform draws: the mean's standard error is 65536 / sqrt(12 * 1e5) = 59.8.
        assert abs(values.double().mean().item() + 0.5) < 5 * 59.8
        for bit in range(16):
            ones = ((values >> bit) & 1).double().mean().item()
            assert abs(ones - 0.5) < 5 * 0.5 / math.sqrt(100_000)


def test_lanes_do_not_repeat_one_another() -> None:
    levels = random_levels(40_000, generator(2)).view(-1, 4).double()
    correlation = torch.corrcoef(levels.T) - torch.eye(4, dtype=torch.float64)
    assert correlation.abs().max() < 5 / math.sqrt(10_000)


@pytest.mark.parametrize("count", [0, 1, 3, 4, 5])
def test_any_number_of_levels_can_be_drawn(count: int) -> None:
    assert random_levels(count, generator(0)).shape == (count,)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_mean_of_many_thinned_gradients_is_the_gradient(dtype: torch.dtype) -> None:
    gradient = torch.tensor([1.0, -0.5, 2.0, 0.25], dtype=dtype)
    q = torch.tensor([655, 20_000, 40_000, 65_536], dtype=torch.int32)
    draws = 20_000
    many = thin(gradient.repeat(draws, 1), q.repeat(draws, 1), 3, scale=True)
    each = many.double()
    p = q.double() / LEVELS
    error = (gradient.double().square() * (1 - p) / p / draws).sqrt()
    off = (each.mean(0) - gradient.double()).abs()
    assert (off <= 5 * error + 1e-6).all()
    kept = each != 0
    expected = (gradient.double() / p).expand_as(each)
    torch.testing.assert_close(each[kept], expected[kept], rtol=1e-6, atol=0)
    assert (each[~kept] == 0).all()
    assert kept[:, 3].all()


@pytest.mark.parametrize("levels", [LEVELS, FINE_LEVELS])
def test_thinning_by_bucket_equals_thinning(levels: int) -> None:
    gradient = torch.randn(370, 11)
    # The ends, where a rounded product could fall on the other side, and everything between.
    ends = torch.tensor([1, 2, 3, levels - 2, levels - 1, levels])
    p = torch.rand(1 << 15, generator=generator(0), dtype=torch.float64)
    table = quantize(p, p_min=0.0, levels=levels)
    table[buckets_of(gradient.flatten()[:6]).long()] = ends.to(table.dtype)
    q, factors = table[buckets_of(gradient).long()], bucket_factors(table)
    # Of 32-bit levels the quotient is rounded once more by one of the two.
    reach = 0.0 if levels == LEVELS else 1e-6
    for start, scale in ((0, True), (0, False), (1234, True)):
        plain = thin(gradient, q, 5, start=start, scale=scale)
        for chunk in (1 << 18, 256, 7):
            result = gradient.clone()
            thin_by_bucket([result], factors, [5], starts=[start], scale=scale, chunk=chunk)
            torch.testing.assert_close(result, plain, rtol=reach, atol=0)


@pytest.mark.parametrize("q", [1, 2, 66, 257, 32767, 32769, 65535, 65536])
def test_thinning_by_bucket_keeps_exactly_q_of_all_levels(
    q: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(masks, "_keyed", lambda *_, **__: EVERY_LEVEL)
    table = torch.full((1 << 15,), q, dtype=torch.int32)
    kept = torch.ones(1 << 16)
    thin_by_bucket([kept], bucket_factors(table), [0], scale=False)
    assert torch.equal(kept.bool(), below(EVERY_LEVEL, table[0]))


@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 9)), min_size=1, max_size=8),
    st.sampled_from([1, 7, 64, 1 << 24]),
    st.sampled_from([LEVELS, FINE_LEVELS]),
    st.booleans(),
)
def test_a_group_of_tensors_is_masked_as_each_tensor_alone(
    sizes: list[tuple[int, int]], chunk: int, levels: int, scale: bool
) -> None:
    draws = generator(4)
    gradients = [torch.randn(size, generator=draws) for size, _ in sizes]
    keys = [(number * 0x9E3779B97F4A7C15) & ((1 << 63) - 1) for number in range(len(sizes))]
    # Parts of larger tensors; one of them reaches beyond the last word.
    starts = [start + (1 << 33) - 12 for _, start in sizes]
    p = torch.rand(1 << 15, generator=draws, dtype=torch.float64)
    factors = bucket_factors(quantize(p, p_min=0.0, levels=levels))
    alone = [gradient.clone() for gradient in gradients]
    for gradient, key, start in zip(alone, keys, starts, strict=True):
        thin_by_bucket([gradient], factors, [key], starts=[start], scale=scale)
    with as_on_a_gpu(chunk):
        thin_by_bucket(gradients, factors, keys, starts=starts, scale=scale, chunk=1)
    assert all(map(torch.equal, gradients, alone))


def test_the_number_of_kernels_depends_on_the_entries_and_not_on_the_tensors() -> None:
    factors = bucket_factors(torch.full((1 << 15,), 9, dtype=torch.int32))
    counts = []
    for number in (2, 50):
        gradients = [torch.randn(1000 // number) for _ in range(number)]
        with as_on_a_gpu(), Operations() as operations:
            thin_by_bucket(gradients, factors, list(range(number)), scale=True)
            bucket_counts(gradients)
        counts.append(operations.count)
    assert counts[0] == counts[1]


# Draws by key and position

KEYS = [0, 1, 2, 1 << 31, 1 << 32, (1 << 63) - 1, 0x1234_5678_9ABC_DEF0]


@pytest.mark.parametrize("key", KEYS)
def test_keyed_draws_are_uniform(key: int) -> None:
    count = 1 << 18
    drawn = keyed_levels(count, key).to(torch.int64)
    # 256 bins: the statistic has 255 degrees of freedom, a standard deviation of sqrt(510).
    for byte in (drawn & 255, (drawn >> 8) + 128):
        result = torch.bincount(byte, minlength=256).double()
        statistic = ((result - count / 256).square() / (count / 256)).sum().item()
        assert abs(statistic - 255) < 6 * math.sqrt(510)
    fine = keyed_levels(count, key, levels=FINE_LEVELS)
    assert fine.dtype == torch.int32
    for bit in range(32):
        ones = ((fine >> bit) & 1).double().mean().item()
        assert abs(ones - 0.5) < 6 * 0.5 / math.sqrt(count)


@pytest.mark.parametrize("lag", [1, 2, 3, 64, 384, 4096])
def test_draws_at_different_offsets_are_independent(lag: int) -> None:
    count = 1 << 18
    drawn = keyed_levels(count + lag, 7).double()
    pair = torch.stack([drawn[:count], drawn[lag:]])
    assert abs(torch.corrcoef(pair)[0, 1].item()) < 6 / math.sqrt(count)
    both = ((drawn[:count] < 0) & (drawn[lag:] < 0)).double().mean().item()
    assert abs(both - 0.25) < 6 * math.sqrt(0.25 * 0.75 / count)


@pytest.mark.parametrize("other", [1, 2, 1 << 7, 1 << 16, 1 << 32, 1 << 40, 1 << 62])
def test_draws_of_different_keys_are_independent(other: int) -> None:
    count = 1 << 18
    first = keyed_levels(count, 11, levels=FINE_LEVELS)
    second = keyed_levels(count, 11 ^ other, levels=FINE_LEVELS)
    pair = torch.stack([first.double(), second.double()])
    assert abs(torch.corrcoef(pair)[0, 1].item()) < 6 / math.sqrt(count)
    for bit in range(32):
        differ = (((first ^ second) >> bit) & 1).double().mean().item()
        assert abs(differ - 0.5) < 6 * 0.5 / math.sqrt(count)
    if other >= 1 << 32:
        # Nor are they the same draws at other places, but for those that meet by chance.
        fraction = torch.isin(first, second).double().mean().item()
        assert fraction < 10 * count / FINE_LEVELS


@given(
    st.integers(0, (1 << 63) - 1),
    st.lists(st.integers(1, 40), min_size=1, max_size=6),
    st.sampled_from([LEVELS, FINE_LEVELS]),
)
def test_draws_are_the_same_in_any_pieces(key: int, sizes: list[int], levels: int) -> None:
    whole = keyed_levels(sum(sizes), key, levels=levels)
    starts = [sum(sizes[:index]) for index in range(len(sizes))]
    pieces = [
        keyed_levels(size, key, start=start, levels=levels)
        for start, size in zip(starts, sizes, strict=True)
    ]
    assert torch.equal(torch.cat(pieces), whole)


def triple32(word: int) -> int:
    """Wellons' hash of 32 bits, as he prints it."""
    for shift, factor in ((17, 0xED5AD4BB), (11, 0xAC4C1B51), (15, 0x31848BAB)):
        word = (word ^ word >> shift) * factor & 0xFFFFFFFF
    return word ^ word >> 14


@pytest.mark.parametrize("key", KEYS)
def test_a_word_is_wellons_hash_behind_a_round_for_the_key(key: int) -> None:
    wanted = []
    for index in range(1000, 1020):
        word = (index ^ key) & 0xFFFFFFFF
        wanted.append(triple32(((word ^ word >> 16) * 0x21F0AAAD + (key >> 32)) & 0xFFFFFFFF))
    drawn = keyed_levels(20, key, start=1000, levels=FINE_LEVELS)
    assert (drawn.long() & 0xFFFFFFFF).tolist() == wanted
    # A word holds two draws of 16 bits, the low one first.
    halves = keyed_levels(40, key, start=2000).view(-1, 2).long() & 0xFFFF
    assert (halves[:, 0] + (halves[:, 1] << 16)).tolist() == wanted


def test_levels_at_a_large_offset_are_a_slice_of_the_stream() -> None:
    start = (1 << 33) - 6
    assert torch.equal(keyed_levels(6, 3, start=start)[4:], keyed_levels(2, 3, start=start + 4))


# Masks that are kept: one byte per entry


@pytest.mark.parametrize(
    ("p_min", "smallest", "bound"),
    [(1e-3, 1e-3, 0.0138), (0.25, 0.25, 0.0028), (1.0, 1.0, 0.0), (0.0, 1e-6, 0.045)],
)
def test_one_byte_names_a_probability_to_within_the_spacing(
    p_min: float, smallest: float, bound: float
) -> None:
    table = spaced_levels(p_min=p_min)
    assert (len(table), table[0].item(), table[-1].item()) == (CODES, 0, FINE_LEVELS)
    assert table[1].item() == max(round(p_min * FINE_LEVELS), 1)
    assert table.dtype == torch.int64
    low = table[1].item()
    spaced = [low * (FINE_LEVELS / low) ** (code / 254) for code in range(255)]
    assert table[1:].tolist() == pytest.approx(spaced, rel=1e-12, abs=0.5 + 1e-3)
    p = torch.logspace(math.log10(smallest), 0, 100_000, dtype=torch.float64)
    codes = nearest_codes(quantize(p, p_min=p_min, levels=FINE_LEVELS), table)
    assert codes.dtype == torch.uint8
    assert int(codes.min()) >= 1
    error = (table[codes.long()].double() / FINE_LEVELS / p - 1).abs()
    assert error.max().item() <= bound


def test_the_nearest_code_is_found_by_comparing_with_all() -> None:
    table = spaced_levels(p_min=1e-3)
    q = quantize(torch.rand(500, dtype=torch.float64), p_min=1e-3, levels=FINE_LEVELS)
    by_hand = [
        min(range(1, CODES), key=lambda code: abs(math.log(int(table[code]) / each)))
        for each in q.tolist()
    ]
    assert nearest_codes(q, table).tolist() == by_hand


def test_a_kept_mask_keeps_each_entry_with_the_probability_that_divides_it() -> None:
    table = spaced_levels(p_min=1e-3)
    codes = torch.tensor([1, 60, 180, 255], dtype=torch.uint8)
    gradient = torch.tensor([1.0, -0.5, 2.0, 0.25])
    draws = 40_000
    dropped = drop_codes(codes.repeat(draws, 1), table, 3)
    result = thin_by_code(gradient.repeat(draws, 1), dropped, table, scale=True).double()
    p = table[codes.long()].double() / FINE_LEVELS
    fraction = (dropped > 0).double().mean(0)
    assert ((fraction - p).abs() <= 5 * (p * (1 - p) / draws).sqrt()).all()
    error = (gradient.double().square() * (1 - p) / p / draws).sqrt()
    assert ((result.mean(0) - gradient).abs() <= 5 * error + 1e-6).all()
    kept = dropped > 0
    expected = (gradient.double() / p).expand_as(result)
    torch.testing.assert_close(result[kept], expected[kept], rtol=1e-6, atol=0)
    assert not result[~kept].any()
    assert kept[:, 3].all()


def test_a_code_is_kept_up_to_the_last_draw_of_its_probability(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Without a smallest probability the first code's is 2^-32: one draw of all keeps it.
    table = spaced_levels(p_min=0.0)
    for code in (1, 100, 255):
        last = int(table[code]) - 1 - (1 << 31)
        draws = torch.tensor([-(1 << 31), last, min(last + 1, (1 << 31) - 1)]).to(torch.int32)
        monkeypatch.setattr(masks, "_keyed", lambda *_, drawn=draws, **__: drawn)
        kept = drop_codes(torch.full((3,), code, dtype=torch.uint8), table, 0)
        assert kept.tolist() == [code, code, code if code == 255 else 0]
        plain = thin_by_code(torch.full((3,), 2.0), kept, table, scale=False)
        assert plain.tolist() == [2.0, 2.0, 2.0 if code == 255 else 0.0]


def test_a_kept_mask_is_drawn_and_applied_in_pieces() -> None:
    table = spaced_levels(p_min=1e-3)
    codes = torch.full((5, 300), 230, dtype=torch.uint8)
    dropped = drop_codes(codes.clone(), table, 6, chunk=300)
    assert not any(torch.equal(dropped[a], dropped[b]) for a in range(5) for b in range(a))
    assert torch.equal(drop_codes(codes.clone(), table, 6), dropped)
    assert torch.equal(drop_codes(codes[2:].clone(), table, 6, start=600), dropped[2:])
    assert set(dropped.unique().tolist()) == {0, 230}
    gradient = torch.randn(5, 300)
    for scale in (True, False):
        whole = thin_by_code(gradient.clone(), dropped, table, scale=scale)
        pieces = thin_by_code(gradient.clone(), dropped, table, scale=scale, chunk=7)
        assert torch.equal(whole, pieces)
    assert torch.equal(whole[dropped > 0], gradient[dropped > 0])


@given(st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=1, max_size=60))
def test_a_bucketed_rank_is_the_exact_one_to_within_its_bucket(values: list[float]) -> None:
    tensor = torch.tensor(values)
    # Magnitudes below 1e-40 share the bucket of zero.
    tensor = torch.where(tensor.abs() < 1e-37, 0.0, tensor)
    counts = bucket_counts([tensor])
    bucket = buckets_of(tensor).long()
    result = bucket_ranks(counts)[bucket]
    exact = exact_ranks(tensor)
    alive = tensor != 0
    total = max(int(alive.sum()), 1)
    width = counts[bucket].double() / total
    assert ((result - exact).abs()[alive] <= width[alive] / 2 + 1e-12).all()
    order = tensor.abs().argsort(stable=True)
    assert (result[order].diff() >= 0).all()
    assert int(counts.sum()) == int(alive.sum())


def test_buckets_are_the_exponent_and_seven_bits_of_the_mantissa() -> None:
    steps = torch.arange(1 << 15)
    values = (1 + (steps % 128) / 128) * torch.exp2((steps // 128 - 127).double())
    # Without the subnormal numbers, and those beyond the largest.
    values, steps = values[128 : 255 * 128].float(), steps[128 : 255 * 128]
    for sign in (1, -1):
        assert torch.equal(buckets_of(sign * values).long(), steps)
        assert torch.equal(buckets_of(sign * values * (1 + 1 / 256)).long(), steps)


@given(st.lists(st.lists(st.sampled_from([0.0, -2.0, 2.0, 3.0, 1e-9])), min_size=1, max_size=4))
def test_buckets_are_counted_over_all_tensors_and_pieces(values: list[list[float]]) -> None:
    tensors = [torch.tensor(each) for each in values]
    wanted = torch.bincount(buckets_of(torch.cat(tensors)).long(), minlength=1 << 15)
    wanted[0] = 0
    for chunk in (1, 3, 1 << 18):
        result = bucket_counts(tensors, chunk=chunk)
        assert result.dtype == torch.int64
        assert torch.equal(result, wanted)


@given(
    st.sampled_from([(1 << 17,), (2048, 64), (1192, 110), (917, 11, 13)]),
    st.lists(st.integers(0, 900), max_size=4),
    st.integers(0, 2**32),
)
def test_the_counts_of_parts_add_up_to_the_whole_ones(
    shape: tuple[int, ...], cuts: list[int], seed: int
) -> None:
    whole = torch.randn(shape, generator=generator(seed))
    ends = [0, *sorted(cuts), len(whole)]
    parts = [whole[start:end] for start, end in pairwise(ends)]
    starts = [(start * whole[0].numel(), whole.shape) for start in ends[:-1]]
    each = [bucket_counts([part], parts=[at]) for part, at in zip(parts, starts, strict=True)]
    assert torch.equal(torch.stack(each).sum(0), bucket_counts([whole]))
    assert torch.equal(bucket_counts(parts, parts=starts), bucket_counts([whole]))


@pytest.mark.parametrize("columns", [1, 12, 384, 11 * 12])
def test_a_rank_by_a_sample_is_the_exact_one_to_five_standard_deviations(columns: int) -> None:
    # Whole columns are larger than others, as those of a layer's matrix are.
    size = torch.exp(torch.randn(columns, generator=generator(1)))
    values = torch.randn((1 << 17) // columns + 1, columns, generator=generator(2)) * size
    small = torch.full((100,), 1e-9)
    counts = bucket_counts([values, small])
    bucket = buckets_of(values.flatten()).long()
    exact = exact_ranks(torch.cat([values.flatten(), small]))[: values.numel()]
    width = counts[bucket].double() / counts.sum()
    spread = 0.5 * (13 / values.numel()) ** 0.5
    off = (bucket_ranks(counts)[bucket] - exact).abs()
    assert (off <= width / 2 + 5 * spread).all()
    # Buckets give a part of that; a count of few entries, or of some columns, would give more.
    assert off.mean() <= 2 * spread


@given(st.lists(st.sampled_from([0.0, -2.0, 2.0, 0.5, -0.25]), max_size=20))
def test_an_exact_rank_is_scipys_middle_rank_among_entries_that_are_not_zero(
    values: list[float],
) -> None:
    alive = np.array(values) != 0
    wanted = np.zeros(len(values))
    wanted[alive] = (stats.rankdata(np.abs(values)[alive]) - 0.5) / max(alive.sum(), 1)
    assert exact_ranks(torch.tensor(values)).tolist() == pytest.approx(wanted.tolist())


def test_the_rank_of_a_single_entry_is_one_half() -> None:
    assert (
        bucket_ranks(bucket_counts([torch.tensor([0.0, 3.0])]))[buckets_of(torch.tensor(3.0))]
        == 0.5
    )


def test_distinct_buckets_have_the_exact_rank() -> None:
    tensor = torch.tensor([0.0, -4.0, 1.0, 2.0, 8.0, 0.0])
    result = bucket_ranks(bucket_counts([tensor]))[buckets_of(tensor).long()]
    # Zeros are left out; mid-ranks of four entries are 1/8, 3/8, 5/8, 7/8.
    assert result[tensor != 0].tolist() == [0.625, 0.125, 0.375, 0.875]


@given(
    st.lists(st.floats(-(2.0**60), 2.0**60, width=32), min_size=1, max_size=20),
    st.integers(-20, 18),
)
def test_range_normalization_lies_in_0_to_1_at_any_scale(values: list[float], scale: int) -> None:
    tensor = torch.tensor(values)
    (fraction,) = range_normalize([tensor * 10.0**scale])
    assert torch.isfinite(fraction).all()
    assert fraction.min() >= 0
    assert fraction.max() <= 1


@example([[1.0, -2.0], [3.0]], 1.0)
@given(
    st.lists(st.lists(st.floats(-8, 8, width=16), min_size=1, max_size=6), min_size=1, max_size=4),
    st.sampled_from([1e-3, 1.0, 1e3]),
)
def test_range_normalization_is_that_of_equation_8_over_all_tensors(
    values: list[list[float]], unit: float
) -> None:
    tensors = [unit * torch.tensor(each, dtype=torch.float64) for each in values]
    squares = torch.cat(tensors).square()
    low, width = squares.min(), squares.max() - squares.min()
    result = range_normalize([tensor.float() for tensor in tensors])
    for tensor, fraction in zip(tensors, result, strict=True):
        wanted = (tensor.square() - low) / (width if width > 0 else 1.0)
        # Two shares that are nearly equal leave few of fp32's digits of what lies between them.
        reach = 1e-6 * float(squares.max() / width) if width > 0 else 1e-6
        torch.testing.assert_close(fraction.double(), wanted, rtol=0, atol=reach)


@pytest.mark.parametrize("value", [0.0, 2.5])
def test_equal_entries_are_all_of_range_0(value: float) -> None:
    (fraction,) = range_normalize([torch.full((4,), value)])
    assert fraction.tolist() == [0.0] * 4
