"""Scores of multi-label classification.

Labels and predictions are 0 or 1, [n, L]. ``counts`` is how often each of the n rows is drawn, [n]
or [R, n]; with [R, n] the result is [R].
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from temper.functional.detectors import aupr
from temper.functional.resampling import Counts, FloatArray, divide, row_counts, weighted_mean


def micro_f1(labels: ArrayLike, predictions: ArrayLike, *, counts: Counts = None) -> FloatArray:
    """F1 over all labels of all texts, ``2 TP / (2 TP + FP + FN)``.

    Same as ``sklearn.metrics.f1_score(average="micro")``; NaN if no label applies or is predicted.
    """
    hits, either = _sums(labels, predictions, counts)
    return divide(2 * hits.sum(-1), either.sum(-1))


def label_f1(labels: ArrayLike, predictions: ArrayLike, *, counts: Counts = None) -> FloatArray:
    """Macro-F1: unweighted mean of the labels' F1.

    Labels that neither apply nor are predicted in any row are left out; NaN if all are.
    """
    hits, either = _sums(labels, predictions, counts)
    known = either > 0
    return divide((2 * hits / np.where(known, either, 1)).sum(-1), known.sum(-1))


def mean_average_precision(
    labels: ArrayLike, scores: ArrayLike, *, counts: Counts = None
) -> FloatArray:
    """Unweighted mean of the labels' average precision (mAP).

    Same as ``sklearn.metrics.average_precision_score(average="macro")``, without labels that apply
    to no row or to all rows. NaN if none is left. ``scores`` [n, L] are probabilities or logits.
    """
    if not len(np.asarray(labels)):
        return np.full(row_counts(0, counts).shape[:-1], np.nan)[()]
    truth, ranked = (np.asarray(item, dtype=np.float64) for item in (labels, scores))
    columns = zip(truth.T, ranked.T, strict=True)
    by_label = np.stack(
        [aupr(item, label_scores, counts=counts) for item, label_scores in columns], axis=-1
    )
    known = np.isfinite(by_label)
    return divide(np.where(known, by_label, 0.0).sum(-1), known.sum(-1))


def exact_match(labels: ArrayLike, predictions: ArrayLike, *, counts: Counts = None) -> FloatArray:
    """Subset accuracy: fraction of texts whose labels are all right."""
    right = (np.asarray(labels) == np.asarray(predictions)).all(-1).astype(np.float64)
    return weighted_mean(right, counts)


def _sums(
    labels: ArrayLike, predictions: ArrayLike, counts: Counts
) -> tuple[FloatArray, FloatArray]:
    """Return per label the true positives, and labels plus predicted labels (TP + FP + TP + FN)."""
    truth, predicted = (np.asarray(item, dtype=np.float64) for item in (labels, predictions))
    weights = row_counts(len(truth), counts)
    return weights @ (truth * predicted), weights @ (truth + predicted)
