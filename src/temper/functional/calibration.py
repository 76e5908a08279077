"""Calibration errors, Brier score and temperature scaling.

An argument's name decides whether it takes probabilities or logits, and never its values, because
logits can look like probabilities. Letters: n rows, C classes, R resamples.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from temper.functional.resampling import (
    Counts,
    FloatArray,
    IntegerArray,
    group_sums,
    pair,
    row_counts,
    stretches,
)
from temper.lazy import scipy


def probabilities_of(logits: ArrayLike) -> FloatArray:
    """Turn logits [n, C] into probabilities in float64, whose rows sum to 1."""
    array = np.asarray(logits, dtype=np.float64)
    return _over_stretches(lambda rows: scipy.special.softmax(rows, axis=-1), array)


def negative_log_likelihood(labels: ArrayLike, logits: ArrayLike) -> FloatArray:
    """Negative log-likelihood of each row in nats, ``-log softmax(logits)[label]``, [n] float64.

    It stays finite if the probability rounds to 0.

    Example:
        >>> negative_log_likelihood([1], [[1000.0, 0.0]]).tolist()
        [1000.0]
    """
    array = np.asarray(logits, dtype=np.float64)
    return _over_stretches(
        lambda rows, classes: -_at_labels(scipy.special.log_softmax(rows, axis=-1), classes),
        array,
        class_indices(labels, array),
    )


def brier_of_rows(labels: ArrayLike, probabilities: ArrayLike) -> FloatArray:
    """Brier score of each row, ``sum_k (p_k - y_k)^2`` in [0, 2].

    It is twice the usual score of binary classifiers.

    References:
        Brier, "Verification of forecasts expressed in terms of probability", 1950, Eq. 2.
    """
    array = np.asarray(probabilities, dtype=np.float64)

    def squares(rows: FloatArray, classes: IntegerArray) -> FloatArray:
        apart = rows.copy()
        apart[np.arange(len(classes)), classes] -= 1.0
        return np.asarray((apart**2).sum(axis=-1))

    return _over_stretches(squares, array, class_indices(labels, array))


def bin_numbers(confidences: ArrayLike, *, bins: int) -> IntegerArray:
    """Return the index of each confidence's bin, [n].

    Bin k is ``[k/bins, (k+1)/bins)``; the last one includes 1. Libraries that put a confidence of 1
    into an extra bin report 0.275 instead of 0.225 on the example of `expected_calibration_error`.

    Raises:
        ValueError: A confidence is not in [0, 1], or ``bins`` is below 1.
    """
    _check_bins(bins)
    values = np.asarray(confidences, dtype=np.float64)
    _check_confidences(values)
    # k / bins is the double nearest to the edge; linspace puts 0.3 above 3/10.
    edges = np.arange(1, bins) / bins
    return np.searchsorted(edges, values, side="right").astype(np.int64)


def expected_calibration_error(
    correct: ArrayLike, confidences: ArrayLike, *, bins: int, counts: Counts = None
) -> FloatArray:
    """Expected calibration error, ``sum_b (n_b / n) |accuracy_b - confidence_b|``.

    Args:
        correct: Whether the predicted class is the label, [n].
        confidences: Probability of the predicted class, [n], in [0, 1].
        bins: Number of equal-width bins: 10 (RoAST) or 15 (Guo et al.).
        counts: How often each row is drawn, [n] or [R, n] (bootstrap); once by default.

    Returns:
        A value in [0, 1] (or [R] of them); NaN without rows.

    Raises:
        ValueError: A confidence is not in [0, 1].

    Example:
        >>> value = expected_calibration_error([1, 1, 0, 1], [0.95, 0.95, 1.0, 1.0], bins=10)
        >>> round(float(value), 12)
        0.225

    References:
        Guo et al., "On Calibration of Modern Neural Networks", 2017, Eq. 3.
        Differs: bins are closed on the left; the two agree except for confidences exactly on an
            edge.
    """
    hits, values = pair(correct, confidences)
    weights = row_counts(len(hits), counts)
    _check_bins(bins)
    sums = np.zeros((*weights.shape[:-1], bins))
    for rows in stretches(len(hits), width=bins):
        outcomes, sure = _hits(hits[rows], values[rows])
        numbers = bin_numbers(sure, bins=bins)
        sums += group_sums(outcomes - sure, numbers, bins, weights[..., rows])
    total = weights.sum(axis=-1)
    error = np.abs(sums).sum(axis=-1)
    return np.where(total > 0, error / np.where(total > 0, total, 1.0), np.nan)[()]


def adaptive_calibration_error(
    correct: ArrayLike, confidences: ArrayLike, *, bins: int = 15, counts: Counts = None
) -> FloatArray:
    """Calibration error in bins that contain equally many rows.

    ``(1 / B) sum_b |accuracy_b - confidence_b|`` over the rows sorted by confidence. A row on the
    edge of two bins counts partly in both, and so do rows of equal confidence. The value therefore
    does not depend on the order of the rows.

    Args:
        correct: Whether the predicted class is the label, [n].
        confidences: Probability of the predicted class, [n], in [0, 1].
        bins: Number of bins, B >= 1.
        counts: How often each row is drawn, [n] or [R, n] (bootstrap). Each resample has its own
            bins.

    Returns:
        A value in [0, 1] (or [R] of them); NaN without rows.

    Raises:
        ValueError: A confidence is not in [0, 1], or ``bins`` is below 1.

    References:
        Nguyen and O'Connor, "Posterior calibration and exploratory analysis for natural language
        processing models", EMNLP 2015, Section 3.2. Differs: rows are split between bins if B does
        not divide n.
    """
    hits, values = _hits(correct, confidences)
    _check_bins(bins)
    _check_confidences(values)
    weights = row_counts(len(hits), counts)
    if not len(hits):
        return np.full(weights.shape[:-1], np.nan)[()]
    order = np.argsort(values, kind="stable")
    ordered = values[order]

    def sums_before(ends: IntegerArray, weights: FloatArray) -> FloatArray:
        """Return ``sum(weights (hits - values))`` over the first e ordered rows, for each e."""
        sums, reached = np.zeros(len(ends)), 0.0
        for rows in stretches(len(order)):
            chosen = order[rows]
            running = np.cumsum(weights[chosen] * (hits[chosen] - values[chosen]))
            inside = (ends > rows.start) & (ends <= rows.stop)
            sums[inside] = reached + running[ends[inside] - rows.start - 1]
            reached += running[-1]
        return sums

    edges = np.arange(bins + 1) / bins
    result = []
    for resample in weights.reshape(-1, len(hits)):
        mass = resample[order]
        np.cumsum(mass, out=mass)
        total = mass[-1]
        # Within a group of equal confidences the gap grows linearly, so an edge inside it is
        # interpolated between the sums at the group's ends.
        cuts = ordered[np.minimum(mass.searchsorted(edges * total), len(mass) - 1)]
        ends = np.sort(np.append(ordered.searchsorted(cuts), ordered.searchsorted(cuts, "right")))
        gaps = sums_before(ends, resample)
        sums = np.diff(np.interp(edges * total, np.where(ends > 0, mass[ends - 1], 0.0), gaps))
        result.append(np.abs(sums).sum() / total if total > 0 else np.nan)
    return np.asarray(result, dtype=np.float64).reshape(weights.shape[:-1])[()]


def classwise_calibration_error(
    labels: ArrayLike,
    probabilities: ArrayLike,
    *,
    bins: int = 15,
    counts: Counts = None,
) -> FloatArray:
    """Calibration error of every class's probability, averaged over the classes.

    ``(1 / C) sum_k sum_b (n_bk / n) |fraction of class k in b - mean p_k in b|`` in bins of equal
    width. Unlike the ECE it also uses the probabilities of classes that were not predicted.

    Returns:
        A value in [0, 1] (or [R] of them); NaN without rows.

    Raises:
        ValueError: A probability is not in [0, 1], or a label is not a class.

    References:
        Kull et al., "Beyond temperature scaling: Obtaining well-calibrated multiclass probabilities
        with Dirichlet calibration", NeurIPS 2019, Eq. 3.
    """
    array = np.asarray(probabilities, dtype=np.float64)
    classes = class_indices(labels, array)
    errors = [
        expected_calibration_error(classes == k, array[:, k], bins=bins, counts=counts)
        for k in range(array.shape[1])
    ]
    return np.asarray(np.mean(errors, axis=0))[()]


@dataclass(frozen=True)
class Reliability:
    """Number of rows, accuracy and mean confidence per bin (NaN in empty bins)."""

    rows: IntegerArray
    accuracy: FloatArray
    confidence: FloatArray


def reliability(correct: ArrayLike, confidences: ArrayLike, *, bins: int) -> Reliability:
    """Compute the bins of a reliability diagram, the same as in `expected_calibration_error`."""
    hits, values = np.asarray(correct, dtype=np.float64), np.asarray(confidences, dtype=np.float64)
    numbers = bin_numbers(values, bins=bins)
    rows = np.bincount(numbers, minlength=bins).astype(np.int64)
    filled = np.where(rows > 0, rows, 1)
    right = np.where(rows > 0, np.bincount(numbers, hits, bins) / filled, np.nan)
    sure = np.where(rows > 0, np.bincount(numbers, values, bins) / filled, np.nan)
    return Reliability(rows, right, sure)


def _check_bins(bins: int) -> None:
    if bins < 1:
        raise ValueError(f"`bins` must be >= 1, got {bins}.")


def _check_confidences(values: FloatArray) -> None:
    # Sums of probabilities may exceed 1 by a rounding error, but not by more.
    if values.size and not (values.min() >= 0 and values.max() <= 1 + 1e-6):
        raise ValueError("Confidences must be in [0, 1]. Pass probabilities, not logits.")


def _over_stretches(measure: Callable[..., FloatArray], *arrays: NDArray[Any]) -> FloatArray:
    """Apply ``measure`` to blocks of rows and concatenate the results, to save memory."""
    cut = stretches(len(arrays[0]), width=arrays[0].shape[-1])
    parts = [measure(*(array[rows] for array in arrays)) for rows in cut]
    return np.concatenate(parts) if parts else measure(*arrays)


def _at_labels(values: FloatArray, classes: IntegerArray) -> FloatArray:
    """Return the value in each row's label column: [n, C] to [n]."""
    return values[np.arange(len(classes)), classes]


