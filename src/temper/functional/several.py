"""Scores of texts with several labels, each one function for a data set and all its resamples.

Labels and predictions are 0 or 1 for each label, [n, L]; ``counts`` as in the module `scores`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from temper.functional.detectors import aupr
from temper.functional.resampling import FloatArray, divide, row_counts, weighted_mean


def micro_f1(
    labels: ArrayLike, predictions: ArrayLike, *, counts: ArrayLike | None = None
) -> FloatArray:
    """F1 over all labels of all texts, ``2 TP / (2 TP + FP + FN)``.

    Same as ``sklearn.metrics.f1_score(average="micro")``.

    NaN if no label applies or is predicted.
    """
    hits, either = _sums(labels, predictions, counts)
    return divide(2 * hits.sum(-1), either.sum(-1))


def label_f1(
    labels: ArrayLike, predictions: ArrayLike, *, counts: ArrayLike | None = None
) -> FloatArray:
    """Unweighted mean of the labels' F1, over labels that apply or are predicted in some row.

    NaN if no label applies or is predicted.
    """
    hits, either = _sums(labels, predictions, counts)
    known = either > 0
    return divide((2 * hits / np.where(known, either, 1)).sum(-1), known.sum(-1))


def mean_average_precision(
    labels: ArrayLike, scores: ArrayLike, *, counts: ArrayLike | None = None
) -> FloatArray:
    """Mean over the labels of the average precision of their scores; it needs no threshold.

    Same as ``sklearn.metrics.average_precision_score(average="macro")`` over the labels that apply
    to some rows and not to others; the rest is left out.

    NaN if no label applies to some rows only. ``scores`` are probabilities or logits.
    """
    if not len(np.asarray(labels)):
        return divide(row_counts(0, counts).sum(-1), row_counts(0, counts).sum(-1))
    truth, ranked = (np.asarray(each, dtype=np.float64) for each in (labels, scores))
    columns = zip(truth.T, ranked.T, strict=True)
    by_label = np.stack(
        [aupr(each, label_scores, counts=counts) for each, label_scores in columns], axis=-1
    )
    known = np.isfinite(by_label)
    return divide(np.where(known, by_label, 0.0).sum(-1), known.sum(-1))


def exact_match(
    labels: ArrayLike, predictions: ArrayLike, *, counts: ArrayLike | None = None
) -> FloatArray:
    """Fraction of texts all of whose labels are right (subset accuracy)."""
    right = (np.asarray(labels) == np.asarray(predictions)).all(-1).astype(np.float64)
    return weighted_mean(right, counts)


def _sums(
    labels: ArrayLike, predictions: ArrayLike, counts: ArrayLike | None
) -> tuple[FloatArray, FloatArray]:
    """Return true positives, and labels that apply plus those that are predicted, [..., L]."""
    truth, answers = (np.asarray(each, dtype=np.float64) for each in (labels, predictions))
    weights = row_counts(len(truth), counts)
    return weights @ (truth * answers), weights @ (truth + answers)
