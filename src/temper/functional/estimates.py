"""Estimate accuracy and macro-F1 on unlabeled rows from calibrated confidence.

Letters: n held-out rows with labels, m unlabeled rows, C classes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from temper.functional.calibration import scaled
from temper.functional.resampling import FloatArray
from temper.lazy import scipy

COVERAGE = 0.9
"""Probability with which an estimate's interval contains the true score."""
STEP = 1e-3
"""Relative step of the numerical derivative with respect to the temperature."""
RANGE = 20.0
"""Temperatures from e^-RANGE to e^RANGE are searched."""


@dataclass(frozen=True)
class Estimate:
    """An estimated score and the 90% interval of its true value, all in [0, 1]."""

    value: float
    low: float
    high: float


def matched_temperature(labels: ArrayLike, logits: ArrayLike) -> float:
    """Return the temperature at which the mean confidence of labeled rows equals their accuracy.

    The accuracy is taken as ``(right + 1/2) / (n + 1)``, which is below 1 even if all rows are
    right.

    Raises:
        ValueError: No temperature fits, for example because the accuracy is not above chance.

    Example:
        >>> # Three of four are right: 3.5 / 5 = e^(2 / T) / (1 + e^(2 / T)).
        >>> found = matched_temperature([0, 0, 0, 1], [[2.0, 0.0]] * 4)
        >>> bool(np.isclose(found, 2.0 / np.log(7 / 3)))
        True
    """
    array = np.asarray(logits, dtype=np.float64)
    right = np.asarray(labels) == array.argmax(axis=1)
    accuracy = (right.sum() + 0.5) / (len(right) + 1)

    def excess(log_temperature: float) -> float:
        return float(_confidence(array, np.exp(log_temperature)).mean() - accuracy)

    if excess(-RANGE) <= 0 or excess(RANGE) >= 0:
        raise ValueError(
            "no temperature makes the mean confidence of the held-out rows equal their accuracy"
        )
    return float(np.exp(scipy.optimize.brentq(excess, -RANGE, RANGE, xtol=1e-12)))


def estimate_scores(
    labels: ArrayLike, held_out: ArrayLike, logits: ArrayLike
) -> dict[str, Estimate]:
    """Estimate accuracy and macro-F1 on unlabeled rows.

    The unknown labels are modeled as independent draws from the probabilities at the
    `matched_temperature` of the held-out rows. Accuracy is then the mean confidence, and macro-F1
    follows from the expected confusion matrix. The variance of a score is that of the drawn labels
    (to first order) plus that of the fitted temperature. The interval is that of a beta
    distribution with this mean and variance.

    Estimate and interval are valid if rows of equal confidence are right as often as among the
    held-out rows: only the proportion of easy and hard texts may differ. New kinds of text,
    attacks, or other class frequencies violate this, so test for a shift first.

    ``labels`` [n] and ``held_out`` [n, C] are labels and logits of the held-out rows; ``logits``
    [m, C] are those of the unlabeled rows.

    Returns:
        ``accuracy`` and ``macro_f1``. Macro-F1 averages over the classes that are predicted or have
        an expected count of at least 0.5.

    References:
        Kivimäki et al., "Performance Estimation in Binary Classification Using Calibrated
        Confidence", arXiv 2505.05295 (expected confusion matrix, Poisson-binomial accuracy).
        Differs: any number of classes; one temperature, fitted to the accuracy of the held-out
        rows; its uncertainty is part of the interval.
    """
    known, rows = (np.asarray(item, dtype=np.float64) for item in (held_out, logits))
    temperature = matched_temperature(labels, known)
    around = [temperature * (1 + sign * STEP) for sign in (-1, 1)]
    right = np.asarray(labels) == known.argmax(axis=1)
    # To first order, an error of the mean confidence moves the temperature by error / slope.
    slope = np.diff([_confidence(known, item).mean() for item in around])[0]
    noise = np.var(right - _confidence(known, temperature)) / len(known)
    moved = np.diff([_expected(_probabilities(rows, item))[0] for item in around], axis=0)[0]
    means, variances = _expected(_probabilities(rows, temperature))
    totals = variances + (moved / slope) ** 2 * noise
    names = ("accuracy", "macro_f1")
    return {n: _interval(m, v) for n, m, v in zip(names, means, totals, strict=True)}


def _expected(probabilities: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the mean and the variance of (accuracy, macro-F1) over drawn labels, [2] each."""
    m, C = probabilities.shape
    predicted = probabilities.argmax(axis=1)
    one_hot = np.eye(C)[predicted]
    hits = (one_hot * probabilities).sum(axis=0)
    counts, support = one_hot.sum(axis=0), probabilities.sum(axis=0)
    shown = (counts > 0) | (support >= 0.5)
    total = np.where(shown, counts + support, np.inf)
    f1 = 2 * hits / total
    # Contribution of one row of each label to the score, by the derivative of F1 = 2 TP / (P + N).
    added_accuracy = one_hot / m
    added_f1 = (2 * one_hot - f1) / total / shown.sum()
    variances = [
        float(((probabilities * added**2).sum(1) - (probabilities * added).sum(1) ** 2).sum())
        for added in (added_accuracy, added_f1)
    ]
    return np.array([hits.sum() / m, f1.sum() / shown.sum()]), np.array(variances)


def _interval(mean: float, variance: float) -> Estimate:
    """Return the estimate with the interval of a beta distribution of this mean and variance."""
    size = mean * (1 - mean) / variance - 1 if variance > 0 else np.inf
    if not 0 < size < np.inf:
        # No beta distribution has this mean and variance: the score is certain or unknown.
        low, high = (mean, mean) if size > 0 else (0.0, 1.0)
    else:
        low, high = scipy.stats.beta.interval(COVERAGE, mean * size, (1 - mean) * size)
    return Estimate(float(mean), float(low), float(high))


def _probabilities(logits: FloatArray, temperature: float) -> FloatArray:
    return np.exp(scaled(logits, temperature))


def _confidence(logits: FloatArray, temperature: float) -> FloatArray:
    return np.asarray(_probabilities(logits, temperature).max(axis=1))