def _hits(correct: ArrayLike, confidences: ArrayLike) -> tuple[FloatArray, FloatArray]:
    """Check that both arrays are [n] and convert them to float64."""
    hits, values = pair(correct, confidences)
    return np.asarray(hits, dtype=np.float64), np.asarray(values, dtype=np.float64)


def class_indices(labels: ArrayLike, array: FloatArray) -> IntegerArray:
    """Return labels as integers [n]; raise if one is not a column of an array [n, C]."""
    values = np.asarray(labels)
    classes = values.astype(np.int64)
    if array.ndim != 2 or classes.shape != array.shape[:1]:
        raise ValueError(
            f"Expected labels [n] and probabilities or logits [n, C], got {list(classes.shape)} "
            f"and {list(array.shape)}."
        )
    if classes.size and (
        bool((classes != values).any()) or not 0 <= classes.min() <= classes.max() < array.shape[1]
    ):
        raise ValueError(f"Labels must be class indices from 0 to {array.shape[1] - 1}.")
    return classes


# Doubling 1 this often reaches the largest double, so the bracket's upper end is always found.
_DOUBLINGS = 1024


@dataclass(frozen=True)
class Temperature:
    """A fitted temperature.

    Args:
        value: T > 0.
        before: Mean NLL at T = 1 of the rows it was fitted on, in nats.
        after: Their mean NLL at T; never above ``before``.
        rows: Number of rows it was fitted on.
    """

    value: float
    before: float
    after: float
    rows: int


