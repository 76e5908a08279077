"""Differences over seeds and rows, against scipy, numbers by hand, and simulated studies."""

from __future__ import annotations

import math
from statistics import variance

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from scipy import stats

from temper.functional.effects import Effect, RowVariance, combined, effect, seeds_to_detect

SCORES = st.lists(st.tuples(*[st.integers(-50, 50)] * 2), min_size=3, max_size=8)


# Columns that happen to be equal are as unsure of a difference as any.
@example([(1, 1), (2, 2), (4, 4)])
@given(SCORES)
def test_without_rows_the_effect_equals_students_t_test(pairs: list[tuple[int, int]]) -> None:
    first, second = (list(map(float, column)) for column in zip(*pairs, strict=True))
    # scipy warns of columns that do not vary.
    assume(np.ptp(first) > 0)
    assume(np.ptp(second) > 0)
    result = effect(first, second)
    assert result is not None
    wanted = stats.ttest_ind(first, second)
    reach = wanted.confidence_interval(0.95)
    assert result.p == pytest.approx(wanted.pvalue)
    assert (result.low, result.high) == (pytest.approx(reach.low), pytest.approx(reach.high))
    assert result.freedom == pytest.approx(2 * (len(pairs) - 1))
    assert result.includes_zero == (result.p >= 0.05)


@given(st.lists(st.integers(-50, 50), min_size=3, max_size=8))
def test_one_column_agrees_with_students_test_of_its_mean(values: list[int]) -> None:
    result = effect(list(map(float, values)))
    if np.ptp(values) == 0:
        assert (result is None) == (values[0] != 0)
        return
    assert result is not None
    wanted = stats.ttest_1samp(values, 0.0)
    reach = wanted.confidence_interval(0.95)
    assert result.p == pytest.approx(wanted.pvalue)
    assert (result.low, result.high) == (pytest.approx(reach.low), pytest.approx(reach.high))


def test_a_constant_column_counts_as_a_known_number() -> None:
    values = [0.80, 0.84, 0.82]
    known = effect(values, [0.75] * 3)
    alone = effect([value - 0.75 for value in values])
    assert known is not None
    assert alone is not None
    assert (known.freedom, known.low) == (2.0, pytest.approx(alone.low))


@pytest.mark.parametrize(
    ("second", "luck", "known"),
    [
        # Variances over the seeds 4 and 1; the rows make 2 of the first and 1 of the second by
        # themselves, which 3 seeds thin to 1 in the difference; the rows' variance of it is 3.
        ([4.0, 5.0, 6.0], 3.0, (2.0, 1.0)),
        # A column that happens to be one number, of which the rows by themselves make a half.
        ([5.0, 5.0, 5.0], 1.0, (2.0, 0.5)),
    ],
)
def test_rows_are_added_and_not_counted_twice(
    second: list[float], luck: float, known: tuple[float, float]
) -> None:
    first = [8.0, 10.0, 12.0]
    result = effect(first, second, rows=RowVariance(luck, known))
    assert result is not None
    seen, floor = 4.0 + variance(second), sum(known)
    total = luck + (seen - floor) / 3
    freedom = 4 * (total / ((seen - 0.15 * floor) / 3)) ** 2
    assert result.standard_error == pytest.approx(math.sqrt(total))
    assert result.freedom == pytest.approx(freedom)
    assert result.row_variance == pytest.approx(luck - floor / 3)
    assert result.high - result.mean == pytest.approx(stats.t.ppf(0.975, freedom) * total**0.5)


def test_the_variance_of_agreeing_seeds_is_at_least_that_of_their_rows() -> None:
    agree = [0.8, 0.8, 0.8001], [0.78, 0.7801, 0.78]
    alone = effect(*agree)
    rows = effect(*agree, rows=RowVariance(2e-4, (1e-4, 1e-4)))
    assert alone is not None
    assert rows is not None
    assert not alone.includes_zero
    assert rows.includes_zero
    assert rows.standard_error == pytest.approx(2e-4**0.5)


