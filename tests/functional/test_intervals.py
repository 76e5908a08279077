"""Intervals against closed forms and scipy, corrections on hand-worked numbers."""

from __future__ import annotations

import itertools
from functools import partial

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats
from scipy.special import softmax

from temper.functional import intervals
from temper.functional.calibration import (
    adaptive_calibration_error,
    classwise_calibration_error,
    expected_calibration_error,
)
from temper.functional.detectors import auroc
from temper.functional.intervals import Statistic
from temper.functional.proportions import Proportion
from temper.functional.resampling import FloatArray, weighted_mean
from tests.messages import assert_messages


def mean_of(values: object) -> Statistic:
    return lambda counts: weighted_mean(values, counts)  # type: ignore[arg-type]


def test_the_spread_of_resampled_means_is_the_standard_error() -> None:
    values = np.asarray([0.0, 1.0] * 50)
    (result,) = intervals.resampled(mean_of(values), rows=100, resamples=20_000, seed=0)
    # sqrt(.5 * .5 / 100) = .05; the spread of 20,000 draws is within 2% of it.
    assert result.std() == pytest.approx(0.05, rel=0.02)
    assert result.mean() == pytest.approx(0.5, abs=0.002)


def test_every_row_is_equally_likely_and_resamples_are_as_large_as_the_data() -> None:
    drawn: list[FloatArray] = []

    def keep(counts: FloatArray) -> FloatArray:
        drawn.append(counts)
        return counts[:, 0]

    intervals.resampled(keep, rows=8, resamples=4000, seed=3)
    counts = np.concatenate(drawn)
    assert (counts.sum(axis=1) == 8).all()
    # A count is binomial(8, 1/8): mean 1, variance 7/8.
    assert counts.mean(axis=0) == pytest.approx(np.ones(8), abs=0.08)
    assert counts.var(axis=0) == pytest.approx(np.full(8, 7 / 8), abs=0.12)


def test_the_same_seed_draws_the_same_resamples() -> None:
    statistic = mean_of(np.arange(20.0))
    (first,) = intervals.resampled(statistic, rows=20, resamples=50, seed=1)
    again, other = intervals.resampled(statistic, lambda c: c[:, 0], rows=20, resamples=50, seed=1)
    assert (first == again).all()
    assert (first != other).any()
    (another,) = intervals.resampled(statistic, rows=20, resamples=50, seed=2)
    assert (first != another).any()


def test_resamples_without_a_score_are_left_out_and_too_many_give_no_interval() -> None:
    one_in_two = lambda counts: auroc([1, 0], [0.9, 0.1], counts=counts)  # noqa: E731
    (result,) = intervals.score_intervals([one_in_two], 2, resamples=1000, seed=0)
    assert result.low is None
    assert result.high is None
    # Both rows the same: 2 of 4 draws.
    assert result.undefined == pytest.approx(0.5, abs=0.06)


def test_the_interval_has_the_fraction_of_resamples_without_a_score() -> None:
    """One row in forty is of the first class, and of 200 rows drawn (39/40)^200 have none of it."""
    labels = np.r_[np.ones(5, dtype=int), np.zeros(195, dtype=int)]
    values = np.random.default_rng(2).permutation(np.linspace(0, 1, 200))
    statistic = lambda counts: auroc(labels, values, counts=counts)  # noqa: E731
    (result,) = intervals.score_intervals([statistic], 200, resamples=4000, seed=0)
    assert result.low is not None
    chance = (1 - 5 / 200) ** 200
    assert result.undefined == pytest.approx(chance, abs=5 * (chance / 4000) ** 0.5)


@pytest.mark.parametrize("fraction", [0.01, 0.5, 1.0])
def test_no_interval_is_given_where_many_resamples_have_no_score(fraction: float) -> None:
    def statistic(counts: FloatArray) -> FloatArray:
        values = counts @ np.arange(5.0)
        return np.where(np.arange(len(values)) < fraction * len(values), np.nan, values)

    (result,) = intervals.score_intervals([statistic], 5, resamples=200, seed=0)
    assert (result.low is None) == (fraction > 0.05)
    assert result.undefined == pytest.approx(fraction)


def test_the_ends_are_quantiles_of_the_resampled_scores() -> None:
    statistic = mean_of([0.1, 0.7, 0.4, 2.0])
    (values,) = intervals.resampled(statistic, rows=4, resamples=500, seed=3)
    (result,) = intervals.score_intervals([statistic], 4, resamples=500, seed=3)
    assert result.low == pytest.approx(np.quantile(values, 0.025))
    assert result.high == pytest.approx(np.quantile(values, 0.975))


