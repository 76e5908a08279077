"""Counts of a resample act like repeated rows, and sums by blocks equal sums at once."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from temper.functional import calibration, resampling, scores, selective
from temper.functional.resampling import weighted_median

ROWS = st.lists(st.tuples(st.floats(-1e6, 1e6), st.integers(0, 4)), min_size=1, max_size=12)


@given(rows=ROWS)
def test_counts_are_repetitions(rows: list[tuple[float, int]]) -> None:
    values, counts = (list(side) for side in zip(*rows, strict=True))
    # A second resample: the same counts in reverse order.
    result = weighted_median(values, [counts, counts[::-1]])
    for value, own in zip(result, (counts, counts[::-1]), strict=True):
        repeated = np.repeat(values, own)
        assert value == pytest.approx(np.median(repeated) if sum(own) else np.nan, nan_ok=True)


def test_one_count_each_is_the_plain_median() -> None:
    assert float(weighted_median([4.0, 1.0, 3.0, 2.0])) == 2.5


@pytest.mark.parametrize("values", [[], [1.0, np.nan], [np.inf]])
def test_the_median_of_no_rows_or_non_finite_values_is_nan(values: list[float]) -> None:
    assert np.isnan(weighted_median(values))


@given(st.integers(1, 40), st.integers(1, 4), st.integers(0, 2), st.integers(0, 10_000), st.data())
def test_rows_summed_in_stretches_give_the_scores_of_all_rows_at_once(
    rows: int, classes: int, decimals: int, seed: int, data: st.DataObject
) -> None:
    draws = np.random.default_rng(seed)
    given_ = draws.dirichlet(np.ones(classes + 1), rows)
    # Few decimals, so that confidences tie and stand on edges.
    probabilities = np.round(given_, decimals + 1)
    labels = draws.integers(0, classes + 1, rows)
    chosen, groups = probabilities.argmax(axis=1), draws.integers(0, 3, rows)
    sure = np.minimum(probabilities.max(axis=1), 1.0)
    counts = draws.multinomial(rows, np.full(rows, 1 / rows), size=3)
    right = chosen == labels

    def found() -> list[np.ndarray]:
        return [
            resampling.group_sums(sure, groups, 3, counts.astype(np.float64)),
            calibration.expected_calibration_error(right, sure, bins=15, counts=counts),
            calibration.adaptive_calibration_error(right, sure, counts=counts),
            calibration.classwise_calibration_error(labels, probabilities, counts=counts),
            calibration.brier_of_rows(labels, probabilities),
            calibration.negative_log_likelihood(labels, probabilities),
            calibration.probabilities_of(probabilities),
            scores.macro_f1(labels, chosen, counts=counts),
            scores.matthews(labels, chosen, counts=counts),
            scores.least_accuracy(right, groups, counts=counts),
        ]

    whole = found()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(resampling, "_CELLS", data.draw(st.integers(1, 60)))
        for one, other in zip(found(), whole, strict=True):
            np.testing.assert_allclose(one, other, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "measure",
    [
        *(score.measure for score in scores.SCORES.values() if score.measure and score.kinds),
        scores.least_accuracy,
        scores.mean_group_accuracy,
        partial(calibration.expected_calibration_error, bins=3),
        calibration.adaptive_calibration_error,
        lambda labels, sure, counts: calibration.classwise_calibration_error(
            labels, np.stack([1 - sure, sure], 1), counts=counts
        ),
        selective.area_under_risk,
        selective.excess_area,
        partial(selective.risk_at_coverage, coverage=0.5),
        lambda _, values, counts: resampling.weighted_mean(values, counts),
        lambda _, values, counts: weighted_median(values, counts),
    ],
)
def test_a_score_has_one_value_a_resample_and_none_without_rows(
    measure: Callable[..., np.ndarray],
) -> None:
    for shape in ((), (0,), (3,)):
        for rows in (0, 2):
            values = np.arange(rows)
            if getattr(measure, "__module__", "").endswith("multi_label"):
                values = np.stack([values, values], axis=-1)  # of two labels
            result = measure(values, values, counts=np.zeros((*shape, rows)))
            assert result.shape == shape
            assert result.dtype == np.float64
            assert np.isnan(result).all()


def test_counts_are_doubles_one_for_each_row() -> None:
    for counts in (None, [1, 1], np.ones(2, dtype=np.float32)):
        result = resampling.row_counts(2, counts)
        assert result.dtype == np.float64
        assert result.tolist() == [1.0, 1.0]
    for wrong in (3.0, [1.0], [[1.0], [2.0]]):
        with pytest.raises(ValueError, match=r"`counts` must have shape \[2\] or \[R, 2\], got"):
            resampling.row_counts(2, wrong)


def test_functions_of_rows_accept_zero_rows() -> None:
    none = np.zeros((0, 3))
    assert calibration.probabilities_of(none).shape == (0, 3)
    assert calibration.brier_of_rows([], none).shape == (0,)
    assert calibration.negative_log_likelihood([], none).shape == (0,)


def test_sums_of_groups_are_those_of_a_loop_over_rows() -> None:
    # By hand: rows 0 and 2 are of group 1; the second resample holds row 2 three times.
    counts = np.asarray([[1.0, 1.0, 1.0], [0.0, 0.0, 3.0]])
    result = resampling.group_sums([1.5, 2.0, -4.0], [1, 0, 1], 3, counts)
    assert result.tolist() == [[2.0, -2.5, 0.0], [0.0, -12.0, 0.0]]


def test_the_memory_of_a_score_does_not_grow_with_bins_or_classes() -> None:
    rows = 200_000
    draws = np.random.default_rng(0)
    right, sure = draws.integers(0, 2, rows).astype(np.float64), draws.random(rows)

    def most(bins: int) -> int:
        tracemalloc.start()
        try:
            calibration.expected_calibration_error(right, sure, bins=bins)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    # The counts of the rows, 8 bytes each, and a stretch; a row of bins would be 120 bytes.
    assert most(15) < 8 * rows + 16e6
    assert most(150) < 8 * rows + 16e6
