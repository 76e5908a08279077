"""Calibration on hand-worked numbers, and against a plain loop on arbitrary ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
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


@given(ROWS, st.integers(1, 12))
def test_the_bins_of_a_diagram_part_0_to_1_and_hold_the_rows_between_their_edges(
    rows: list[tuple[bool, float]], bins: int
) -> None:
    correct, confidences = (np.array(side, dtype=float) for side in zip(*rows, strict=True))
    result = calibration.reliability(correct, confidences, bins=bins)
    assert result.rows.dtype == np.int64
    for number in range(bins):
        low, high = number / bins, (number + 1) / bins
        inside = (low <= confidences) & ((confidences < high) | (high == 1.0))
        right = correct[inside].mean() if inside.any() else np.nan
        sure = confidences[inside].mean() if inside.any() else np.nan
        assert result.rows[number] == inside.sum()
        assert result.accuracy[number] == pytest.approx(right, nan_ok=True)
        assert result.confidence[number] == pytest.approx(sure, nan_ok=True)
    gaps = np.abs(result.accuracy - result.confidence) * result.rows
    total = ece(correct.tolist(), confidences.tolist(), bins)
    assert np.nansum(gaps) / len(rows) == pytest.approx(total, abs=1e-12)


def test_ece_of_resamples_is_that_of_repeated_rows() -> None:
    correct, confidences = [1, 0, 1], [0.95, 0.7, 0.55]
    result = calibration.expected_calibration_error(
        correct, confidences, bins=10, counts=[[2, 1, 0], [0, 0, 0], [0, 1, 2]]
    )
    assert result[0] == pytest.approx(ece([1, 1, 0], [0.95, 0.95, 0.7]))
    assert np.isnan(result[1])
    assert result[2] == pytest.approx(ece([0, 1, 1], [0.7, 0.55, 0.55]))


def test_brier_sums_squares_over_three_classes() -> None:
    probabilities = [[0.7, 0.2, 0.1], [0.1, 0.1, 0.8], [0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]
    # By hand: .09 + .04 + .01, .01 + .81 + .64, 0, and 1 + 1.
    result = calibration.brier_of_rows([0, 1, 2, 1], probabilities)
    assert result.tolist() == pytest.approx([0.14, 1.46, 0.0, 2.0])


@given(st.lists(st.tuples(st.integers(0, 1), st.floats(0, 1)), min_size=1, max_size=20))
def test_brier_is_twice_the_binary_one(rows: list[tuple[int, float]]) -> None:
    labels, second = map(list, zip(*rows, strict=True))
    probabilities = np.stack([1 - np.asarray(second), second], axis=1)
    binary = brier_score_loss(labels, second, labels=[0, 1])
    assert calibration.brier_of_rows(labels, probabilities).mean() == pytest.approx(2 * binary)


def test_nll_by_hand_and_finite_where_probabilities_vanish() -> None:
    result = calibration.negative_log_likelihood([0, 1], [[0.0, 0.0], [2000.0, 0.0]])
    assert result == pytest.approx([np.log(2), 2000.0])


@given(st.lists(st.tuples(st.integers(0, 2), *[st.floats(-8, 8)] * 3), min_size=1, max_size=10))
def test_nll_agrees_with_scikit_learn(rows: list[tuple[int, float, float, float]]) -> None:
    labels = [row[0] for row in rows]
    logits = np.asarray([row[1:] for row in rows])
    mean = calibration.negative_log_likelihood(labels, logits).mean()
    wanted = log_loss(labels, calibration.probabilities_of(logits), labels=[0, 1, 2])
    assert mean == pytest.approx(wanted)


def adaptive(correct: list[float], confidences: list[float], bins: int = 15) -> float:
    return float(calibration.adaptive_calibration_error(correct, confidences, bins=bins))


def test_a_row_on_an_adaptive_edge_is_shared() -> None:
    # Three rows, two bins of 1.5: the middle row's gap of -.7 is halved between them.
    wanted = (abs(-0.6 - 0.35) + abs(-0.35 + 0.2)) / 3
    assert adaptive([0, 0, 1], [0.6, 0.7, 0.8], 2) == pytest.approx(wanted)


@given(ROWS, st.integers(1, 8), st.randoms(use_true_random=False))
def test_adaptive_error_ignores_order_and_repetition(
    rows: list[tuple[bool, float]], bins: int, draw: object
) -> None:
    mixed = [row for row in rows for _ in range(3)]
    draw.shuffle(mixed)  # type: ignore[attr-defined]
    sides = [[float(hit) for hit, _ in mixed], [sure for _, sure in mixed]]
    wanted = adaptive([float(hit) for hit, _ in rows], [sure for _, sure in rows], bins)
    assert adaptive(sides[0], sides[1], bins) == pytest.approx(wanted, abs=1e-12)


# Three rows of a first group of four rows in all: the edge between two bins divides it.
@example([(False, 0.3)] * 3 + [(True, 0.4)], 2)
@given(ROWS, st.integers(1, 8))
def test_adaptive_error_agrees_with_slices_of_rows_that_are_cut_into_as_many_parts_as_bins(
    rows: list[tuple[bool, float]], bins: int
) -> None:
    correct, confidences = [float(hit) for hit, _ in rows], [sure for _, sure in rows]
    gaps = []
    for value in sorted(set(confidences)):
        tied = [hit - sure for hit, sure in zip(correct, confidences, strict=True) if sure == value]
        gaps += [sum(tied) / len(tied)] * (len(tied) * bins)
    wanted = np.mean([abs(np.mean(part)) for part in np.split(np.array(gaps), bins)])
    assert adaptive(correct, confidences, bins) == pytest.approx(wanted, abs=1e-12)


@pytest.mark.parametrize(
    "measure",
    [
        calibration.adaptive_calibration_error,
        lambda hits, sure, counts: calibration.classwise_calibration_error(
            np.asarray(hits), np.stack([1 - np.asarray(sure), np.asarray(sure)], 1), counts=counts
        ),
    ],
    ids=["adaptive", "classwise"],
)
def test_errors_of_resamples_are_those_of_repeated_rows(measure: Any) -> None:
    correct, confidences = [1, 0, 1, 0], [0.95, 0.7, 0.55, 0.7]
    result = measure(correct, confidences, counts=[[2, 1, 0, 3], [0, 0, 0, 0]])
    repeated = measure([1, 1, 0, 0, 0, 0], [0.95, 0.95, 0.7, 0.7, 0.7, 0.7], counts=None)
    assert result[0] == pytest.approx(float(repeated))
    assert np.isnan(result[1])


def test_classwise_error_by_hand() -> None:
    # Class 0: .7 against a fraction of 1, .2 against 0; class 1: .3 against 0, .2 against 1;
    # class 2: 0 against 0, .6 against 0.
    probabilities = [[0.7, 0.3, 0.0], [0.2, 0.2, 0.6]]
    result = calibration.classwise_calibration_error([0, 1], probabilities)
    by_class = [(0.3 + 0.2) / 2, (0.3 + 0.8) / 2, 0.6 / 2]
    assert float(result) == pytest.approx(np.mean(by_class))


def test_classwise_error_of_two_classes_is_that_of_one_class() -> None:
    # p_0 = 1 - p_1 mirrors the bins, but for probabilities on an edge.
    draws = np.random.default_rng(0)
    sure, labels = draws.uniform(size=50), draws.integers(0, 2, 50)
    result = calibration.classwise_calibration_error(labels, np.stack([1 - sure, sure], 1))
    assert float(result) == pytest.approx(ece(labels.tolist(), sure.tolist(), 15))


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda: ece([1], [3.2]), r"\[0, 1\]. Pass probabilities, not logits"),
        (lambda: ece([1], [0.5], 0), "`bins` must be >= 1, got 0"),
        (lambda: adaptive([1], [2.0]), "Pass probabilities, not logits"),
        (lambda: adaptive([1], [0.5], 0), "`bins` must be >= 1, got 0"),
        (lambda: calibration.brier_of_rows([2], [[0.5, 0.5]]), r"class indices from 0 to 1"),
        (lambda: calibration.brier_of_rows([0.5], [[0.5, 0.5]]), r"class indices from 0 to 1"),
        (
            lambda: calibration.negative_log_likelihood([0], [[0.0, 0.0], [0.0, 0.0]]),
            r"got \[1\] and \[2, 2\]",
        ),
    ],
)
def test_invalid_probabilities_and_classes_raise_an_error(
    act: Callable[[], object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        act()
