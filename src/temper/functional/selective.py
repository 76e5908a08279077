"""Selective prediction: the risk of a model that abstains below a confidence threshold.

Coverage is the fraction of rows that are accepted, the most confident first. Risk is the fraction
of wrong predictions among them. Ties of confidence are in random order, and every score is the mean
over that order. ``wrong`` is 1 for a wrong prediction, else 0. ``counts`` are how often each row is
drawn, [n] or [R, n]. Scores are in [0, 1], lower is better; NaN without rows. Letters: n rows, R
resamples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from temper.functional.resampling import Counts, FloatArray, divide, pair, row_counts
from temper.lazy import scipy


def area_under_risk(
    wrong: ArrayLike, confidences: ArrayLike, *, counts: Counts = None
) -> FloatArray:
    """Return the area under the risk-coverage curve (AURC), the mean risk over all coverages.

    ``(1 / n) sum_k risk of the k most confident rows``.

    References:
        Geifman, Uziel and El-Yaniv, "Bias-Reduced Uncertainty Estimation for Deep Neural
        Classifiers", ICLR 2019, Section 2 (AURC). Differs: the mean over random orders of ties.
    """
    mass, errors = _summed(wrong, confidences, counts)
    harmonic = _harmonic(mass[..., -1].max(initial=0.0))
    rows, result = np.diff(mass), np.diff(errors)
    # Ties are in random order: after M rows with E errors, a group with the fraction e of errors
    # adds sum_k (E + (k - M) e) / k.
    fraction = np.divide(result, rows, out=np.zeros_like(rows), where=rows > 0)
    offset = errors[..., :-1] - fraction * mass[..., :-1]
    sums = np.diff(harmonic[mass.astype(np.int64)])
    return divide((result + offset * sums).sum(axis=-1), mass[..., -1])


def excess_area(wrong: ArrayLike, confidences: ArrayLike, *, counts: Counts = None) -> FloatArray:
    """Return the excess AURC (E-AURC): how much the order by confidence adds to the optimum.

    It is the AURC minus that of the best order, with all wrong rows last.

    References:
        Geifman, Uziel and El-Yaniv, ICLR 2019, Section 4 (E-AURC). Differs: the best order's area
        is an exact sum; the paper has its limit for many rows.
    """
    faults, _ = pair(wrong, confidences)
    weights = row_counts(len(faults), counts)
    rows, errors = weights.sum(axis=-1), weights @ faults.astype(np.float64)
    right = rows - errors
    harmonic = _harmonic(rows.max(initial=0.0))
    # The AURC with all wrong rows last is the mean of (k - right) / k over k > right.
    sums = harmonic[rows.astype(np.int64)] - harmonic[right.astype(np.int64)]
    excess = area_under_risk(wrong, confidences, counts=counts) - divide(
        errors - right * sums, rows
    )
    # Rounding of the two sums may give a value just below 0.
    return np.maximum(excess, 0.0)


def risk_at_coverage(
    wrong: ArrayLike,
    confidences: ArrayLike,
    *,
    coverage: float,
    counts: Counts = None,
) -> FloatArray:
    """Return the fraction of wrong predictions among the most confident rows.

    ``coverage`` in (0, 1] is the fraction of rows that are accepted; the last row may count in
    part.
    """
    mass, errors = _summed(wrong, confidences, counts)
    rows, result = np.diff(mass), np.diff(errors)
    accepted = coverage * mass[..., -1:]
    kept = np.clip(accepted - mass[..., :-1], 0.0, rows)
    fraction = np.divide(result, rows, out=np.zeros_like(rows), where=rows > 0)
    return divide((kept * fraction).sum(axis=-1), accepted[..., 0])


@dataclass(frozen=True)
class RiskCurve:
    """Coverage and risk at every confidence threshold.

    Args:
        thresholds: Distinct confidences, from high to low, [k].
        coverages: Fraction of rows at or above each threshold, [k].
        risks: Fraction of wrong predictions among these rows, [k].
    """

    thresholds: FloatArray
    coverages: FloatArray
    risks: FloatArray


def risk_curve(wrong: ArrayLike, confidences: ArrayLike) -> RiskCurve:
    """Return coverage and risk at every distinct confidence.

    ``wrong`` [n] is 0 or 1, ``confidences`` are [n].
    """
    faults, sure = (side.astype(np.float64) for side in pair(wrong, confidences))
    thresholds, indices = np.unique(-sure, return_inverse=True)
    accepted = np.cumsum(np.bincount(indices, minlength=len(thresholds)))
    errors = np.cumsum(np.bincount(indices, faults, len(thresholds)))
    return RiskCurve(-thresholds, accepted / max(len(sure), 1), errors / np.maximum(accepted, 1))


@dataclass(frozen=True)
class AcceptanceThreshold:
    """A confidence threshold that keeps the risk below a limit.

    Args:
        threshold: Lowest confidence at which a prediction is accepted.
        accepted: Number of held-out rows at or above the threshold.
        wrong: Number of wrong predictions among them.
        rows: Number of held-out rows.
    """

    threshold: float
    accepted: int
    wrong: int
    rows: int


def shown_risks(
    confidences: ArrayLike,
    wrong: ArrayLike,
    *,
    failure: float = 0.1,
    thresholds: Sequence[float],
    starts: int = 4,
) -> FloatArray:
    """Return an upper bound of the risk at each confidence threshold (Learn-then-Test).

    Choose a limit r beforehand. With probability ``1 - failure`` over the held-out rows, every
    threshold whose bound is at most r has a risk of at most r on new rows.

    The upper limit of one threshold's risk is exact (Clopper and Pearson), at level ``failure /
    starts``. Thresholds are tested in the order given (fixed-sequence testing), from each of
    ``starts`` positions. The bound from one position is the largest upper limit so far. The result
    is the smallest bound over the positions.

    Args:
        confidences: Confidences of held-out rows, [n]; -inf if another rule abstains.
        wrong: Whether each prediction is wrong, [n].
        failure: Probability with which the bounds may fail, in (0, 1).
        thresholds: Thresholds from high to low, chosen without these rows, [k].
        starts: Number of starting positions, >= 1, evenly spaced from the first one. Several are
            needed because the highest thresholds accept too few rows to reject anything.

    Returns:
        Upper bounds in (0, 1], [k]; 1 without evidence.

    Example:
        >>> sure = [0.9] * 50 + [0.6] * 50
        >>> shown_risks(sure, [0] * 100, failure=0.1, thresholds=[0.9, 0.6], starts=1).round(3)
        array([0.045, 0.045])

    References:
        Angelopoulos, Bates, Candes, Jordan and Lei, "Learn then Test: Calibrating Predictive
        Algorithms to Achieve Risk Control", 2021, Algorithm 1 (fixed sequence, several starts).
        Differs: exact binomial p-values, which are never above their Hoeffding-Bentkus values.
    """
    sure, faults = pair(confidences, wrong)
    limits = np.asarray(thresholds, dtype=np.float64)
    if not 0.0 < failure < 1.0:
        raise ValueError(f"`failure` must be in (0, 1), got {failure}.")
    if bool((np.diff(limits) >= 0).any()) or not 1 <= starts <= len(limits):
        raise ValueError(
            "`thresholds` must be decreasing, and `starts` from 1 to the number of thresholds, "
            f"got {len(limits)} thresholds and {starts} starts."
        )
    order = np.argsort(-sure, kind="stable")
    accepted = np.searchsorted(-sure[order], -limits, side="right")
    errors = np.append(0, np.cumsum(faults[order].astype(np.bool_)))[accepted]
    upper = np.ones(len(limits))
    some = errors < accepted
    upper[some] = scipy.stats.beta.isf(
        failure / starts, errors[some] + 1, (accepted - errors)[some]
    )
    shown = np.ones(len(limits))
    for first in (len(limits) * start // starts for start in range(starts)):
        shown[first:] = np.minimum(shown[first:], np.maximum.accumulate(upper[first:]))
    return shown


def _summed(
    wrong: ArrayLike, confidences: ArrayLike, counts: Counts
) -> tuple[FloatArray, FloatArray]:
    """Return numbers of rows and errors above each distinct confidence, [..., k + 1] each."""
    faults, sure = (side.astype(np.float64) for side in pair(wrong, confidences))
    if bool(np.isnan(sure).any()):
        raise ValueError("A confidence is NaN, so rows cannot be ordered by confidence.")
    weights = row_counts(len(sure), counts)
    order = np.argsort(-sure, kind="stable")
    ends = np.append(np.flatnonzero(np.diff(sure[order])) + 1, len(order))
    ordered = weights[..., order]
    sums = []
    for item in (ordered, ordered * faults[order]):
        before = np.zeros((*weights.shape[:-1], len(order) + 1))
        np.cumsum(item, axis=-1, out=before[..., 1:])
        sums.append(before[..., np.append(0, ends)])
    return sums[0], sums[1]


def _harmonic(highest: float) -> FloatArray:
    """Return the harmonic numbers ``H(0) = 0`` to ``H(highest)``."""
    return np.append(0.0, np.cumsum(1.0 / np.arange(1, int(highest) + 1)))
