"""How well a score tells anomalies from ordinary rows, anomalies positive.

In each, ``counts`` are how often each row stands in a resample, [n] or [R, n] (bootstrap).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from temper.functional.resampling import FloatArray, divide, pair, row_counts


def auroc(
    anomalous: ArrayLike, scores: ArrayLike, *, counts: ArrayLike | None = None
) -> FloatArray:
    """Area under the ROC curve with the anomalies as positives.

    The chance that an anomaly scores above an ordinary row, ties counted half.

    Args:
        anomalous: True for anomalies, [n].
        scores: Anomaly score, [n]; higher means more anomalous.
        counts: Resample counts, [n] or [R, n].

    Returns:
        A value in [0, 1], a scalar or [R]; NaN where one kind is missing.

    Example:
        >>> float(auroc([0, 0, 1, 1], [0.1, 0.4, 0.35, 0.8]))
        0.75
    """
    hits, alarms = _threshold_sums(anomalous, scores, counts)
    steps = np.diff(alarms, axis=-1, prepend=0.0)
    before = hits - np.diff(hits, axis=-1, prepend=0.0)
    area = (steps * (before + hits) / 2).sum(axis=-1)
    return divide(area, hits[..., -1] * alarms[..., -1])


def aupr(anomalous: ArrayLike, scores: ArrayLike, *, counts: ArrayLike | None = None) -> FloatArray:
    """Average precision with the anomalies as positives.

    ``sum_t (recall_t - recall_{t-1}) precision_t`` over the distinct thresholds, without the
    interpolation that makes the trapezoid area too good.

    Args:
        anomalous: True for anomalies, [n].
        scores: Anomaly score, [n]; higher means more anomalous.
        counts: Resample counts, [n] or [R, n].

    Returns:
        A value in [0, 1], a scalar or [R]; NaN where one kind is missing.

    Example:
        >>> round(float(aupr([0, 0, 1, 1], [0.1, 0.4, 0.35, 0.8])), 4)
        0.8333
    """
    hits, alarms = _threshold_sums(anomalous, scores, counts)
    flagged = hits + alarms
    precision = hits / np.where(flagged > 0, flagged, 1)
    area = (np.diff(hits, axis=-1, prepend=0.0) * precision).sum(axis=-1)
    value = divide(area, hits[..., -1])
    return np.where(alarms[..., -1] > 0, value, np.nan)[()]


def fpr95(
    anomalous: ArrayLike, scores: ArrayLike, *, counts: ArrayLike | None = None
) -> FloatArray:
    """Share of ordinary rows flagged at the highest threshold that flags 95 % of the anomalies.

    Args:
        anomalous: True for anomalies, [n].
        scores: Anomaly score, [n]; higher means more anomalous.
        counts: Resample counts, [n] or [R, n].

    Returns:
        A value in [0, 1], a scalar or [R]; NaN where one kind is missing.

    Example:
        >>> float(fpr95([0, 0, 1, 1], [0.1, 0.4, 0.35, 0.8]))
        0.5
    """
    hits, alarms = _threshold_sums(anomalous, scores, counts)
    total = hits[..., -1:]
    # Counts are whole numbers, so the tolerance only undoes the rounding of 0.95 * total.
    first = (hits >= 0.95 * total - 1e-9 * total).argmax(axis=-1)
    flagged = np.take_along_axis(alarms, first[..., None], axis=-1)[..., 0]
    value = divide(flagged, alarms[..., -1])
    return np.where(total[..., 0] > 0, value, np.nan)[()]


def _threshold_sums(
    anomalous: ArrayLike, scores: ArrayLike, counts: ArrayLike | None
) -> tuple[FloatArray, FloatArray]:
    """Count anomalies and ordinary rows at or above each distinct score, highest first."""
    flags, values = pair(anomalous, scores)
    if not len(flags):
        raise ValueError("Anomaly scores need at least one row, got none.")
    weights = row_counts(len(flags), counts)
    order = np.argsort(-values.astype(np.float64), kind="stable")
    positive = flags.astype(bool)[order]
    ordered = weights[..., order]
    last = np.append(np.flatnonzero(np.diff(values[order])), len(order) - 1)
    hits = np.cumsum(ordered * positive, axis=-1)[..., last]
    alarms = np.cumsum(ordered * ~positive, axis=-1)[..., last]
    return hits, alarms
