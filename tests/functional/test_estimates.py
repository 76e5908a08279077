"""Scores without labels: against simulation in float64, and by their definition."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import softmax

from temper.functional.estimates import estimate_scores, matched_temperature
from temper.functional.scores import macro_f1


def rows(seed: int, count: int, classes: int, scale: float = 2.0) -> tuple[np.ndarray, np.ndarray]:
    """Draw logits, and labels from their softmax at temperature 1.7."""
    draws = np.random.default_rng(seed)
    logits = scale * draws.normal(size=(count, classes))
    return logits, drawn(softmax(logits / 1.7, axis=1), draws)


def drawn(probabilities: np.ndarray, draws: np.random.Generator) -> np.ndarray:
    steps = probabilities.cumsum(axis=1)[:, :-1]
    return (draws.random((len(probabilities), 1)) > steps).sum(axis=1)


@given(st.integers(0, 1000), st.integers(4, 60), st.integers(2, 5))
def test_the_mean_confidence_is_the_accuracy(seed: int, count: int, classes: int) -> None:
    logits, _ = rows(seed, count, classes)
    labels = logits.argmax(axis=1)
    labels[: count // 4] = (labels[: count // 4] + 1) % classes
    confidence = softmax(logits / matched_temperature(labels, logits), axis=1).max(axis=1)
    wanted = (count - count // 4 + 0.5) / (count + 1)
    assert confidence.mean() == pytest.approx(wanted, rel=1e-9)


@pytest.mark.parametrize(
    ("labels", "logits"),
    [([1, 1], [[1.0, 0.0], [1.0, 0.0]]), ([0, 0, 1], [[0.0, 0.0]] * 3)],
    ids=["all wrong", "no confidence"],
)
def test_a_calibration_without_a_temperature_raises_an_error(
    labels: list[int], logits: list[list[float]]
) -> None:
    with pytest.raises(ValueError, match="no temperature"):
        estimate_scores(labels, logits, logits)


@settings(max_examples=6)
@given(st.integers(0, 1000), st.integers(2, 4))
def test_the_estimates_are_mean_and_spread_of_drawn_labels(seed: int, classes: int) -> None:
    known, labels = rows(seed, 200_000, classes)
    logits, _ = rows(seed + 1, 300, classes, scale=3.0)
    result = estimate_scores(labels, known, logits)
    draws, best = np.random.default_rng(seed), logits.argmax(axis=1)
    probabilities = softmax(logits / matched_temperature(labels, known), axis=1)
    simulated = [drawn(probabilities, draws) for _ in range(1000)]
    scores = {
        "accuracy": [(each == best).mean() for each in simulated],
        "macro_f1": [macro_f1(each, best) for each in simulated],
    }
    for name, values in scores.items():
        low, high = np.quantile(values, [0.05, 0.95])
        assert result[name].value == pytest.approx(np.mean(values), abs=3e-3)
        assert (result[name].low, result[name].high) == pytest.approx((low, high), abs=6e-3)


@pytest.mark.parametrize("known_rows", [60, 400])
def test_the_interval_of_an_estimate_has_its_nominal_coverage(known_rows: int) -> None:
    hits = np.zeros(2)
    for seed in range(300):
        known, labels = rows(2 * seed, known_rows, 3)
        logits, truth = rows(2 * seed + 1, 150, 3, scale=2.5)
        best = logits.argmax(axis=1)
        result = estimate_scores(labels, known, logits)
        for index, value in enumerate(((best == truth).mean(), macro_f1(truth, best))):
            estimate = list(result.values())[index]
            hits[index] += estimate.low <= value <= estimate.high
    assert (np.abs(hits / 300 - 0.9) < 0.055).all()


def test_ends_lie_within_zero_and_one_and_a_missing_class_does_not_count() -> None:
    known = np.array([[9.0, 0.0, -20.0]] * 30)
    result = estimate_scores([0] * 29 + [1], known, known[:5])
    for estimate in result.values():
        assert 0.0 <= estimate.low < estimate.value < estimate.high <= 1.0
    # Two of the classes are never predicted and expected for less than half a row.
    assert result["macro_f1"].value > 0.9
