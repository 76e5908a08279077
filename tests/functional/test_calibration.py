"""Calibration on hand-worked numbers, and against a plain loop on arbitrary ones."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import brier_score_loss, log_loss

from temper.functional import calibration

ROWS = st.lists(
    st.tuples(st.booleans(), st.floats(0, 1) | st.sampled_from([i / 10 for i in range(11)])),
    min_size=1,
    max_size=30,
)


def ece(correct: list[float], confidences: list[float], bins: int = 10) -> float:
    return float(calibration.expected_calibration_error(correct, confidences, bins=bins))


def test_a_confidence_of_one_shares_the_last_bin() -> None:
    # One bin: |3 right of 4 - (.95 + .95 + 1 + 1) / 4| = .225. Two bins would give .275.
    assert ece([1, 1, 0, 1], [0.95, 0.95, 1.0, 1.0]) == pytest.approx(0.225)
    assert ece([1, 0, 1, 1], [0.9, 1.0, 1.0, 1.0]) == pytest.approx(0.225)


def test_ece_by_hand_in_two_bins() -> None:
    # Bin .6: 2 rows, 1 right, mean .65, gap .15. Bin .8: 2 rows, 2 right, mean .85, gap .15.
    assert ece([1, 0, 1, 1], [0.62, 0.68, 0.82, 0.88]) == pytest.approx(0.15)


def test_fifteen_bins_are_finer_than_ten() -> None:
    # .61 and .68 share a bin of ten (|.5 - .645|), and not of fifteen (edge at .6667).
    assert ece([1, 0], [0.61, 0.68], 10) == pytest.approx(0.145)
    assert ece([1, 0], [0.61, 0.68], 15) == pytest.approx((0.39 + 0.68) / 2)


def test_a_perfect_and_sure_model_is_calibrated() -> None:
    assert ece([1, 1], [1.0, 1.0]) == 0.0


@given(ROWS, st.sampled_from([1, 10, 15]))
def test_ece_agrees_with_a_loop_over_bins(rows: list[tuple[bool, float]], bins: int) -> None:
    total = 0.0
    for number in range(bins):
        low, high = number / bins, (number + 1) / bins
        inside = [
            row for row in rows if low <= row[1] < high or (row[1] == 1.0 and number == bins - 1)
        ]
        if inside:
            right = sum(row[0] for row in inside) / len(inside)
            sure = sum(row[1] for row in inside) / len(inside)
            total += len(inside) / len(rows) * abs(right - sure)
    assert ece([row[0] for row in rows], [row[1] for row in rows], bins) == pytest.approx(
        total, abs=1e-12
    )


@given(ROWS)
def test_the_diagram_sums_to_the_error(rows: list[tuple[bool, float]]) -> None:
    correct, confidences = [row[0] for row in rows], [row[1] for row in rows]
    found = calibration.reliability(correct, confidences, bins=10)
    filled = found.rows > 0
    gaps = np.abs(found.accuracy[filled] - found.confidence[filled]) * found.rows[filled]
    assert gaps.sum() / len(rows) == pytest.approx(ece(correct, confidences), abs=1e-12)
    assert np.isnan(found.accuracy[~filled]).all()


def test_ece_of_resamples_is_that_of_repeated_rows() -> None:
    correct, confidences = [1, 0, 1], [0.95, 0.7, 0.55]
    found = calibration.expected_calibration_error(
        correct, confidences, bins=10, counts=[[2, 1, 0], [0, 0, 0]]
    )
    assert found[0] == pytest.approx(ece([1, 1, 0], [0.95, 0.95, 0.7]))
    assert np.isnan(found[1])


def test_logits_are_not_taken_for_confidences() -> None:
    with pytest.raises(ValueError, match=r"\[0, 1\]. Pass probabilities, not logits"):
        ece([1], [3.2])
    with pytest.raises(ValueError, match="`bins` must be >= 1, got 0"):
        ece([1], [0.5], 0)


def test_brier_is_the_mean_of_squares_over_three_classes() -> None:
    probabilities = [[0.7, 0.2, 0.1], [0.1, 0.1, 0.8], [0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]
    # By hand: .09 + .04 + .01, .01 + .81 + .64, 0, and 1 + 1.
    found = calibration.brier([0, 1, 2, 1], probabilities)
    assert float(found) == pytest.approx((0.14 + 1.46 + 0.0 + 2.0) / 4)


def test_brier_runs_to_two() -> None:
    assert float(calibration.brier([0], [[0.0, 1.0]])) == 2.0
    # (1 - .7)^2 + .2^2 + .1^2 = .14
    assert float(calibration.brier([0], [[0.7, 0.2, 0.1]])) == pytest.approx(0.14)


@given(st.lists(st.tuples(st.integers(0, 1), st.floats(0, 1)), min_size=1, max_size=20))
def test_brier_is_twice_the_binary_one(rows: list[tuple[int, float]]) -> None:
    labels, second = map(list, zip(*rows, strict=True))
    probabilities = np.stack([1 - np.asarray(second), second], axis=1)
    binary = brier_score_loss(labels, second, labels=[0, 1])
    assert float(calibration.brier(labels, probabilities)) == pytest.approx(2 * binary)


def test_nll_by_hand_and_finite_where_probabilities_vanish() -> None:
    found = calibration.negative_log_likelihood([0, 1], [[0.0, 0.0], [2000.0, 0.0]])
    assert found == pytest.approx([np.log(2), 2000.0])


@given(st.lists(st.tuples(st.integers(0, 2), *[st.floats(-8, 8)] * 3), min_size=1, max_size=10))
def test_nll_agrees_with_scikit_learn(rows: list[tuple[int, float, float, float]]) -> None:
    labels = [row[0] for row in rows]
    logits = np.asarray([row[1:] for row in rows])
    mean = calibration.negative_log_likelihood(labels, logits).mean()
    wanted = log_loss(labels, calibration.probabilities_of(logits), labels=[0, 1, 2])
    assert mean == pytest.approx(wanted)


def test_labels_outside_the_classes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"whole numbers in 0\.\.1"):
        calibration.brier([2], [[0.5, 0.5]])
    with pytest.raises(ValueError, match=r"got \[1\] and \[2, 2\]"):
        calibration.negative_log_likelihood([0], [[0.0, 0.0], [0.0, 0.0]])
