"""Scalings that make a classifier as sure as it is right: one temperature, or a number a class.

Letters: n rows, C classes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import minimize

from temper.functional.calibration import (
    fit_temperature,
    negative_log_likelihood,
    probabilities_of,
    scaled,
)
from temper.functional.resampling import FloatArray, IntegerArray

RIDGE = 1e-3
"""Weight of the squared distance to the temperature in `fit_vector`, in units of the mean NLL."""


@dataclass(frozen=True)
class Scaling:
    """``log softmax(w z + b)``: temperature scaling is ``w = 1 / T`` for all classes and ``b = 0``.

    Args:
        weights: w, finite, one number [] or one a class [C].
        bias: b, finite, alike.

    Example:
        >>> halved = Scaling.of_temperature(2.0)
        >>> np.exp(halved.log_probabilities([[0.0, np.log(9.0)]])).round(6).tolist()
        [[0.25, 0.75]]

    References:
        Guo et al., "On Calibration of Modern Neural Networks", ICML 2017, Section 4.2.
    """

    weights: FloatArray
    bias: FloatArray

    @classmethod
    def of_temperature(cls, temperature: float) -> Scaling:
        """Return the scaling that divides all logits by a temperature T > 0."""
        return cls(np.asarray(1.0 / temperature), np.asarray(0.0))

    @property
    def keeps_order(self) -> bool:
        """Whether the likeliest class stays the likeliest: whether it is one temperature."""
        return self.weights.ndim == 0

    def log_probabilities(self, logits: ArrayLike) -> FloatArray:
        """Return logarithms of calibrated probabilities, [n, C].

        Args:
            logits: [n, C].
        """
        return scaled(np.asarray(logits, dtype=np.float64) * self.weights + self.bias, 1.0)


def fit_vector(labels: ArrayLike, logits: ArrayLike) -> Scaling:
    """Fit a weight and a bias for each class by minimising the NLL (vector scaling).

    Args:
        labels: Class indices, [n]; every class occurs.
        logits: [n, C], finite.

    Raises:
        ValueError: A class does not occur, or no temperature is best, from which the fit starts.

    Example:
        >>> found = fit_vector([0, 0, 0, 1], [[2.0, 0.0]] * 4)
        >>> shares = np.exp(found.log_probabilities([[2.0, 0.0]]))
        >>> bool(abs(shares[0, 0] - 0.75) < 1e-2)
        True

    References:
        Guo et al., "On Calibration of Modern Neural Networks", ICML 2017, Section 4.2.
        Differs: a small ridge pulls to the best temperature, so that few rows cannot drive a weight
        to infinity.
    """
    array, classes = np.asarray(logits, dtype=np.float64), np.asarray(labels).astype(np.int64)
    C = array.shape[1]
    if len(missing := np.setdiff1d(np.arange(C), classes)):
        raise ValueError(f"class {missing[0]} does not occur")
    inverse = 1.0 / fit_temperature(classes, array).value
    start = np.concatenate([np.full(C, inverse), np.zeros(C)])
    truth = np.eye(C)[classes]

    def loss(parameters: FloatArray) -> tuple[float, FloatArray]:
        moved = array * parameters[:C] + parameters[C:]
        pull = parameters - start
        apart = probabilities_of(moved) - truth
        value = negative_log_likelihood(classes, moved).mean() + RIDGE * (pull**2).sum()
        slope = np.concatenate([(apart * array).mean(axis=0), apart.mean(axis=0)])
        return float(value), slope + 2 * RIDGE * pull

    found = minimize(loss, start, jac=True, method="L-BFGS-B").x
    return Scaling(found[:C], found[C:])


@dataclass(frozen=True)
class FittedScaling:
    """A temperature, and the vector scaling that is better than it, if it is.

    Args:
        temperature: The best T for all rows.
        vector: Vector scaling of all rows, where it is better on rows of other folds, else None.
        gains: How much less NLL vector scaling has on each row, fitted without the row's fold, [n];
            empty where it cannot be fitted.
    """

    temperature: float
    vector: Scaling | None
    gains: FloatArray

    @property
    def chosen(self) -> Scaling:
        """The better one."""
        return self.vector or Scaling.of_temperature(self.temperature)


def best_scaling(labels: ArrayLike, logits: ArrayLike, folds: IntegerArray) -> FittedScaling:
    """Choose between a temperature and vector scaling by the NLL on rows of other folds.

    Vector scaling is taken where its gain is above 0 by more than its standard error, since it fits
    2 C numbers where a temperature is one.

    Args:
        labels: Class indices, [n].
        logits: [n, C], finite.
        folds: Fold of each row, [n]; each fold's rows are scored with a fit on all others.

    Raises:
        EveryRowRightError: Every row is right.
        ValueError: No temperature is best for another reason.
    """
    array, classes = np.asarray(logits, dtype=np.float64), np.asarray(labels).astype(np.int64)
    best = fit_temperature(classes, array).value
    gains = np.zeros(len(classes))
    for fold in np.unique(folds):
        own = folds == fold
        try:
            one = Scaling.of_temperature(fit_temperature(classes[~own], array[~own]).value)
            many = fit_vector(classes[~own], array[~own])
        except ValueError:
            return FittedScaling(best, None, np.zeros(0))
        at = np.arange(int(own.sum())), classes[own]
        gains[own] = (many.log_probabilities(array[own]) - one.log_probabilities(array[own]))[at]
    error = float(gains.std(ddof=1)) / np.sqrt(len(gains)) if len(gains) > 1 else np.inf
    taken = float(gains.mean()) > error
    return FittedScaling(best, fit_vector(classes, array) if taken else None, gains)
