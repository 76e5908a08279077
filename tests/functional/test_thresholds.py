"""Scores whose threshold or temperature is fitted to rows that are resampled too."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import softmax

from temper.functional.calibration import fit_temperature, scaled
from temper.functional.conformal import conformal_quantile
from temper.functional.intervals import difference_intervals, score_intervals
from temper.functional.proportions import Proportion
from temper.functional.resampling import weighted_mean
from temper.functional.thresholds import FittedOn, Judged, Refitted, Thresholds, resampled_quantiles

STUDIES = 150
# More false verdicts than this of 150 come with probability 0.01 where 5% is the truth.
MOST = 15


@given(st.integers(0, 1000), st.sampled_from([0.5, 0.8, 0.9]))
def test_a_resample_has_the_quantile_of_its_repeated_rows(seed: int, coverage: float) -> None:
    draws = np.random.default_rng(seed)
    scores = draws.integers(0, 9, size=30) / 10
    counts = draws.multinomial(30, np.full(30, 1 / 30), size=3).astype(float)
    result = resampled_quantiles(scores, counts, coverage=coverage)
    for row, value in zip(counts, result, strict=True):
        assert value == conformal_quantile(np.repeat(scores, row.astype(int)), coverage=coverage)


def test_too_few_drawn_rows_set_no_threshold() -> None:
    counts = np.array([[8.0, 0.0], [8.0, 1.0]])
    result = resampled_quantiles(np.array([1.0, 2.0]), counts, coverage=0.9)
    assert result.tolist() == [np.inf, 2.0]


def test_each_resample_sets_its_own_thresholds() -> None:
    # Fold 0 is judged by fold 1 and the other way round; the threshold is the middle of three.
    scores, folds = np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]), np.array([0, 0, 0, 1, 1, 1])
    made = Thresholds(scores, folds, 0.5, np.arange(6), folds)
    assert made.of_rows().tolist() == [5.0, 5.0, 5.0, 2.0, 2.0, 2.0]
    above = Judged(made, lambda limit, rows: (scores[rows] > limit).astype(float), np.arange(6))
    # Once as they are; once fold 1 is thrice its first row, fold 0 thrice its last one.
    counts = np.array([[1.0] * 6, [0.0, 0.0, 3.0, 3.0, 0.0, 0.0]])
    assert above(counts).tolist() == [0.5, 0.5]
    counts = np.array([[3.0, 0.0, 0.0, 3.0, 0.0, 0.0], [0.0, 0.0, 3.0, 0.0, 0.0, 3.0]])
    assert above(counts).tolist() == [0.5, 0.5]
    by_row = Judged(made, lambda limit, rows: np.full(len(rows), limit), np.arange(6))
    assert by_row(counts).tolist() == [(4.0 + 1.0) / 2, (6.0 + 3.0) / 2]


def test_the_worst_group_score_ignores_groups_without_drawn_rows() -> None:
    scores, folds = np.arange(6.0), np.array([0, 0, 0, 1, 1, 1])
    made = Thresholds(scores, folds, 0.5, np.arange(6), folds)
    values = np.array([1.0, 0.0, 1.0, 1.0, 1.0, 1.0])
    result = Judged(
        made, lambda limit, rows: values[rows], np.arange(6), groups=np.array([0, 0, 1, 1, 1, 1])
    )
    assert result(np.array([[1.0] * 6, [0.0, 0.0, 2.0, 4.0, 0.0, 0.0]])).tolist() == [0.5, 1.0]
    assert result.fewest == 2


def detector_scores(
    draws: np.random.Generator, hard: np.ndarray, rows: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return one model's scores of ordinary rows and of anomalies: what rows share, and noise."""
    both = hard + draws.normal(size=2 * rows)
    return both[:rows], both[rows:] + 1.0


def detections(ordinary: np.ndarray, odd: np.ndarray, folds: np.ndarray) -> Judged:
    rows = len(odd)
    made = Thresholds(ordinary, folds, 0.95, len(ordinary) + np.arange(rows), np.arange(rows) % 2)

    def above(limit: float, chosen: np.ndarray) -> np.ndarray:
        return np.asarray(odd[chosen] > limit, dtype=np.float64)

    closed = Proportion((odd > made.of_rows()).astype(np.float64))
    return Judged(made, above, np.arange(rows), closed)