@pytest.mark.parametrize(
    "apart", [[5.0, 6.0, 7.0], [1.0, 1.0, -1.0], [1.0, -1.0, -1.0], [1.0, -1.0] + [0.0] * 6]
)
def test_the_p_of_a_difference_counts_resamples_on_either_side_of_0(apart: list[float]) -> None:
    rows, pair = len(apart), (mean_of(apart), mean_of([0.0] * len(apart)))
    for seed in (0, 1):
        (values,) = intervals.resampled(pair[0], rows=rows, resamples=300, seed=seed)
        (result,) = intervals.difference_intervals([pair], rows, resamples=300, seed=seed)
        sides = sum(value <= 0 for value in values), sum(value >= 0 for value in values)
        assert result.p == pytest.approx(min(1.0, max(2 * min(sides), 1) / 300))
        assert result.low == pytest.approx(np.quantile(values, 0.025))
        assert result.high == pytest.approx(np.quantile(values, 0.975))


def test_proportions_of_different_rows_are_compared_by_the_bootstrap() -> None:
    draws = np.random.default_rng(0)
    right, among = (draws.integers(0, 2, 30).astype(float) for _ in range(2))
    sides: list[Statistic] = [Proportion(right), Proportion(right, among), mean_of(1 - right)]
    for first, second in itertools.permutations(sides, 2):
        # A partial is no fraction to the library, so that both of its sides are resampled.
        pairs: list[tuple[Statistic, Statistic]]
        pairs = [(first, second), (partial(first), partial(second))]
        result, drawn = intervals.difference_intervals(pairs, 30, resamples=50, seed=0)
        assert result == drawn


def test_a_closed_form_interval_uses_no_resamples() -> None:
    fraction = Proportion(np.array([1.0, 0.0]))
    for result in (
        intervals.score_intervals([fraction], 2, resamples=0, seed=0),
        intervals.difference_intervals([(fraction, fraction)], 2, resamples=0, seed=0),
    ):
        assert result[0].low is not None


def test_a_paired_bootstrap_is_narrower_than_the_interval_of_one_model() -> None:
    draw = np.random.default_rng(0)
    hard = draw.random(200) < 0.4
    first, second = np.where(hard, 0.0, 1.0), np.where(hard, 0.0, 1.0)
    first[:10] = 1.0
    gain = float(first.mean() - second.mean())
    pair = (mean_of(first), mean_of(second))
    (result,) = intervals.difference_intervals([pair], 200, resamples=10_000, seed=0)
    (alone,) = intervals.score_intervals([mean_of(first)], 200, resamples=1000, seed=0)
    assert result.low is not None
    assert result.high is not None
    assert alone.low is not None
    assert alone.high is not None
    assert result.low <= gain <= result.high
    assert result.high - result.low < (alone.high - alone.low) / 2


def test_equal_models_have_no_bootstrap_interval_to_differ_by() -> None:
    same = mean_of([1.0, 0.0, 1.0])
    other = mean_of([0.0, 3.0, 1.0])
    pairs = [(same, same), (same, other)]
    result, apart = intervals.difference_intervals(pairs, 3, resamples=100, seed=0)
    assert (result.low, result.high, result.p) == (None, None, None)
    assert apart == intervals.difference_intervals(pairs[1:], 3, resamples=100, seed=0)[0]
    assert apart.low is not None


def sure_predictions(draws: np.random.Generator, rows: int) -> tuple[FloatArray, NDArray[np.int64]]:
    """Return probabilities of six classes that are exactly right, and labels drawn by them."""
    probabilities = softmax(2 * draws.normal(size=(rows, 6)), axis=1)
    labels = (probabilities.cumsum(axis=1) < draws.random((rows, 1))).sum(axis=1).clip(max=5)
    return probabilities, labels


def calibration_errors(draws: np.random.Generator, rows: int) -> dict[str, Statistic]:
    probabilities, labels = sure_predictions(draws, rows)
    hits = (probabilities.argmax(axis=1) == labels).astype(float)
    sure = probabilities.max(axis=1)
    return {
        "ece": lambda counts: expected_calibration_error(hits, sure, bins=15, counts=counts),
        "adaptive": lambda counts: adaptive_calibration_error(hits, sure, counts=counts),
        "class-wise": lambda counts: classwise_calibration_error(
            labels, probabilities, counts=counts
        ),
    }


@pytest.mark.parametrize("name", ["ece", "adaptive", "class-wise"])
def test_the_interval_of_a_calibration_error_has_the_score_and_its_mean(name: str) -> None:
    """By simulation of a calibrated model, where resampling doubles what chance makes of 0."""
    draws, rows, kept, values = np.random.default_rng(0), 200, [], []
    for _ in range(60):
        statistic = calibration_errors(draws, rows)[name]
        centered = intervals.Centered(statistic)
        (result,) = intervals.score_intervals([centered], rows, resamples=100, seed=0)
        value = float(statistic(np.ones((1, rows)))[0])
        assert 0 <= result.low <= value <= result.high
        kept.append((result.low, result.high))
        values.append(value)
    # At 95% fewer than 52 of 60 come with probability 0.01.
    assert sum(low <= np.mean(values) <= high for low, high in kept) >= 52


