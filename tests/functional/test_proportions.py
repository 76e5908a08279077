"""Intervals of fractions: printed values, exact coverage, and the ends that a bootstrap misses."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from temper.functional.intervals import difference_intervals, score_intervals
from temper.functional.proportions import (
    GroupProportions,
    OfKinds,
    Proportion,
    ProportionDifference,
    paired_proportions,
    wilson,
    wilson_ends,
)


def test_wilsons_interval_has_the_printed_ends() -> None:
    # Newcombe, Statistics in Medicine 17 (1998), table I, method 3.
    printed = {(81, 263): (0.2553, 0.3662), (15, 148): (0.0624, 0.1605), (0, 20): (0.0, 0.1611)}
    printed[(1, 29)] = (0.0061, 0.1718)
    for (right, rows), ends in printed.items():
        assert wilson(right, rows) == pytest.approx(ends, abs=5e-5)


def test_the_interval_of_all_correct_rows_has_a_lower_end_below_1() -> None:
    low, high = wilson(120, 120)
    assert (round(100 * low, 1), high) == (96.9, 1.0)
    assert wilson(0, 120) == pytest.approx((0.0, 1 - low))
    (result,) = score_intervals([Proportion(np.ones(120))], 120, resamples=50, seed=0)
    assert (result.low, result.high) == (low, high)


@pytest.mark.parametrize("fraction", [0.5, 0.9, 0.97])
@pytest.mark.parametrize("rows", [10, 34, 200])
def test_wilsons_interval_has_about_its_nominal_coverage(fraction: float, rows: int) -> None:
    right = np.arange(rows + 1)
    ends = np.array([wilson(float(count), rows) for count in right])
    holds = (ends[:, 0] <= fraction) & (fraction <= ends[:, 1])
    assert stats.binom.pmf(right[holds], rows, fraction).sum() > 0.9


def test_a_proportion_of_a_subset_ignores_other_rows() -> None:
    fraction = Proportion(np.array([1.0, 1.0, 0.0, 1.0]), np.array([1.0, 0.0, 1.0, 0.0]))
    assert fraction(np.ones((1, 4)))[0] == 0.5
    assert fraction.fewest == 2
    result = fraction.interval()
    assert (result.low, result.high) == wilson(1, 2)


def test_few_differing_rows_are_not_significant() -> None:
    # Two rows of 34 that only the first has right: the bootstrap's interval would touch 0 at most.
    first, second = np.ones(34), np.ones(34)
    second[:2] = 0
    result = paired_proportions(first, second)
    assert result.low is not None
    assert result.low < 0
    assert result.p is not None
    assert result.p > 0.05


def test_swapping_two_models_reverses_the_interval_of_proportions() -> None:
    draws = np.random.default_rng(0)
    first, second = (draws.integers(0, 2, 60).astype(float) for _ in range(2))
    one, other = paired_proportions(first, second), paired_proportions(second, first)
    assert (one.low, one.high, one.p) == pytest.approx((-other.high, -other.low, other.p))
    assert ProportionDifference(first, second).interval() == one
    (drawn,) = difference_intervals(
        [(Proportion(first), Proportion(second))], 60, resamples=10, seed=0
    )
    assert drawn == one


def test_the_worst_of_one_group_has_its_own_interval() -> None:
    right = np.array([1.0] * 9 + [0.0])
    groups = np.zeros(10, dtype=np.int64)
    for least in (True, False):
        result = GroupProportions(right, groups, least).interval()
        assert (result.low, result.high) == pytest.approx(wilson(9, 10))


def test_groups_that_are_no_whole_numbers_raise_an_error() -> None:
    with pytest.raises(ValueError, match="Groups must be whole numbers .*got float64"):
        GroupProportions(np.ones(2), np.array([0.0, 1.0]), least=True)


def test_the_interval_of_the_worst_group_covers_the_true_value() -> None:
    # Two groups as good as each other: the one that looks worse does so by chance.
    draws = np.random.default_rng(0)
    groups = np.repeat([0, 1, 2], [40, 60, 200])
    kept = 0
    for _ in range(400):
        right = (draws.random(300) < 0.8).astype(float)
        result = GroupProportions(right, groups, least=True).interval()
        assert result.low is not None
        assert result.high is not None
        kept += result.low <= 0.8 <= result.high
    assert kept >= 0.93 * 400
    assert GroupProportions(right, groups, least=True).fewest == 40


def test_equal_scores_of_all_resamples_have_no_interval() -> None:
    always = OfKinds(lambda counts: np.ones(len(counts)), np.array([0, 0, 1]))
    same = lambda counts: np.full(len(counts), 0.3)  # noqa: E731
    for result in score_intervals([always, same], 3, resamples=20, seed=0):
        assert (result.low, result.high) == (None, None)


@given(st.lists(st.tuples(*[st.integers(0, 1)] * 2, st.integers(0, 2)), min_size=1), st.data())
def test_proportions_of_resamples_equal_those_of_repeated_rows(
    rows: list[tuple[int, int, int]], data: st.DataObject
) -> None:
    first, second, kinds = np.array(rows).T
    groups = np.unique(kinds, return_inverse=True)[1]
    weights = st.lists(st.integers(0, 3), min_size=len(rows), max_size=len(rows))
    counts = np.array(data.draw(st.lists(weights, min_size=2, max_size=2)), dtype=float)
    right = first.astype(float)
    result = {
        "all": Proportion(right)(counts),
        "difference": ProportionDifference(right, second.astype(float))(counts),
        "among": Proportion(right, second.astype(float))(counts),
        "mean": GroupProportions(right, groups, least=False)(counts),
        "least": GroupProportions(right, groups, least=True)(counts),
    }
    for at, weight in enumerate(counts.astype(int)):
        chosen = np.repeat(np.arange(len(rows)), weight)
        fractions = [right[chosen][groups[chosen] == g].mean() for g in np.unique(groups[chosen])]
        counted = right[chosen][second[chosen] == 1]
        expected = {
            "all": right[chosen].mean() if len(chosen) else np.nan,
            "difference": (first - second)[chosen].mean() if len(chosen) else np.nan,
            "among": counted.mean() if len(counted) else np.nan,
            "mean": np.mean(fractions) if fractions else np.nan,
            "least": min(fractions, default=np.nan),
        }
        for name, value in expected.items():
            assert result[name][at] == pytest.approx(value, nan_ok=True), name


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1)), min_size=1, max_size=40))
def test_the_paired_interval_equals_the_formula_with_added_rows(
    rows: list[tuple[int, int]],
) -> None:
    n, b, c = len(rows) + 2, rows.count((1, 0)) + 1, rows.count((0, 1)) + 1
    first, second = np.array(rows, dtype=float).T
    result = paired_proportions(first, second)
    middle = (b - c) / n
    error = np.sqrt(((b + c) / n - middle**2) / n)
    reach = stats.norm.isf(0.025) * error
    assert result.low == pytest.approx(max(-1, middle - reach))
    assert result.high == pytest.approx(min(1, middle + reach))
    assert result.p == pytest.approx(2 * stats.norm.sf(abs(middle) / error))
    assert ProportionDifference(first, second).fewest == len(rows)


def test_intervals_without_rows_or_with_more_right_ones_raise_an_error() -> None:
    for right, rows in [(0, 0), (-1, 3), (4, 3)]:
        with pytest.raises(ValueError, match=f"got {right} of {rows}"):
            wilson(right, rows)
    for first, second in [(np.ones(0), np.ones(0)), (np.ones(2), np.ones(3))]:
        with pytest.raises(ValueError, match=rf"same length >= 1, got \[{len(first)}\] and"):
            paired_proportions(first, second)
    nothing = GroupProportions(np.ones(0), np.ones(0, dtype=np.int64), least=True)
    assert (nothing.interval().low, nothing.interval().high) == (None, None)
    assert nothing.fewest == 0


def test_the_interval_of_a_mean_of_groups_adds_their_distances_like_standard_errors() -> None:
    right, groups = (
        np.array([1.0] * 8 + [0.0] * 2 + [1.0] * 15 + [0.0] * 25),
        np.repeat([0, 1], [10, 40]),
    )
    result = GroupProportions(right, groups, least=False).interval()
    (low, high), (least, most) = wilson(8, 10), wilson(15, 40)
    mean = (0.8 + 0.375) / 2
    assert result.low == pytest.approx(mean - np.hypot(0.8 - low, 0.375 - least) / 2)
    assert result.high == pytest.approx(mean + np.hypot(high - 0.8, most - 0.375) / 2)
    # Either of the two may look worst by chance, so its upper end is taken at half the alpha.
    worst = GroupProportions(right, groups, least=True).interval()
    assert worst.low == pytest.approx(least)
    _, high_ends = wilson_ends(np.array([15.0]), np.array([40]), confidence=0.975)
    assert worst.high == pytest.approx(high_ends[0])


def test_one_row_has_an_interval() -> None:
    # Wilson's equation at n = 1: the other end is z^2 / (1 + z^2).
    z = stats.norm.isf(0.025)
    assert wilson(0, 1) == pytest.approx((0.0, z**2 / (1 + z**2)))
    assert wilson(1, 1) == pytest.approx((1 / (1 + z**2), 1.0))


def test_intervals_of_proportions_0_and_1_end_exactly_there() -> None:
    for rows in range(1, 200):
        assert (wilson(0, rows)[0], wilson(rows, rows)[1]) == (0.0, 1.0)
