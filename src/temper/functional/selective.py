"""Selective prediction: what is risked where a model answers only when it is sure enough.

The risk at a coverage is the fraction of wrong rows among that fraction of all rows of which the
model is surest. Rows of equal confidence come in random order, and every score is the mean over it,
so that ties neither help nor harm. ``wrong`` is 1 where an answer is wrong, else 0; ``confidences``
are high where the model is sure; ``counts`` are whole numbers. Scores are in [0, 1], low is good,
and NaN without rows. Letters: n rows, R resamples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from temper.functional.resampling import FloatArray, divide, pair, row_counts
from temper.lazy import scipy


def area_under_risk(
    wrong: ArrayLike, confidences: ArrayLike, *, counts: ArrayLike | None = None
) -> FloatArray:
    """Average the risk over all coverages (AURC): ``(1 / n) sum_k risk of the k surest rows``.

    References:
        Geifman, Uziel and El-Yaniv, "Bias-Reduced Uncertainty Estimation for Deep Neural
        Classifiers", ICLR 2019, Section 2 (AURC).
        Differs: rows of equal confidence are in random order, over which this is the mean.
    """
    mass, errors = _summed(wrong, confidences, counts)
    harmonic = _harmonic(mass[..., -1].max(initial=0.0))
    rows, result = np.diff(mass), np.diff(errors)
    # Within a group of fraction e the errors grow by e a row: sum_k (E + (k - M) e) / k.
    fraction = np.divide(result, rows, out=np.zeros_like(rows), where=rows > 0)
    offset = errors[..., :-1] - fraction * mass[..., :-1]
    sums = np.diff(harmonic[mass.astype(np.int64)])
    return divide((result + offset * sums).sum(axis=-1), mass[..., -1])


def excess_area(
    wrong: ArrayLike, confidences: ArrayLike, *, counts: ArrayLike | None = None
) -> FloatArray:
    """Return the part of the AURC that is due to the order of the rows (E-AURC).

    The AURC minus that of the same rows with all wrong ones last. It is 0 if every wrong row has a
    lower confidence than every right one, for any accuracy.

    References:
        Geifman, Uziel and El-Yaniv, ICLR 2019, Section 4 (E-AURC).
        Differs: the best order's area is summed, where the paper has its limit for many rows.
    """
    faults, _ = pair(wrong, confidences)
    weights = row_counts(len(faults), counts)
    rows, errors = weights.sum(axis=-1), weights @ faults.astype(np.float64)
    right = rows - errors
    harmonic = _harmonic(rows.max(initial=0.0))
    # With all wrong rows last: sum over k > right of (k - right) / k.
    sums = harmonic[rows.astype(np.int64)] - harmonic[right.astype(np.int64)]
    excess = area_under_risk(wrong, confidences, counts=counts) - divide(
        errors - right * sums, rows
    )
    # Not below 0 by the rounding of two sums.
    return np.maximum(excess, 0.0)


def risk_at_coverage(
    wrong: ArrayLike,
    confidences: ArrayLike,
    *,
    coverage: float,
    counts: ArrayLike | None = None,
) -> FloatArray:
    """Return the fraction of wrong rows among the surest ones.

    ``coverage`` is the fraction of the rows that are answered, in (0, 1]; a row on the edge counts
    in part.
    """
    if not 0.0 < coverage <= 1.0:
        raise ValueError(f"`coverage` must be in (0, 1], got {coverage}.")
    mass, errors = _summed(wrong, confidences, counts)
    rows, result = np.diff(mass), np.diff(errors)
    answered = coverage * mass[..., -1:]
    kept = np.clip(answered - mass[..., :-1], 0.0, rows)
    fraction = np.divide(result, rows, out=np.zeros_like(rows), where=rows > 0)
    return divide((kept * fraction).sum(axis=-1), answered[..., 0])


@dataclass(frozen=True)
class RiskCurve:
    """The risk at each coverage that a threshold on the confidence can give.

    Args:
        thresholds: Confidences from high to low, each once, [k].
        coverages: Fraction of rows at or above each, ascending to 1, [k].
        risks: Fraction of wrong rows among them, [k].
    """

    thresholds: FloatArray
    coverages: FloatArray
    risks: FloatArray


def risk_curve(wrong: ArrayLike, confidences: ArrayLike) -> RiskCurve:
    faults, sure = (side.astype(np.float64) for side in pair(wrong, confidences))
    thresholds, indices = np.unique(-sure, return_inverse=True)
    answered = np.cumsum(np.bincount(indices, minlength=len(thresholds)))
    errors = np.cumsum(np.bincount(indices, faults, len(thresholds)))
    return RiskCurve(-thresholds, answered / max(len(sure), 1), errors / np.maximum(answered, 1))


@dataclass(frozen=True)
class Selection:
    """A threshold on the confidence that keeps the risk below a limit.

    Args:
        threshold: Answer where the confidence is at least this.
        accepted: Held-out rows that were answered.
        wrong: Wrong rows among them.
        rows: All held-out rows.
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
    """Bound the fraction of wrong answers at or above each threshold (Learn-then-Test).

    For a limit r that is fixed beforehand: with probability ``1 - failure`` over the held-out rows,
    every threshold whose bound is at most r has a fraction of wrong answers of at most r on rows of
    the same distribution. The hypothesis "the risk of this threshold is above r" is rejected at
    every r from the exact (Clopper and Pearson) upper limit of its fraction of wrong answers. The
    thresholds are tested in the order given, from each of ``starts`` places at level ``failure /
    starts`` up to the first that is not rejected: from one start the bound is the largest limit so
    far, and the result is the smallest bound over the starts.

    Args:
        confidences: Confidences of held-out rows, high where the model is sure, [n]; -inf where
            another rule abstains.
        wrong: Whether the answer is wrong, [n].
        failure: Probability with which the bounds may fail, in (0, 1).
        thresholds: Thresholds from high to low, chosen without these rows, [k].
        starts: Number of places to start from, >= 1, evenly from the first one on: the highest
            thresholds accept too few rows to reject anything.

    Returns:
        Risks in (0, 1], [k]; 1 where nothing is shown.

    Example:
        >>> sure = [0.9] * 50 + [0.6] * 50
        >>> shown_risks(sure, [0] * 100, failure=0.1, thresholds=[0.9, 0.6], starts=1).round(3)
        array([0.045, 0.045])

    References:
        Angelopoulos, Bates, Candes, Jordan and Lei, "Learn then Test: Calibrating Predictive
        Algorithms to Achieve Risk Control", 2021, Algorithm 1 (fixed sequence, several starts).
        Differs: an answer is right or wrong, so the binomial tail itself is the p value; their
        Hoeffding-Bentkus value, made for any loss in [0, 1], is never below it.
    """
    sure, faults = pair(confidences, wrong)
    limits = np.asarray(thresholds, dtype=np.float64)
    if not 0.0 < failure < 1.0:
        raise ValueError(f"`failure` must be in (0, 1), got {failure}.")
    if bool((np.diff(limits) >= 0).any()) or not 1 <= starts <= len(limits):
        raise ValueError(
            f"`thresholds` must be decreasing and `starts` be from 1 to their number, got "
            f"{len(limits)} thresholds and {starts} starts."
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
    wrong: ArrayLike, confidences: ArrayLike, counts: ArrayLike | None
) -> tuple[FloatArray, FloatArray]:
    """Sum rows and errors from 0, then from the surest group on: [..., groups + 1]."""
    faults, sure = (side.astype(np.float64) for side in pair(wrong, confidences))
    if bool(np.isnan(sure).any()):
        raise ValueError("A confidence is NaN, which has no order.")
    weights = row_counts(len(sure), counts)
    order = np.argsort(-sure, kind="stable")
    ends = np.append(np.flatnonzero(np.diff(sure[order])) + 1, len(order))
    ordered = weights[..., order]
    sums = []
    for each in (ordered, ordered * faults[order]):
        before = np.zeros((*weights.shape[:-1], len(order) + 1))
        np.cumsum(each, axis=-1, out=before[..., 1:])
        sums.append(before[..., np.append(0, ends)])
    return sums[0], sums[1]


def _harmonic(highest: float) -> FloatArray:
    """Return the harmonic numbers ``H(0) = 0`` to ``H(highest)``."""
    return np.append(0.0, np.cumsum(1.0 / np.arange(1, int(highest) + 1)))
