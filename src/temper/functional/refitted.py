"""Scores after temperature scaling, where the temperature is fitted on other rows.

A resample draws the rows that the temperature is fitted on, too. To first order it moves the
logarithm of the temperature by the mean slope of the loss over its mean curvature, and the score by
its own slope in that logarithm (delta method). Letters: n rows drawn, K scored, R resamples, F
folds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from temper.functional.calibration import fit_temperature
from temper.functional.resampling import FloatArray, IntegerArray


@dataclass(frozen=True)
class FittedOn:
    """The rows that a temperature is fitted on, with their derivatives of the loss.

    Args:
        rows: Their indices among the rows drawn, [m].
        slopes: Derivative of each row's NLL with respect to the logarithm of the temperature, at
            the fitted temperature, [m]; they sum to 0.
        curvatures: Expected second derivative, >= 0, [m].
    """

    rows: IntegerArray
    slopes: FloatArray
    curvatures: FloatArray

    @classmethod
    def of(cls, labels: ArrayLike, logits: ArrayLike, rows: IntegerArray) -> FittedOn:
        """Fit the temperature and compute each row's derivatives.

        Args:
            labels: Class indices, [m].
            logits: Logits or logarithms of probabilities, [m, C].
            rows: Indices of the rows among those drawn, [m].

        Raises:
            ValueError: No temperature is optimal.
        """
        array, classes = np.asarray(logits, dtype=np.float64), np.asarray(labels).astype(np.int64)
        inverse = 1.0 / fit_temperature(classes, array).value
        # A class of probability 0 has no weight at any temperature.
        possible = np.isfinite(array)
        values = np.where(possible, array - array.max(axis=1, keepdims=True), 0.0) * inverse
        weights = np.where(possible, np.exp(values), 0.0)
        weights /= weights.sum(axis=1, keepdims=True)
        mean = (weights * values).sum(axis=1)
        own = values[np.arange(len(classes)), classes]
        return cls(rows, own - mean, (weights * (values - mean[:, None]) ** 2).sum(axis=1))

    def moves(self, counts: FloatArray) -> FloatArray:
        """Return how far each resample moves the logarithm of the temperature, [R].

        Args:
            counts: How often each row is drawn, [R, n].
        """
        drawn = counts[:, self.rows]
        curvature = drawn @ self.curvatures
        return -(drawn @ self.slopes) / np.where(curvature > 0, curvature, np.nan)

    @property
    def error(self) -> float:
        """The standard error of the logarithm of the temperature."""
        return float(np.sqrt((self.slopes**2).sum()) / self.curvatures.sum())


@dataclass(frozen=True)
class Refitted:
    """A score after temperature scaling, as a statistic: from counts [R, n] to [R] values.

    Args:
        score: The score at the fitted temperatures, from counts of the scored rows [R, K].
        indices: Index of each scored row among the rows drawn, [K].
        fits: The fit of each fold's temperature, F of them.
        slopes: Derivative of the score with respect to the logarithm of each fold's temperature,
            [F].
        fewest: Rows of the smallest class behind the score.
    """

    score: Callable[[FloatArray], FloatArray]
    indices: IntegerArray
    fits: Sequence[FittedOn]
    slopes: Sequence[float]
    fewest: int

    def __call__(self, counts: FloatArray) -> FloatArray:
        """Return the score on each resample, [R]."""
        values = self.score(counts[:, self.indices])
        for fit, slope in zip(self.fits, self.slopes, strict=True):
            values = values + slope * fit.moves(counts)
        return values
