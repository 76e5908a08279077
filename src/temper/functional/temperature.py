"""Temperature scaling: one number that makes a classifier as sure as it is right.

The logits are divided by a temperature T > 0: above 1 the classifier gets less sure, below 1 surer;
which class is the likeliest never changes. Logarithms of probabilities serve as logits, because the
two differ by a constant a row, which the softmax takes out. Letters: n rows, C classes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import brentq
from scipy.special import logsumexp

from temper.functional.calibration import negative_log_likelihood
from temper.functional.resampling import FloatArray, IntegerArray, stretches

# Doubling from 1 this often passes every slope that a double can hold.
_DOUBLINGS = 1024


@dataclass(frozen=True)
class Temperature:
    """A fitted temperature.

    Args:
        value: T > 0.
        before: Mean NLL of the rows it was fitted on at T = 1, in nats.
        after: The same at T; never larger.
        rows: Number of these rows.
    """

    value: float
    before: float
    after: float
    rows: int


def log_probabilities(probabilities: ArrayLike) -> FloatArray:
    """Return logarithms of probabilities, -inf for 0.

    Args:
        probabilities: [n, C], >= 0.

    Example:
        >>> log_probabilities([[1.0, 0.0]]).tolist()
        [[0.0, -inf]]
    """
    with np.errstate(divide="ignore"):
        return np.log(np.asarray(probabilities, dtype=np.float64))


def scaled(logits: ArrayLike, temperature: ArrayLike) -> FloatArray:
    """Divide logits by a temperature and return logarithms of probabilities.

    Args:
        logits: Logits or logarithms of probabilities, [n, C]; -inf is a probability of 0.
        temperature: T > 0, one number or one a row, [n].

    Returns:
        ``log softmax(logits / T)``, [n, C]; each row's exponentials sum to 1.

    Raises:
        ValueError: A temperature is not a positive finite number.

    Example:
        >>> np.exp(scaled([[0.0, np.log(9.0)]], 2.0)).round(6).tolist()
        [[0.25, 0.75]]
    """
    array = np.asarray(logits, dtype=np.float64)
    divisor = np.asarray(temperature, dtype=np.float64)
    if not bool((np.isfinite(divisor) & (divisor > 0)).all()):
        raise ValueError(f"A temperature must be a finite number > 0, got {divisor}.")
    divisors = np.broadcast_to(divisor.reshape(-1, 1), (len(array), 1))
    found = np.empty_like(array)
    for rows in _stretches(array):
        own = array[rows]
        # The largest first, so that a small temperature cannot overflow.
        shifted = (own - own.max(axis=-1, keepdims=True)) / divisors[rows]
        found[rows] = shifted - logsumexp(shifted, axis=-1, keepdims=True)
    return found


def fit_temperature(labels: ArrayLike, logits: ArrayLike) -> Temperature:
    """Fit a temperature by the mean negative log-likelihood.

    ``min_T -(1/n) sum_i log softmax(z_i / T)[y_i]`` is convex in ``b = 1 / T``, and its slope in b
    is ``mean_i(E_p[z_i] - z_i[y_i])``; b is that slope's root, found by bracketing. It exists where
    the slope is below 0 at b = 0 (the labels' logits are above their rows' average) and above 0 for
    large b (a row is wrong). Else the best T is infinite or 0, and neither is a calibration.

    Args:
        labels: Class indices, [n].
        logits: Logits or logarithms of probabilities, [n, C]; -inf is a probability of 0.

    Returns:
        The temperature, to a relative error below 1e-8, and the loss before and after.

    Raises:
        ValueError: There are no rows, a label has probability 0, or no temperature is best; says
            which.

    Example:
        >>> # Three of four are right, and the classifier says e^2 : 1.
        >>> fitted = fit_temperature([0, 0, 0, 1], [[2.0, 0.0]] * 4)
        >>> bool(np.isclose(fitted.value, 2.0 / np.log(3.0), rtol=1e-12))
        True

    References:
        Guo et al., "On Calibration of Modern Neural Networks", ICML 2017, Section 4.2.
    """
    array = np.asarray(logits, dtype=np.float64)
    if not len(array):
        raise ValueError("there are no rows to fit it on")
    own = -negative_log_likelihood(labels, array)
    if not bool(np.isfinite(own).all()):
        raise ValueError("a label has probability 0")
    classes = np.asarray(labels).astype(np.int64)
    _check_exists(array, classes)
    high = 1.0
    for _ in range(_DOUBLINGS):
        if _slope(high, array, classes) > 0:
            break
        high *= 2.0
    inverse = float(brentq(_slope, 0.0, high, args=(array, classes), xtol=1e-300, rtol=1e-14))
    after = np.empty(len(classes))
    for rows in _stretches(array):
        chosen = classes[rows]
        after[rows] = scaled(array[rows], 1.0 / inverse)[np.arange(len(chosen)), chosen]
    return Temperature(1.0 / inverse, -float(own.mean()), -float(after.mean()), len(classes))


def _check_exists(logits: FloatArray, classes: IntegerArray) -> None:
    """Refuse rows for which no positive finite temperature is best."""
    right = True
    for rows in _stretches(logits):
        own, chosen = logits[rows], classes[rows]
        right = right and bool((own[np.arange(len(chosen)), chosen] == own.max(axis=-1)).all())
    if right:
        raise ValueError("every row is right, so that no temperature is low enough")
    if _slope(0.0, logits, classes) >= 0:
        raise ValueError(
            "the labels are no likelier than other classes on average, so that no temperature is "
            "high enough"
        )


def _slope(inverse: float, given: FloatArray, classes: IntegerArray) -> float:
    """Return the slope of the mean NLL in the inverse temperature.

    Args:
        inverse: b = 1 / T, >= 0.
        given: Logits, [n, C].
        classes: Labels, [n].
    """
    total = 0.0
    for rows in _stretches(given):
        own, chosen = given[rows], classes[rows]
        own = own - own.max(axis=-1, keepdims=True)
        # At b = 0 a class of probability 0 counts as in the limit from above: not at all.
        possible = np.isfinite(own)
        logits = np.where(possible, own, 0.0)
        weights = np.where(possible, np.exp(inverse * logits), 0.0)
        mean = (weights * logits).sum(axis=-1) / weights.sum(axis=-1)
        total += float((mean - logits[np.arange(len(chosen)), chosen]).sum())
    return total / len(classes)


def _stretches(array: FloatArray) -> Iterator[slice]:
    """Cut the rows of an [n, C] array so that a few copies of a stretch weigh nothing."""
    return stretches(len(array), width=array.shape[-1])
