"""Intervals of shares: printed values, exact coverage, and the ends that a bootstrap misses."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from temper.functional.intervals import difference_intervals, score_intervals
from temper.functional.proportions import (
    GroupShares,
    OfKinds,
    Share,
    ShareDifference,
    paired_shares,
    wilson,
)


def test_wilsons_interval_has_the_printed_ends() -> None:
    # Newcombe, Statistics in Medicine 17 (1998), table I, method 3.
    printed = {(81, 263): (0.2553, 0.3662), (15, 148): (0.0624, 0.1605), (0, 20): (0.0, 0.1611)}
    printed[(1, 29)] = (0.0061, 0.1718)
    for (right, rows), ends in printed.items():
        assert wilson(right, rows) == pytest.approx(ends, abs=5e-5)


def test_rows_that_are_all_right_leave_room_below() -> None:
    low, high = wilson(120, 120)
    assert (round(100 * low, 1), high) == (96.9, 1.0)
    assert wilson(0, 120) == pytest.approx((0.0, 1 - low))
    (found,) = score_intervals([Share(np.ones(120))], 120, resamples=50, seed=0)
    assert (found.low, found.high) == (low, high)


@pytest.mark.parametrize("share", [0.5, 0.9, 0.97])
@pytest.mark.parametrize("rows", [10, 34, 200])
def test_wilsons_interval_holds_the_share_about_as_often_as_it_says(
    share: float, rows: int
) -> None:
    right = np.arange(rows + 1)
    ends = np.array([wilson(float(count), rows) for count in right])
    holds = (ends[:, 0] <= share) & (share <= ends[:, 1])
    assert stats.binom.pmf(right[holds], rows, share).sum() > 0.9


def test_a_share_among_some_rows_forgets_the_others() -> None:
    share = Share(np.array([1.0, 1.0, 0.0, 1.0]), np.array([1.0, 0.0, 1.0, 0.0]))
    assert share(np.ones((1, 4)))[0] == 0.5
    assert share.fewest == 2
    assert (share.interval(0.95).low, share.interval(0.95).high) == wilson(1, 2)


def test_few_rows_that_differ_are_no_difference() -> None:
    # Two rows of 34 that only the first has right: the bootstrap's interval would touch 0 at most.
    first, second = np.ones(34), np.ones(34)
    second[:2] = 0
    found = paired_shares(first, second)
    assert found.low is not None
    assert found.low < 0
    assert found.p is not None
    assert found.p > 0.05


def test_turning_two_models_around_turns_the_interval() -> None:
    draws = np.random.default_rng(0)
    first, second = (draws.integers(0, 2, 60).astype(float) for _ in range(2))
    one, other = paired_shares(first, second), paired_shares(second, first)
    assert (one.low, one.high, one.p) == pytest.approx((-other.high, -other.low, other.p))
    same = ShareDifference(first, second).interval(0.95)
    assert (same.low, same.high) == (one.low, one.high)
    (drawn,) = difference_intervals([(Share(first), Share(second))], 60, resamples=10, seed=0)
    assert drawn == one


def test_the_worst_of_one_group_has_its_own_interval() -> None:
    right = np.array([1.0] * 9 + [0.0])
    groups = np.zeros(10, dtype=np.int64)
    for least in (True, False):
        found = GroupShares(right, groups, least).interval(0.95)
        assert (found.low, found.high) == pytest.approx(wilson(9, 10))


def test_the_worst_group_is_held_by_its_interval() -> None:
    # Two groups as good as each other: the one that looks worse does so by chance.
    draws = np.random.default_rng(0)
    groups = np.repeat([0, 1, 2], [40, 60, 200])
    held = 0
    for _ in range(400):
        right = (draws.random(300) < 0.8).astype(float)
        found = GroupShares(right, groups, least=True).interval(0.95)
        assert found.low is not None
        assert found.high is not None
        held += found.low <= 0.8 <= found.high
    assert held >= 0.93 * 400
    assert GroupShares(right, groups, least=True).fewest == 40


def test_resamples_that_all_score_alike_give_no_interval() -> None:
    always = OfKinds(lambda counts: np.ones(len(counts)), np.array([0, 0, 1]))
    same = lambda counts: np.full(len(counts), 0.3)  # noqa: E731
    for found in score_intervals([always, same], 3, resamples=20, seed=0):
        assert (found.low, found.high) == (None, None)
