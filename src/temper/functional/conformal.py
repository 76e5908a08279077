"""Conformal prediction: sets and intervals that hold the truth as often as was asked for.

A threshold is a quantile of scores on rows that the model has not seen, and an answer goes into the
set where its score is not above it. If those rows and the rows to answer are exchangeable, the
truth is in the set with probability at least ``coverage``, over both, for any model. The
threshold of an anomaly detector is the same quantile: of its scores at 1 less the false alarm rate.
Letters: n rows to take the threshold from, N rows to answer, C classes, L labels of a text.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from temper.functional.resampling import FloatArray, pair
from temper.lazy import scipy

BooleanArray = NDArray[np.bool_]


ROUNDING = 1e-12
"""By how much a score may be above a threshold that it would equal without rounding."""


def least_rows(coverage: float) -> int:
    """Return the fewest rows from which a threshold can be taken, ``ceil(1 / (1 - coverage) - 1)``.

    Raises:
        ValueError: ``coverage`` is not in (0, 1).

    Example:
        >>> least_rows(0.9), least_rows(0.95)
        (9, 19)
    """
    asked = _exact(coverage)
    return math.ceil(asked / (1 - asked))


def conformal_quantile(scores: ArrayLike, *, coverage: float) -> float:
    """Return the ``ceil((n + 1) coverage)``-th smallest of n scores of held-out rows.

    A further score that is exchangeable with these is at most this value with probability at least
    ``coverage``, and, if no two scores are equal, at most ``coverage + 1 / (n + 1)``.

    Raises:
        ValueError: There are fewer rows than `least_rows`, a score is NaN, or ``coverage`` is not
            in (0, 1).

    References:
        Vovk, Gammerman and Shafer, "Algorithmic Learning in a Random World", 2005, ch. 4; Lei et
        al., "Distribution-Free Predictive Inference for Regression", 2018, Theorem 2.2.
    """
    values = np.asarray(scores, dtype=np.float64)
    if values.ndim != 1 or bool(np.isnan(values).any()):
        raise ValueError(f"Expected scores [n] without NaN, got shape {list(values.shape)}.")
    rank = conformal_rank(len(values), coverage)
    if rank > len(values):
        raise ValueError(
            f"A coverage of {coverage:g} needs at least {least_rows(coverage)} held-out rows, got "
            f"{len(values)}. Give more rows or ask for a lower coverage."
        )
    return float(np.partition(values, rank - 1)[rank - 1])


def conformal_quantiles(
    scores: ArrayLike, labels: ArrayLike, classes: int, *, coverage: float
) -> FloatArray:
    """Return a threshold [C] for each class from the held-out rows of that class (Mondrian).

    The coverage then holds within each class.

    Raises:
        ValueError: A class has fewer rows than `least_rows`; the message names it.

    References:
        Vovk, "Conditional validity of inductive conformal predictors", 2012.
    """
    values, indices = pair(scores, labels)
    indices = indices.astype(np.int64)
    needed = least_rows(coverage)
    rows = np.bincount(indices, minlength=classes)
    few = [f"{label} has {rows[label]}" for label in range(classes) if rows[label] < needed]
    if len(rows) > classes or few:
        message = (
            f"class {', '.join(few)}" if few else f"there are {len(rows)} classes, not {classes}"
        )
        raise ValueError(
            f"A coverage of {coverage:g} within each class needs at least {needed} held-out rows "
            f"of each: {message}."
        )
    return np.array(
        [
            conformal_quantile(values[indices == label], coverage=coverage)
            for label in range(classes)
        ]
    )


def lac_scores(probabilities: ArrayLike) -> FloatArray:
    """Return ``1 - p_k`` of every class k, [N, C]: sets of least ambiguous classes.

    The smallest sets on average; some may be empty.

    References:
        Sadinle, Lei and Wasserman, "Least Ambiguous Set-Valued Classifiers with Bounded Error
        Levels", 2019, Theorem 1.
    """
    array = np.asarray(probabilities, dtype=np.float64)
    if array.ndim != 2:
        raise ValueError(f"Expected probabilities [N, C], got shape {list(array.shape)}.")
    # NaN compares false; sums of probabilities may exceed 1 by a rounding error.
    if array.size and not (array.min() >= 0 and array.max() <= 1 + 1e-6):
        raise ValueError("Probabilities must be in [0, 1]. Pass probabilities, not logits.")
    return 1.0 - array


def at_labels(scores: ArrayLike, labels: ArrayLike) -> FloatArray:
    """Return the score [n] of each row at its label; thresholds are quantiles of these."""
    array, classes = np.asarray(scores, dtype=np.float64), np.asarray(labels)
    if array.ndim != 2 or classes.shape != array.shape[:1]:
        raise ValueError(
            f"Expected scores [n, C] and labels [n], got {list(array.shape)} and "
            f"{list(classes.shape)}."
        )
    if len(classes) and not 0 <= classes.min() <= classes.max() < array.shape[1]:
        raise ValueError(f"Labels must be whole numbers in 0..{array.shape[1] - 1}.")
    return array[np.arange(len(classes)), classes.astype(np.int64)]


def prediction_sets(scores: ArrayLike, thresholds: ArrayLike) -> BooleanArray:
    """Return which classes are in each row's set: those whose score is not above the threshold.

    ``scores`` are [N, C], ``thresholds`` one number or [C]. A set may be empty, and may have all
    classes. A class whose score is above its threshold by a rounding error, 1e-12 at most, is in
    the set.
    """
    limits = np.asarray(thresholds, dtype=np.float64) + ROUNDING
    return np.asarray(scores, dtype=np.float64) <= limits


def risk_threshold(scores: ArrayLike, applies: ArrayLike, *, coverage: float) -> float:
    """Return the lowest threshold whose sets miss few enough of a text's labels (risk control).

    A row's loss is the fraction of its labels whose score is above the threshold, which is at most
    1. With the mean loss R of n rows, the threshold is the lowest with
    ``n / (n + 1) R + 1 / (n + 1) <= 1 - coverage``. The expected loss of a further row that is
    exchangeable with these is then at most ``1 - coverage``.

    Args:
        scores: Scores of held-out rows, [n, L]; see `lac_scores`.
        applies: Which labels apply, [n, L]. Rows without a label have no loss and do not count:
            the bound is that of texts with a label.
        coverage: Expected fraction of a text's labels that are in its set, in (0, 1).

    Raises:
        ValueError: There are fewer rows with a label than `least_rows`.

    Example:
        >>> # Of (3 + 1) (1 - 0.5) - 1 = 1 row in 3, all labels may be missed: that with 0.9.
        >>> risk_threshold(
        ...     [[0.2, 1.0], [0.4, 0.6], [1.0, 0.9]], [[1, 0], [1, 1], [0, 1]], coverage=0.5
        ... )
        0.6

    References:
        Angelopoulos, Bates, Fisch, Lei and Schuster, "Conformal Risk Control", arXiv 2208.02814,
        Eq. 4 and Theorem 1; their threshold on probabilities is 1 less this one.
    """
    array, truth = np.asarray(scores, dtype=np.float64), np.asarray(applies, dtype=np.bool_)
    sizes = truth.sum(axis=1)
    rows = int((sizes > 0).sum())
    if rows < least_rows(coverage):
        raise ValueError(
            f"A coverage of {coverage:g} needs at least {least_rows(coverage)} held-out rows with "
            f"a label, got {rows}. Give more rows or ask for a lower coverage."
        )
    row, label = np.nonzero(truth)
    order = np.argsort(-array[row, label], kind="stable")
    ranked, losses = array[row, label][order], np.cumsum(1.0 / sizes[row][order])
    # The losses above a score are those before the first pair that has it. The sum is rounded.
    allowed = float((rows + 1) * (1 - _exact(coverage)) - 1) + 1e-9
    above = np.append(0.0, losses)[np.searchsorted(-ranked, -ranked, side="left")]
    return float(ranked[above <= allowed].min())


def chance_coverage(
    calibration_rows: int, rows: int, *, coverage: float, confidence: float = 0.95
) -> tuple[float, float]:
    """Return the range in which the fraction of rows covered falls by chance alone.

    With a threshold of n rows, the number covered of N exchangeable rows is beta-binomial:
    ``BetaBinomial(N, k, n + 1 - k)``, ``k = ceil((n + 1) coverage)``. Where scores tie, more rows
    are covered, so a fraction below the range speaks against exchangeability, above it need not.

    Returns:
        Least and largest fraction; each is passed with probability at most ``(1 - confidence) /
        2``.

    Raises:
        ValueError: There are fewer rows than `least_rows`.

    Example:
        >>> low, high = chance_coverage(1000, 1000, coverage=0.9)
        >>> round(low, 3), round(high, 3)
        (0.873, 0.925)

    References:
        Vovk, "Conditional validity of inductive conformal predictors", 2012, Proposition 2a;
            Angelopoulos and Bates, "A Gentle Introduction to Conformal Prediction", 2023, App. C.
    """
    rank = conformal_rank(calibration_rows, coverage)
    if rank > calibration_rows:
        raise ValueError(
            f"A coverage of {coverage:g} needs at least {least_rows(coverage)} held-out rows, got "
            f"{calibration_rows}."
        )
    law = scipy.stats.betabinom(rows, rank, calibration_rows + 1 - rank)
    edge = (1.0 - confidence) / 2
    return float(law.ppf(edge)) / rows, float(law.isf(edge)) / rows


@cache
def _exact(coverage: float) -> Fraction:
    """Return a coverage as the written decimal: 0.57 is 57/100, not the double below it."""
    if not 0.0 < coverage < 1.0:
        raise ValueError(f"`coverage` must be in (0, 1), got {coverage}.")
    return Fraction(str(float(coverage)))


def conformal_rank(rows: int, coverage: float) -> int:
    """Return ``ceil((n + 1) coverage)``, the rank of the threshold among n scores.

    Example:
        >>> conformal_rank(99, 0.9)
        90
    """
    return math.ceil((rows + 1) * _exact(coverage))
