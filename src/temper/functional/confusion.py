"""Confusion matrix, and precision, recall and F1 of each class."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from temper.functional.resampling import FloatArray, IntegerArray, divide


def confusion_matrix(labels: ArrayLike, predictions: ArrayLike, *, classes: int) -> IntegerArray:
    """Count rows by label and prediction.

    Args:
        labels: Class indices, [n].
        predictions: Predicted class indices, [n].
        classes: Number of classes C.

    Returns:
        Counts, [C, C]: the row is the label, the column the prediction.

    Example:
        >>> confusion_matrix([0, 0, 1], [0, 1, 1], classes=2).tolist()
        [[1, 1], [0, 1]]
    """
    first, second = (np.asarray(each, dtype=np.int64) for each in (labels, predictions))
    counts = np.bincount(first * classes + second, minlength=classes * classes)
    return counts.reshape(classes, classes)


def class_scores(confusion: IntegerArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return precision, recall and F1 of each class.

    Args:
        confusion: Counts by label and prediction, [C, C].

    Returns:
        ``TP / (TP + FP)``, ``TP / (TP + FN)`` and ``2 TP / (2 TP + FP + FN)``, [C] each, NaN where
        the denominator is 0. Same as ``sklearn.metrics.precision_recall_fscore_support`` with
        ``zero_division=nan``.

    Example:
        >>> [each.tolist() for each in class_scores(np.array([[3, 1], [0, 4]]))][:2]
        [[1.0, 0.8], [0.75, 1.0]]
    """
    hits, labels, predictions = np.diag(confusion), confusion.sum(axis=1), confusion.sum(axis=0)
    return divide(hits, predictions), divide(hits, labels), divide(2 * hits, labels + predictions)
