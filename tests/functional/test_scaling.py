"""Vector scaling by its optimality conditions, and when it is preferred to a temperature."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import log_softmax

from temper.functional.calibration import fit_temperature
from temper.functional.scaling import RIDGE, Scaling, best_scaling, fit_vector


def drawn(seed: int, *, rows: int = 90, bias: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """Return labels and logits of three classes, the last one rated too high by ``bias``."""
    draws = np.random.default_rng(seed)
    labels = np.arange(rows) % 3
    logits = 1.5 * draws.normal(size=(rows, 3)) + 2 * np.eye(3)[labels]
    return labels, logits + bias * np.array([0.0, 0.0, 1.0])


def penalised(
    labels: np.ndarray, logits: np.ndarray, weights: np.ndarray, bias: np.ndarray
) -> float:
    """Return what vector scaling minimises, as its docstring says it."""
    rows = log_softmax(logits * weights + bias, axis=1)[np.arange(len(labels)), labels]
    pull = ((weights - 1 / fit_temperature(labels, logits).value) ** 2).sum() + (bias**2).sum()
    return float(-rows.mean() + RIDGE * pull)


@pytest.mark.parametrize("bias", [1.0, 30.0])
@pytest.mark.parametrize("seed", range(4))
def test_no_step_from_the_fitted_weights_and_biases_is_better(seed: int, bias: float) -> None:
    labels, logits = drawn(seed, bias=bias)
    found = fit_vector(labels, logits)
    least = penalised(labels, logits, found.weights, found.bias)
    # A ridge around another centre would move the fit by a hundredth.
    for step in 0.003 * np.vstack([np.eye(6), -np.eye(6)]):
        moved = penalised(labels, logits, found.weights + step[:3], found.bias + step[3:])
        assert moved > least


def test_a_class_that_was_rated_too_high_is_taken_down_by_as_much() -> None:
    # The same rows with the last class shifted by 2 need a bias that is 2 lower against the others.
    labels, logits = drawn(1, rows=3000)
    plain, shifted = fit_vector(labels, logits), fit_vector(labels, logits + 2 * np.eye(3)[2])
    apart = [fit.bias[2] - fit.bias[:2].mean() for fit in (plain, shifted)]
    assert apart[0] - apart[1] == pytest.approx(2 * shifted.weights[2], rel=0.05)
    assert not shifted.keeps_order


def test_a_class_without_rows_cannot_be_scaled() -> None:
    with pytest.raises(ValueError, match="class 1 does not occur"):
        fit_vector([0, 2, 0, 2], np.random.default_rng(0).normal(size=(4, 3)))


@given(st.integers(0, 100), st.floats(0.1, 10))
def test_a_temperature_divides_all_logits(seed: int, temperature: float) -> None:
    _, logits = drawn(seed, rows=6)
    scaling = Scaling.of_temperature(temperature)
    assert scaling.keeps_order
    found = scaling.log_probabilities(logits.tolist())
    np.testing.assert_allclose(found, log_softmax(logits / temperature, axis=1), atol=1e-12)


def gains_by_loop(labels: np.ndarray, logits: np.ndarray, folds: np.ndarray) -> list[float]:
    """Return how much more likely vector scaling of the other folds makes each row's label."""
    gains = []
    for row, (label, fold) in enumerate(zip(labels, folds, strict=True)):
        others = folds != fold
        temperature = fit_temperature(labels[others], logits[others]).value
        many = fit_vector(labels[others], logits[others])
        with_many = log_softmax(logits[row] * many.weights + many.bias)[label]
        gains.append(float(with_many - log_softmax(logits[row] / temperature)[label]))
    return gains


@pytest.mark.parametrize(
    ("seed", "rows", "bias"),
    # Of the last the gain is 1 % above its standard error, and 2 % below one of less freedom.
    [(5, 60, 0.0), (5, 60, 0.15), (5, 60, 0.4), (5, 60, 3.0), (9, 18, 0.5)],
)
def test_vector_scaling_is_taken_where_other_folds_gain_more_than_a_standard_error(
    seed: int, rows: int, bias: float
) -> None:
    labels, logits = drawn(seed, rows=rows, bias=bias)
    folds = np.arange(rows) // 3 % 3
    found = best_scaling(labels.tolist(), logits.tolist(), folds)
    expected = np.array(gains_by_loop(labels, logits, folds))
    np.testing.assert_allclose(found.gains, expected, atol=1e-9)
    assert found.temperature == pytest.approx(fit_temperature(labels, logits).value)
    error = np.sqrt(((expected - expected.mean()) ** 2).sum() / (rows - 1) / rows)
    if expected.mean() > error:
        assert found.chosen is found.vector
        whole = fit_vector(labels, logits)
        np.testing.assert_allclose(found.chosen.weights, whole.weights)
        np.testing.assert_allclose(found.chosen.bias, whole.bias)
    else:
        assert found.vector is None
        assert found.chosen.weights == pytest.approx(1 / found.temperature)
        assert found.chosen.bias == 0


def test_without_a_class_in_the_other_folds_the_temperature_stays() -> None:
    labels, logits = drawn(2, rows=30)
    found = best_scaling(labels, logits, labels)
    assert found.vector is None
    assert found.gains.tolist() == []
    assert found.temperature == pytest.approx(fit_temperature(labels, logits).value)