def test_detections_of_two_models_of_one_law_differ_in_one_study_of_twenty() -> None:
    """By simulation; with fixed thresholds more than a quarter of the studies have a verdict."""
    draws, rows, false, kept, values = np.random.default_rng(0), 100, 0, [], []
    folds = np.arange(rows) % 2
    for _ in range(STUDIES):
        hard = draws.normal(size=2 * rows)
        one, other = (detections(*detector_scores(draws, hard, rows), folds) for _ in range(2))
        (result,) = difference_intervals([(one, other)], 2 * rows, resamples=200, seed=0)
        false += result.low is not None and (result.low > 0 or result.high < 0)
        (interval,) = score_intervals([one], 2 * rows, resamples=200, seed=0)
        kept.append((interval.low, interval.high))
        values.append(float(one(np.ones((1, 2 * rows)))[0]))
    assert false <= MOST
    inside = [low <= np.mean(values) <= high for low, high in kept]
    # At 95% fewer than 134 of 150 come with probability 0.003.
    assert np.sum(inside) >= 134


def test_a_threshold_fitted_on_few_rows_widens_the_interval() -> None:
    draws = np.random.default_rng(0)
    ordinary, odd = draws.normal(size=40), draws.normal(size=2000) + 1.0
    judged = detections(ordinary, odd, np.arange(40) % 2)
    (wide,) = score_intervals([judged], 2040, resamples=300, seed=0)
    assert judged.closed is not None
    narrow = judged.closed.interval()
    assert wide.low <= narrow.low
    assert wide.high >= narrow.high
    assert wide.high - wide.low > 3 * (narrow.high - narrow.low)


def test_a_proportion_of_1_uses_the_closed_form_instead_of_resamples() -> None:
    folds = np.arange(100) % 2
    judged = detections(np.linspace(0, 1, 100), np.full(120, 50.0), folds)
    (result,) = score_intervals([judged], 220, resamples=50, seed=0)
    assert (result.low, result.high) == pytest.approx((0.969, 1.0), abs=1e-3)


def drawn_set(draws: np.random.Generator, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Return logits of a model that is too sure by a half, and labels."""
    logits = draws.normal(size=(rows, 3)) * 1.5
    truth = softmax(logits, axis=1)
    labels = (truth.cumsum(axis=1) < draws.random((rows, 1))).sum(axis=1).clip(max=2)
    return 1.5 * logits, labels


def test_resamples_move_a_temperature_as_fitting_it_again_does() -> None:
    draws = np.random.default_rng(0)
    logits, labels = drawn_set(draws, 400)
    fit = FittedOn.of(labels, logits, np.arange(400))
    assert fit.moves(np.ones((1, 400))) == pytest.approx(0.0, abs=1e-8)
    counts = draws.multinomial(400, np.full(400, 1 / 400), size=20).astype(float)
    best = fit_temperature(labels, logits).value
    wanted = []
    for row in counts.astype(int):
        chosen = np.repeat(np.arange(400), row)
        wanted.append(np.log(fit_temperature(labels[chosen], logits[chosen]).value / best))
    assert fit.moves(counts) == pytest.approx(wanted, abs=0.02)
    assert fit.error == pytest.approx(np.std(wanted), rel=0.35)


def test_scores_after_scaling_vary_with_the_rows_of_the_temperature() -> None:
    """By simulation: the NLL of shifted rows, which the temperature is not the best one of."""
    draws, errors, values = np.random.default_rng(1), [], []
    far, labels_of_far = drawn_set(draws, 200)
    labels_of_far = draws.permutation(labels_of_far)

    def losses(temperature: float) -> np.ndarray:
        return -scaled(far, temperature)[np.arange(200), labels_of_far]

    for _ in range(60):
        logits, labels = drawn_set(draws, 60)
        best = fit_temperature(labels, logits).value
        fit = FittedOn.of(labels, logits, np.arange(60))
        either = [losses(best * np.exp(step)).mean() for step in (fit.error, -fit.error)]
        slope = float(either[0] - either[1]) / (2 * fit.error)
        made = Refitted(
            partial(weighted_mean, losses(best)), 60 + np.arange(200), (fit,), (slope,), 200
        )
        values.append(float(made(np.ones((1, 260)))[0]))
        # The far rows are the same in each study, and are here.
        counts = np.ones((100, 260))
        counts[:, :60] = draws.multinomial(60, np.full(60, 1 / 60), size=100)
        errors.append(made(counts).std())
    assert np.mean(errors) == pytest.approx(np.std(values), rel=0.3)