def log_probabilities(probabilities: ArrayLike) -> FloatArray:
    """Return logarithms of probabilities, -inf for 0."""
    with np.errstate(divide="ignore"):
        return np.log(np.asarray(probabilities, dtype=np.float64))


def scaled(logits: ArrayLike, temperature: ArrayLike) -> FloatArray:
    """Apply a temperature to logits; return log-probabilities.

    Args:
        logits: Logits or logarithms of probabilities, [n, C]; -inf is a probability of 0.
        temperature: T > 0, one number or one per row, [n].

    Returns:
        ``log softmax(logits / T)``, [n, C]; the exponentials of a row sum to 1.

    Raises:
        ValueError: A temperature is not a positive finite number.
    """
    array = np.asarray(logits, dtype=np.float64)
    divisor = np.asarray(temperature, dtype=np.float64)
    if not bool((np.isfinite(divisor) & (divisor > 0)).all()):
        raise ValueError(f"A temperature must be a finite number > 0, got {divisor}.")
    divisors = np.broadcast_to(divisor.reshape(-1, 1), (len(array), 1))

    def log_softmax_of(rows: FloatArray, divisors: FloatArray) -> FloatArray:
        # The largest logit is subtracted first, so that a small temperature cannot overflow.
        shifted = (rows - rows.max(axis=-1, keepdims=True)) / divisors
        return np.asarray(scipy.special.log_softmax(shifted, axis=-1))

    return _over_stretches(log_softmax_of, array, divisors)


