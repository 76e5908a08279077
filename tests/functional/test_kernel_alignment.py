"""CKA: the formula by loops, hand-worked numbers, invariances, and no bias."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from temper.functional.kernel_alignment import kernel_alignment, unbiased_hsic

Array = NDArray[np.float64]


def states(rows: int, width: int, seed: int) -> Array:
    return np.random.default_rng(seed).normal(size=(rows, width))


def alignment(first: Array, second: Array) -> float:
    return float(
        kernel_alignment(
            [unbiased_hsic(first, second)],
            [unbiased_hsic(first, first)],
            [unbiased_hsic(second, second)],
        )
    )


def song(first: Array, second: Array) -> float:
    """HSIC_1 as Song et al. print it, by loops over the entries of both Gram matrices."""
    n = len(first)
    k = [[float(first[i] @ first[j]) * (i != j) for j in range(n)] for i in range(n)]
    l_ = [[float(second[i] @ second[j]) * (i != j) for j in range(n)] for i in range(n)]
    trace = sum(k[i][j] * l_[j][i] for i in range(n) for j in range(n))
    sums = sum(map(sum, k)) * sum(map(sum, l_)) / ((n - 1) * (n - 2))
    product = sum(k[i][j] * l_[j][m] for i in range(n) for j in range(n) for m in range(n))
    return (trace + sums - 2 * product / (n - 2)) / (n * (n - 3))


@pytest.mark.parametrize("rows", [4, 5, 9])
def test_the_alignment_statistic_equals_the_published_formula(rows: int) -> None:
    one, two = states(rows, 3, 0), states(rows, 5, 1)
    assert unbiased_hsic(one, two) == pytest.approx(song(one, two), rel=1e-10)
    assert unbiased_hsic(one, one) == pytest.approx(song(one, one), rel=1e-10)


@pytest.mark.parametrize("size", [4, 5])
def test_the_mean_over_all_batches_equals_the_statistic_of_all_rows(size: int) -> None:
    # Over all batches of a size the mean is the value of all rows, which no biased form gives.
    one, two = states(8, 3, 4), states(8, 2, 5)
    batches = [
        unbiased_hsic(one[list(chosen)], two[list(chosen)])
        for chosen in combinations(range(8), size)
    ]
    assert float(np.mean(batches)) == pytest.approx(unbiased_hsic(one, two), rel=1e-10)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    rows=st.integers(5, 12),
    factor=st.floats(1e-3, 1e3),
    shift=st.floats(-100, 100),
)
def test_alignment_is_invariant_to_rotation_scale_and_shift(
    seed: int, rows: int, factor: float, shift: float
) -> None:
    one, two = states(rows, 4, seed), states(rows, 3, seed + 1)
    turn, _ = np.linalg.qr(states(4, 4, seed + 2))
    moved = factor * (one @ turn) + shift
    assert alignment(moved, two) == pytest.approx(alignment(one, two), rel=1e-6, abs=1e-8)
    assert alignment(moved, one) == pytest.approx(1.0, abs=1e-8)


def test_batches_are_averaged_before_they_are_divided() -> None:
    # (3 + 1) / sqrt((4 + 4) (9 + 1)), not the mean of 3/6 and 1/2.
    assert float(kernel_alignment([3.0, 1.0], [4.0, 4.0], [9.0, 1.0])) == pytest.approx(4 / 80**0.5)


def test_counts_repeat_batches() -> None:
    parts = ([3.0, 1.0], [4.0, 4.0], [9.0, 1.0])
    result = kernel_alignment(*parts, counts=[[1, 1], [2, 0], [0, 2]])
    assert result == pytest.approx([4 / 80**0.5, 0.5, 0.5])


@pytest.mark.parametrize("rows", [4, 5, 7, 11])
@pytest.mark.parametrize("value", [0.1, 1e6 + 0.1])
def test_states_without_variation_have_no_alignment(rows: int, value: float) -> None:
    constant = np.full((rows, 3), value)
    assert unbiased_hsic(constant, constant) == 0.0
    assert np.isnan(alignment(constant, states(rows, 3, 0)))


def test_rounding_does_not_carry_an_alignment_beyond_1() -> None:
    for seed in range(30):
        one = states(6, 3, seed)
        assert alignment(one, 3 * one) <= 1.0
    # .1 + .2 is above .3.
    assert float(kernel_alignment([-(0.1 + 0.2)], [0.3], [0.3])) == -1.0


def test_a_batch_that_is_not_finite_leaves_no_alignment() -> None:
    bad, good = [np.nan, 1.0], [1.0, 1.0]
    for sides in ((bad, good, good), (bad, bad, bad)):
        assert np.isnan(float(kernel_alignment(*sides)))
        for shape in ((), (3,)):
            result = kernel_alignment(*sides, counts=np.ones((*shape, 2)))
            assert result.shape == shape
            assert np.isnan(result).all()


def test_states_in_single_precision_are_computed_with_in_double() -> None:
    draws = np.random.default_rng(3)
    one, two = (
        draws.normal(1e3, 1, (40, 6)).astype("f4"),
        draws.normal(1e3, 1, (40, 6)).astype("f4"),
    )
    result = unbiased_hsic(one, two)
    assert result == pytest.approx(unbiased_hsic(one.astype("f8"), two.astype("f8")), rel=1e-12)