def test_a_difference_of_calibration_errors_has_its_own_value() -> None:
    draws, rows = np.random.default_rng(0), 200
    one, other = (
        intervals.Centered(calibration_errors(draws, rows)["class-wise"]) for _ in range(2)
    )
    (result,) = intervals.difference_intervals([(one, other)], rows, resamples=200, seed=0)
    apart = float((one(np.ones((1, rows))) - other(np.ones((1, rows))))[0])
    assert result.low <= apart <= result.high
    assert (result.low + result.high) / 2 == pytest.approx(apart, abs=0.004)


def test_a_bootstrap_without_rows_raises_an_error() -> None:
    with pytest.raises(ValueError, match="rows and resamples >= 1, got 0 and 1000"):
        intervals.score_intervals([mean_of([])], 0, resamples=1000, seed=0)
    assert len(intervals.resampled(mean_of([1.0]), rows=1, resamples=1, seed=0)[0]) == 1


def test_holm_by_hand() -> None:
    # Sorted .005 .01 .03 .04, times 4 3 2 1: .02 .03 .06 .04, made monotone.
    assert intervals.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert intervals.holm([]) == []
    assert intervals.holm([0.7, 0.8]) == [1.0, 1.0]
    assert intervals.holm([1.0, 0.0]) == [1.0, 0.0]


def test_holm_raises_an_error_for_a_p_value_above_1() -> None:
    with pytest.raises(ValueError, match=r"must be in \[0, 1\]"):
        intervals.holm([1.5])


PERFECT = {"shift": 100.0, "adversarial": 100.0, "calibration": 0.0, "anomaly": 1.0}
BASE = {"shift": 80.0, "adversarial": 50.0, "calibration": 0.1, "anomaly": 0.8}


def test_the_average_relative_improvement_by_hand() -> None:
    # (82 - 80)/20, (60 - 50)/50, (.05 - .1)/(-.1), (.75 - .8)/.2 = 10, 20, 50, -25 per cent.
    scores = {"shift": 82.0, "adversarial": 60.0, "calibration": 0.05, "anomaly": 0.75}
    result = intervals.average_relative_improvement(scores, BASE, perfect=PERFECT)
    assert result.parts == pytest.approx(
        {"shift": 10, "adversarial": 20, "calibration": 50, "anomaly": -25}
    )
    assert result.value == pytest.approx(13.75)
    assert result.reasons == ()


def test_a_perfect_reference_has_no_relative_improvement_and_a_reason() -> None:
    result = intervals.average_relative_improvement(BASE, {**BASE, "anomaly": 1.0}, perfect=PERFECT)
    assert result.value is None
    assert_messages(result.reasons, "^anomaly: the baseline is perfect")
    with pytest.raises(ValueError, match=r"The baseline is perfect \(1\)"):
        intervals.relative_improvement(0.5, 1.0, 1.0)


def test_a_missing_part_is_skipped_and_reported() -> None:
    result = intervals.average_relative_improvement(
        {**BASE, "shift": 90.0, "adversarial": None}, BASE, perfect=PERFECT
    )
    assert result.value == pytest.approx(50 / 3)
    assert_messages(result.reasons, "^adversarial is left out: the model ")
    unknown = intervals.average_relative_improvement(BASE, {**BASE, "shift": None}, perfect=PERFECT)
    assert_messages(unknown.reasons, "^shift is left out: the baseline ")


def test_an_improvement_has_ten_decimals() -> None:
    # (.9 - .8) / (1 - .8) is 49.99999999999999 per cent in doubles.
    assert intervals.relative_improvement(0.9, 0.8, 1.0) == 50.0
    assert intervals.relative_improvement(1.0, 0.0, 3.0) == 33.3333333333


@pytest.mark.parametrize("values", [[1.0, 3.0], [0.5, 2.0, 2.0, 9.0, -1.0]])
def test_the_standard_error_is_scipys(values: list[float]) -> None:
    assert intervals.standard_error(values) == pytest.approx(stats.sem(values), rel=1e-12)


@pytest.mark.parametrize("values", [[], [1.0], [1.0, np.nan], [np.inf, 1.0], [1e308, -1e308]])
def test_a_standard_error_of_nan_is_none(values: list[float]) -> None:
    with np.errstate(over="ignore"):
        assert intervals.standard_error(values) is None
