"""Tests of shift: the statistic from its definition, its p value and its level."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from temper.functional.shift import alarm_level, mmd_test


def states(seed: int, rows: int, size: int = 3) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(rows, size)) + 1e3


@given(st.integers(0, 1000), st.integers(2, 8), st.integers(2, 8))
def test_the_mmd_statistic_is_the_sum_over_pairs_of_different_rows(
    seed: int, n: int, m: int
) -> None:
    first, second = states(seed, n), states(seed + 1, m) + 0.5
    rows = np.concatenate([first, second])
    distances = [np.linalg.norm(a - b) for i, a in enumerate(rows) for b in rows[:i]]
    width = np.median(np.square(distances)) ** 0.5

    def mean(one: np.ndarray, two: np.ndarray, same: bool) -> float:
        kernel = [
            np.exp(-(np.linalg.norm(a - b) ** 2) / (2 * width**2))
            for i, a in enumerate(one)
            for j, b in enumerate(two)
            if not (same and i == j)
        ]
        return float(np.mean(kernel))

    wanted = mean(first, first, True) + mean(second, second, True) - 2 * mean(first, second, False)
    result = mmd_test(first, second, seed=0, permutations=3)
    assert result.bandwidth == pytest.approx(width, rel=1e-9)
    assert result.statistic == pytest.approx(wanted, abs=1e-9)


def test_the_p_value_has_its_level_without_a_shift() -> None:
    p = np.array([mmd_test(states(2 * s, 30), states(2 * s + 1, 12), seed=s).p for s in range(300)])
    for level in (0.05, 0.2, 0.5):
        hits = int((p <= level).sum())
        assert stats.binomtest(hits, len(p), level).pvalue > 1e-3


def test_the_test_detects_a_shift() -> None:
    assert mmd_test(states(0, 60), states(1, 30) + 1.0, seed=0).p == 1 / 1000
    assert mmd_test(states(0, 60), states(1, 30) + 1.0, seed=0, permutations=0).p == 1.0


@pytest.mark.parametrize("unit", [1e-3, 1e3])
def test_the_test_does_not_depend_on_the_unit(unit: float) -> None:
    first, second = states(0, 20) - 1e3, states(1, 10) - 1e3
    plain, result = (mmd_test(c * first, c * second, seed=0) for c in (1.0, unit))
    assert result.statistic == pytest.approx(plain.statistic)
    assert result.p == plain.p
    assert result.bandwidth == pytest.approx(unit * plain.bandwidth)


def test_the_width_is_the_mean_distance_where_most_rows_are_equal() -> None:
    # Of the 36 squares of distances, those of one row and the five others are 4.
    result = mmd_test([[0.5]] * 3, [[0.5], [0.5], [2.5]], seed=0)
    assert result.bandwidth == pytest.approx((10 * 4 / 36) ** 0.5)


def test_equal_rows_have_no_shift() -> None:
    result = mmd_test(np.ones((5, 2)), np.ones((4, 2)), seed=0)
    assert (result.statistic, result.p) == (pytest.approx(0.0, abs=1e-12), 1.0)


def test_the_seed_decides_the_splits() -> None:
    first, second = states(0, 20), states(1, 10) + 0.3
    assert mmd_test(first, second, seed=1) == mmd_test(first, second, seed=1)
    assert len({mmd_test(first, second, seed=s).p for s in range(5)}) > 1


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: mmd_test([[1.0]], [[1.0], [2.0]], seed=0), "`reference` must be states"),
        (lambda: mmd_test(states(0, 3), states(0, 3, 2), seed=0), "of the same size, got 3 and 2"),
        (lambda: mmd_test(states(0, 3), [[np.nan] * 3] * 2, seed=0), "`batch` contains a state"),
    ],
)
def test_invalid_inputs_of_the_shift_test_raise_an_error(call, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        call()


@pytest.mark.parametrize(("reference", "batch"), [(200, 200), (200, 20), (30, 300)])
def test_one_reference_in_twenty_has_more_false_alarms_than_the_rate(
    reference: int, batch: int
) -> None:
    """In the worst case: one direction, normal means, a reference that every batch meets."""
    z = stats.norm.isf(alarm_level(rate=0.01, references=0.95) / 2)
    off = np.random.default_rng(0).normal(size=20_000) / reference**0.5
    reach = z * (1 / reference + 1 / batch) ** 0.5
    own_rate = stats.norm.sf((reach - off) * batch**0.5) + stats.norm.cdf(
        (-reach - off) * batch**0.5
    )
    # The error of the fraction is 0.0015. At a level of 1% it would be 0.10 where both are 200.
    assert (own_rate > 0.01).mean() <= 0.055