# If few rows have nearly all of the variance, there are almost no degrees of freedom, but some.
@example([(0, 0)] * 3, 1.2e-194, 0.0, 1.0)
@given(SCORES, st.floats(0, 100), st.floats(0, 100), st.floats(0, 100))
def test_swapping_the_columns_reverses_the_interval(
    pairs: list[tuple[int, int]], luck: float, one: float, two: float
) -> None:
    first, second = (list(map(float, column)) for column in zip(*pairs, strict=True))
    result = effect(first, second, rows=RowVariance(luck, (one, two)))
    turned = effect(second, first, rows=RowVariance(luck, (two, one)))
    assert (result is None) == (turned is None)
    if result is not None and turned is not None:
        assert turned.low == pytest.approx(-result.high)
        assert turned.p == pytest.approx(result.p)
        assert turned.least == pytest.approx(result.least)


def test_few_seeds_and_constant_scores_have_no_effect_estimate() -> None:
    two = [0.8, 0.9], [0.7, 0.6]
    assert effect(*two) is None
    assert effect(*two, rows=RowVariance(1e-4, (1e-4, 1e-4))) is not None
    assert effect([0.8], [0.7], rows=RowVariance(1e-4, (1e-4, 1e-4))) is None
    assert effect([0.8] * 3, [0.7] * 3) is None
    # Of equal scores there is nothing to be unsure of; .1 + .2 is not .3.
    equal = [0.1 + 0.2] * 3, [0.3] * 3
    assert effect(*equal) == Effect(0.0, 0.0, 0.0, 1.0, 3, 0.0, 2.0)
    rows = RowVariance(0.0, (0.0, 0.0))
    assert effect(*equal, rows=rows) == Effect(0.0, 0.0, 0.0, 1.0, 3, 0.0, 2.0, 0.0)


def test_columns_with_equal_scores_have_a_difference_of_0() -> None:
    scores = [0.0017, 0.0003, 0.0007]
    result = effect(scores, scores, rows=RowVariance(0.0, (5e-7, 5e-7)))
    assert result == Effect(0.0, 0.0, 0.0, 1.0, 3, 0.0, 2.0, 0.0)
    assert result.least == 0.0


def test_scores_of_different_seeds_or_nan_raise_an_error() -> None:
    with pytest.raises(ValueError, match=r"as many scores .*, got \[3, 2\]"):
        effect([1.0, 2.0, 3.0], [1.0, 2.0])
    with pytest.raises(ValueError, match="must be finite"):
        effect([1.0, 2.0, float("nan")])


def test_the_least_effect_is_seen_four_times_in_five() -> None:
    """By simulation: normal scores of the spread that was seen."""
    first, second = [0.9, 1.0, 1.1, 1.0, 0.8], [0.5, 0.3, 0.4, 0.5, 0.5]
    seen = effect(first, second)
    assert seen is not None
    spread = ((variance(first) + variance(second)) / 2) ** 0.5
    draws = np.random.default_rng(0).normal(0, spread, (20_000, 5, 2))
    draws[..., 0] += seen.least
    result = stats.ttest_ind(draws[..., 0], draws[..., 1], axis=1)
    # The error of the fraction is .003.
    assert (result.pvalue < 0.05).mean() == pytest.approx(0.8, abs=0.015)


def needed_for(size: float, result: Effect) -> int | None:
    """Return the seeds that detect a difference, by the study that an effect is of."""
    return seeds_to_detect(
        size,
        seeds=result.seeds,
        standard_error=result.standard_error,
        freedom=result.freedom,
        row_variance=result.row_variance,
    )


# Of the second size three seeds are enough, as many as the study has.
@pytest.mark.parametrize("size", [0.02, 0.1, 0.03])
def test_seeds_to_detect_are_the_fewest_with_enough_power(size: float) -> None:
    first, second = [0.80, 0.84, 0.82], [0.79, 0.80, 0.82]
    result = effect(first, second)
    assert result is not None
    needed = needed_for(size, result)
    assert needed is not None
    spread = (variance(first) + variance(second)) / 2

    def seen(seeds: int) -> float:
        """Return the power of that many seeds."""
        freedom = 2 * (seeds - 1)
        shift = size / (2 * spread / seeds) ** 0.5
        return float(stats.nct.sf(stats.t.ppf(0.975, freedom), freedom, shift))

    assert seen(needed) >= 0.8
    assert needed == 3 or seen(needed - 1) < 0.8