class EveryRowRightError(ValueError):
    """No temperature is optimal: all rows are right, so a lower one always lowers the loss."""


def fit_temperature(labels: ArrayLike, logits: ArrayLike) -> Temperature:
    """Fit the temperature that minimizes the mean negative log-likelihood (NLL).

    ``min_T -(1/n) sum_i log softmax(z_i / T)[y_i]`` is convex in ``b = 1 / T``. The root of its
    derivative in b, ``mean_i(E_p[z_i] - z_i[y_i])``, is bracketed and solved by Brent's method. A
    root exists if at least one row is wrong, and if the labels' logits are above their rows'
    average. Otherwise the optimal T is 0 or infinite.

    Args:
        labels: Class indices, [n].
        logits: Logits or logarithms of probabilities, [n, C]; -inf is a probability of 0.

    Returns:
        The temperature (relative error below 1e-8) and the NLL before and after.

    Raises:
        EveryRowRightError: Every row is right.
        ValueError: There are no rows, a label has probability 0, or the optimal temperature is
            infinite.

    Example:
        >>> # Three of four are right, and the classifier's odds are e^2 : 1.
        >>> fitted = fit_temperature([0, 0, 0, 1], [[2.0, 0.0]] * 4)
        >>> bool(np.isclose(fitted.value, 2.0 / np.log(3.0), rtol=1e-12))
        True

    References:
        Guo et al., "On Calibration of Modern Neural Networks", ICML 2017, Section 4.2.
    """
    array = np.asarray(logits, dtype=np.float64)
    if not len(array):
        raise ValueError("there are no rows")
    losses = -negative_log_likelihood(labels, array)
    if not bool(np.isfinite(losses).all()):
        raise ValueError("a label has probability 0")
    classes = np.asarray(labels).astype(np.int64)
    _check_exists(array, classes)
    high = 1.0
    for _ in range(_DOUBLINGS):
        if _slope(high, array, classes) > 0:
            break
        high *= 2.0
    inverse = float(
        scipy.optimize.brentq(_slope, 0.0, high, args=(array, classes), xtol=1e-300, rtol=1e-14)
    )
    after = _over_stretches(
        lambda rows, chosen: _at_labels(scaled(rows, 1.0 / inverse), chosen), array, classes
    )
    return Temperature(1.0 / inverse, -float(losses.mean()), -float(after.mean()), len(classes))


def _check_exists(logits: FloatArray, classes: IntegerArray) -> None:
    """Raise if no positive finite temperature is optimal."""
    if bool((logits == logits[:, :1]).all()):
        raise ValueError(
            "the logits are the same for every class, so no temperature changes anything"
        )
    if bool((_at_labels(logits, classes) == logits.max(axis=-1)).all()):
        raise EveryRowRightError(
            "every row is right, so a lower temperature always lowers the loss"
        )
    if _slope(0.0, logits, classes) >= 0:
        raise ValueError(
            "the labels are no likelier than other classes on average, so a higher temperature "
            "always lowers the loss"
        )


def _slope(inverse: float, given: FloatArray, classes: IntegerArray) -> float:
    """Return the derivative of the mean NLL with respect to b = 1 / T >= 0."""
    total = 0.0
    for stretch in stretches(len(given), width=given.shape[-1]):
        part, chosen = given[stretch], classes[stretch]
        part = part - part.max(axis=-1, keepdims=True)
        # At b = 0 a class of probability 0 is ignored, as in the limit from above.
        possible = np.isfinite(part)
        logits = np.where(possible, part, 0.0)
        weights = np.where(possible, np.exp(inverse * logits), 0.0)
        mean = (weights * logits).sum(axis=-1) / weights.sum(axis=-1)
        total += float((mean - _at_labels(logits, chosen)).sum())
    return total / len(classes)
