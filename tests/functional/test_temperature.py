"""Temperatures by hand, by their defining equation, and against other minimizers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from sklearn.metrics import log_loss

from temper.functional import resampling
from temper.functional.calibration import (
    fit_temperature,
    log_probabilities,
    negative_log_likelihood,
    probabilities_of,
    scaled,
)


def drawn(seed: int, *, rows: int = 60, classes: int = 3, size: float = 3.0) -> tuple:  # type: ignore[type-arg]
    """Return labels and logits of a classifier that is right more often than not."""
    draws = np.random.default_rng(seed)
    labels = draws.integers(0, classes, rows)
    logits = size * (draws.normal(size=(rows, classes)) + 1.2 * np.eye(classes)[labels])
    return labels, logits


def test_the_temperature_of_one_kind_of_row_by_hand() -> None:
    # Nine of ten right at logits (4, 0): the best confidence is .9, so 4 / T = log 9.
    fitted = fit_temperature([0] * 9 + [1], [[4.0, 0.0]] * 10)
    assert fitted.value == pytest.approx(4 / np.log(9), rel=1e-12)
    assert fitted.after == pytest.approx(-0.9 * np.log(0.9) - 0.1 * np.log(0.1), rel=1e-12)
    assert fitted.before == pytest.approx(np.log1p(np.exp(4.0)) - 3.6, rel=1e-12)
    assert fitted.rows == 10


@given(st.integers(0, 1000), st.floats(0.05, 20))
def test_the_temperature_makes_the_loss_stationary_and_scales_with_the_logits(
    seed: int, factor: float
) -> None:
    labels, logits = drawn(seed)
    fitted = fit_temperature(labels, logits)
    # d NLL / d (1 / T) = 0: what the classifier expects of its logits is what it gets.
    fractions = probabilities_of(logits / fitted.value)
    expected = (fractions * logits).sum(1).mean()
    assert expected == pytest.approx(logits[np.arange(len(labels)), labels].mean(), abs=1e-9)
    assert fit_temperature(labels, factor * logits).value == pytest.approx(
        factor * fitted.value, rel=1e-9
    )
    assert fitted.after <= fitted.before + 1e-12


def test_a_temperature_is_invariant_to_row_offsets_and_chunks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    labels, logits = drawn(0)
    plain = fit_temperature(labels, logits)
    moved = fit_temperature(labels, logits + 1e5 * np.arange(60)[:, None])
    assert moved.value == pytest.approx(plain.value, rel=1e-7)
    monkeypatch.setattr(resampling, "_CELLS", 21)
    cut = fit_temperature(labels, logits)
    assert cut.value == pytest.approx(plain.value, rel=1e-12)
    assert cut.after == pytest.approx(plain.after, rel=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_the_temperature_is_that_of_other_minimizers(seed: int) -> None:
    # Not larger: scikit-learn clips probabilities, which gives its loss a second minimum.
    labels, logits = drawn(seed, size=[0.3, 1.0, 2.0, 4.0, 8.0][seed])
    result = minimize_scalar(
        lambda b: log_loss(labels, probabilities_of(b * logits), labels=[0, 1, 2]),
        bounds=(1e-3, 20.0),
        method="bounded",
        options={"xatol": 1e-12},
    )
    fitted = fit_temperature(labels, logits)
    assert 1 / fitted.value == pytest.approx(result.x, rel=1e-5)


def test_each_row_may_have_a_temperature_of_its_own() -> None:
    result = np.exp(scaled([[0.0, np.log(9)], [0.0, np.log(9)]], [1.0, 2.0]))
    assert result == pytest.approx(np.array([[0.1, 0.9], [0.25, 0.75]]))


def test_the_largest_doubles_are_scaled_and_do_not_affect_other_rows() -> None:
    result = np.exp(scaled([[1.5e308, 1.5e308], [0.0, np.log(9)]], 1.0))
    assert result == pytest.approx(np.array([[0.5, 0.5], [0.1, 0.9]]))


def test_impossible_classes_stay_impossible() -> None:
    logits = log_probabilities([[0.8, 0.2, 0.0]] * 4)
    fitted = fit_temperature([0, 0, 0, 1], logits)
    # .75 : .25 = 3 is (.8 / .2) ** (1 / T).
    assert fitted.value == pytest.approx(np.log(4) / np.log(3), rel=1e-9)
    assert np.exp(scaled(logits, fitted.value))[0] == pytest.approx([0.75, 0.25, 0.0])


def test_extreme_logits_neither_overflow_nor_hide_their_temperature() -> None:
    fitted = fit_temperature([0, 0, 0, 1], [[1e6, 0.0]] * 4)
    assert fitted.value == pytest.approx(1e6 / np.log(3), rel=1e-9)
    tiny = fit_temperature([0, 0, 0, 1], [[1e-6, 0.0]] * 4)
    assert tiny.value == pytest.approx(1e-6 / np.log(3), rel=1e-6)
    assert np.isfinite(scaled([[1e300, 0.0]], 1.0)).all()
    assert negative_log_likelihood([1], [[1e6, 0.0]])[0] == 1e6


@pytest.mark.parametrize(
    ("labels", "logits", "words"),
    [
        ([], np.zeros((0, 2)), "there are no rows"),
        ([0, 1], [[2.0, 0.0], [0.0, 1.0]], "every row is right"),
        ([1, 1, 0], [[2.0, 0.0]] * 3, "no likelier than other classes"),
        ([0, 1], [[2.0, 0.0]] * 2, "no likelier than other classes"),
        ([0, 1], [[0.0, -np.inf]] * 2, "a label has probability 0"),
        ([0, 1, 2], [[0.5] * 3, [-2.0] * 3, [0.0] * 3], "no temperature changes anything"),
    ],
    ids=["empty", "all right", "worse than chance", "chance", "impossible", "constant"],
)
def test_rows_without_a_best_temperature_raise_an_error(
    labels: list[int], logits: object, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        fit_temperature(labels, logits)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [0.0, -1.0, np.inf, np.nan])
def test_a_temperature_must_be_positive_and_finite(value: float) -> None:
    with pytest.raises(ValueError, match="must be a finite number > 0"):
        scaled([[0.0, 1.0]], value)