def test_no_number_of_seeds_detects_effects_below_the_variance_over_rows() -> None:
    first, second = [0.80, 0.84, 0.82], [0.79, 0.80, 0.82]
    few = effect(first, second, rows=RowVariance(0.03**2, (0.0, 0.0)))
    assert few is not None
    assert few.includes_zero
    assert needed_for(0.02, few) is None
    # What the rows alone hide is detected by no number of seeds, more than that by a few.
    assert needed_for(0.2, few) is not None


@pytest.mark.parametrize("seeds", [3, 5])
def test_stated_differences_are_detected_with_the_seeds_that_are_named(seeds: int) -> None:
    """By simulation: the number comes from few seeds, so the power holds on average, roughly."""
    draws, size, detected, studies = np.random.default_rng(seeds), 1.5, 0, 400
    for _ in range(studies):
        pilot = effect(draws.normal(size=seeds).tolist(), draws.normal(size=seeds).tolist())
        assert pilot is not None
        count = needed_for(size, pilot)
        assert count is not None
        new = effect((size + draws.normal(size=count)).tolist(), draws.normal(size=count).tolist())
        assert new is not None
        detected += not new.includes_zero
    # 0.8 less what a variance of few seeds costs; the error of the fraction is 0.02.
    assert 0.65 < detected / studies < 0.9


@pytest.mark.parametrize("seeds", [2, 3, 5])
@pytest.mark.parametrize("rows", [0.0, 0.5])
def test_one_verdict_in_twenty_is_false(seeds: int, rows: float) -> None:
    """By simulation: rows make a part of what seeds differ by, and a luck of their own."""
    draws = np.random.default_rng(seeds)
    luck = rows / 4
    scores = draws.normal(size=(20_000, seeds, 2))
    scores += draws.normal(size=(20_000, 1, 2)) * (luck / 2) ** 0.5
    mean = scores.mean(axis=1) @ [1.0, -1.0]
    known = np.full(2, rows)
    total, freedom = combined(scores.var(axis=1, ddof=1), known, luck + 2 * rows / seeds, seeds)
    false = (2 * stats.t.sf(abs(mean) / total**0.5, freedom) < 0.05).mean()
    # The Monte Carlo error is .0015; what the rows say makes two seeds stricter.
    assert false < 0.055
    assert rows or false > 0.045


@pytest.mark.parametrize("freedom", [0.1, 0.2, 0.4, 0.5, 0.7, 1.0, 3.0, 12.0, 250.0])
def test_the_least_difference_is_seen_four_times_in_five(freedom: float) -> None:
    result = Effect(0.0, -1.0, 1.0, 1.0, 2, 2.0, freedom)
    reach = stats.t.ppf(0.975, freedom)
    # A t statistic is a normal one over the root of an independent mean square.
    squares = stats.chi2.ppf((np.arange(100_000) + 0.5) / 100_000, freedom) / freedom
    seen = stats.norm.cdf(result.least / 2.0 - reach * np.sqrt(squares)).mean()
    assert seen == pytest.approx(0.8, abs=2e-3)


def test_differences_of_many_studies_are_combined_as_each_by_itself() -> None:
    draws = np.random.default_rng(0)
    of_seeds, known, luck = draws.random((5, 2)), draws.random((5, 2)), draws.random(5)
    # Rows of which nothing is unsure have the most degrees of freedom that are counted.
    of_seeds[0] = known[0] = 0.0
    totals, freedoms = combined(of_seeds, known, luck, 4)
    assert freedoms.max() == freedoms[0] == 10_000
    for at in range(5):
        alone = combined(of_seeds[at], known[at], luck[at], 4)
        assert (totals[at], freedoms[at]) == alone


def test_a_study_that_rows_alone_decide_has_a_least_difference_all_the_same() -> None:
    result = effect([0.5, 0.5001], [0.6, 0.6001], rows=RowVariance(1e-9, columns=(0.02, 0.03)))
    assert result is not None
    assert result.freedom == 0.1
    assert math.isfinite(result.least)
