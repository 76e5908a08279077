"""Conformal prediction: sets and intervals that contain the truth with a chosen probability.

A threshold is a quantile of scores on held-out rows. A prediction set contains the classes whose
score is at most the threshold. If held-out and new rows are exchangeable, the set contains the
truth with probability at least ``coverage``, for any model. An OOD detector's threshold is the same
quantile with ``coverage = 1 - false alarm rate``. Letters: n held-out rows, N rows to predict, C
classes, L labels of a text.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from temper.functional.calibration import class_indices
from temper.functional.resampling import FloatArray, pair
from temper.lazy import scipy

BooleanArray = NDArray[np.bool_]


ROUNDING = 1e-12
"""A score may exceed its threshold by this much, to allow for rounding errors."""


def least_rows(coverage: float) -> int:
    """Return the minimum number of held-out rows for a threshold, ``ceil(1 / (1 - coverage) - 1)``.

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

    The score of a new, exchangeable row is at most this value with probability at least
    ``coverage``. Without ties the probability is at most ``coverage + 1 / (n + 1)``.

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
            f"{len(values)}."
        )
    return float(np.partition(values, rank - 1)[rank - 1])


def conformal_quantiles(
    scores: ArrayLike, labels: ArrayLike, classes: int, *, coverage: float
) -> FloatArray:
    """Return one threshold per class, [C], from the held-out rows of that class (Mondrian).

    So each class has the coverage.

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
            f"class {', '.join(few)}" if few else f"label {len(rows) - 1}, but classes={classes}"
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
    """Return the conformal score ``1 - p_k`` of each class k, [N, C].

    Its prediction sets are the smallest on average; some may be empty.

    References:
        Sadinle, Lei and Wasserman, "Least Ambiguous Set-Valued Classifiers with Bounded Error
        Levels", 2019, Theorem 1.
    """
    array = np.asarray(probabilities, dtype=np.float64)
    if array.ndim != 2:
        raise ValueError(f"Expected probabilities [N, C], got shape {list(array.shape)}.")
    # Written so that NaN fails; sums of probabilities may exceed 1 by a rounding error.
    if array.size and not (array.min() >= 0 and array.max() <= 1 + 1e-6):
        raise ValueError("Probabilities must be in [0, 1]. Pass probabilities, not logits.")
    return 1.0 - array


def at_labels(scores: ArrayLike, labels: ArrayLike) -> FloatArray:
    """Return the score of each row's label, [n], of which thresholds are quantiles."""
    array = np.asarray(scores, dtype=np.float64)
    return array[np.arange(len(array)), class_indices(labels, array)]


def prediction_sets(scores: ArrayLike, thresholds: ArrayLike) -> BooleanArray:
    """Return whether each class is in each row's prediction set, [N, C].

    A class is in the set if its score is at most the threshold (plus `ROUNDING`). ``scores`` are
    [N, C], ``thresholds`` one number or [C]. A set may be empty, or contain all classes.
    """
    limits = np.asarray(thresholds, dtype=np.float64) + ROUNDING
    return np.asarray(scores, dtype=np.float64) <= limits


def risk_threshold(scores: ArrayLike, applies: ArrayLike, *, coverage: float) -> float:
    """Return the lowest threshold whose sets contain the fraction ``coverage`` of a text's labels.

    A row's loss is the fraction of its labels that are missed: their score is above the threshold.
    With the mean loss R of n rows, the threshold is the lowest with ``n / (n + 1) R + 1 / (n + 1)
    <= 1 - coverage``. The expected loss of a new, exchangeable row is then at most ``1 - coverage``
    (conformal risk control).

    Args:
        scores: Scores of held-out rows, [n, L]; see `lac_scores`.
        applies: Which labels apply, [n, L]. Rows without a label do not count.
        coverage: Expected fraction of a text's labels that are in its set, in (0, 1).

    Raises:
        ValueError: There are fewer rows with a label than `least_rows`.

    Example:
        >>> # Losses may sum to (3 + 1) (1 - 0.5) - 1 = 1: the third row's label (0.9) is missed.
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
            f"a label, got {rows}."
        )
    row, label = np.nonzero(truth)
    order = np.argsort(-array[row, label], kind="stable")
    ranked, losses = array[row, label][order], np.cumsum(1.0 / sizes[row][order])
    # Losses with a threshold at each score: of the labels with higher scores. The tolerance
    # covers the rounding of their sum.
    allowed = float((rows + 1) * (1 - _exact(coverage)) - 1) + 1e-9
    above = np.append(0.0, losses)[np.searchsorted(-ranked, -ranked, side="left")]
    return float(ranked[above <= allowed].min())


def chance_coverage(
    calibration_rows: int, rows: int, *, coverage: float, confidence: float = 0.95
) -> tuple[float, float]:
    """Return the range of measured coverage that chance alone explains.

    With a threshold from n ``calibration_rows``, the number of N exchangeable ``rows`` that are
    covered is beta-binomial: ``BetaBinomial(N, k, n + 1 - k)``, ``k = ceil((n + 1) coverage)``. A
    coverage below the range is evidence against exchangeability. One above it is not, because ties
    between scores raise the coverage. n is at least `least_rows`.

    Returns:
        The lowest and the highest coverage. By chance the coverage is below the first with
        probability at most ``(1 - confidence) / 2``, and above the second with the same bound.

    Example:
        >>> low, high = chance_coverage(1000, 1000, coverage=0.9)
        >>> round(low, 3), round(high, 3)
        (0.873, 0.925)

    References:
        Vovk, "Conditional validity of inductive conformal predictors", 2012, Proposition 2a;
            Angelopoulos and Bates, "A Gentle Introduction to Conformal Prediction", 2023, App. C.
    """
    rank = conformal_rank(calibration_rows, coverage)
    law = scipy.stats.betabinom(rows, rank, calibration_rows + 1 - rank)
    edge = (1.0 - confidence) / 2
    return float(law.ppf(edge)) / rows, float(law.isf(edge)) / rows


@cache
def _exact(coverage: float) -> Fraction:
    """Return a coverage as an exact decimal fraction: 0.57 is 57/100, not the nearest double."""
    if not 0.0 < coverage < 1.0:
        raise ValueError(f"`coverage` must be in (0, 1), got {coverage}.")
    return Fraction(str(float(coverage)))


def conformal_rank(rows: int, coverage: float) -> int:
    """Return ``ceil((n + 1) coverage)``, the rank of the threshold among ``rows`` = n scores.

    Example:
        >>> conformal_rank(99, 0.9)
        90
    """
    return math.ceil((rows + 1) * _exact(coverage))
