"""Scores of how strange a text looks to a classifier; higher is more anomalous.

Some read its answers (`max_softmax`, `max_logit`, `energy`), some its hidden states beside those of
ordinary rows (`Mahalanobis`, `Neighbours`). Letters: n rows, m ordinary rows, C classes, D sizes of
a state. Everything is computed in float64.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from temper.functional.resampling import FloatArray, divide, pair, row_counts
from temper.lazy import scipy

# Entries of one block of distances: 4 million doubles are 32 MB.
_BLOCK = 4_000_000


def max_softmax(probabilities: ArrayLike) -> FloatArray:
    """Return ``-max_k p_k`` of each row.

    Args:
        probabilities: [n, C].

    Returns:
        [n], in [-1, -1/C].

    Example:
        >>> max_softmax([[0.75, 0.25]]).tolist()
        [-0.75]

    References:
        Hendrycks and Gimpel, "A Baseline for Detecting Misclassified and Out-of-Distribution
        Examples in Neural Networks", ICLR 2017.
    """
    return np.asarray(-np.asarray(probabilities, dtype=np.float64).max(axis=1))


def max_logit(logits: ArrayLike) -> FloatArray:
    """Return ``-max_k z_k`` of each row.

    Args:
        logits: [n, C].

    Returns:
        [n].

    Example:
        >>> max_logit([[2.0, -1.0]]).tolist()
        [-2.0]

    References:
        Hendrycks et al., "Scaling Out-of-Distribution Detection for Real-World Settings", ICML
        2022.
    """
    return np.asarray(-np.asarray(logits, dtype=np.float64).max(axis=1))


def energy(logits: ArrayLike, *, temperature: float = 1.0) -> FloatArray:
    """Return the free energy ``-T log sum_k exp(z_k / T)`` of each row.

    Args:
        logits: [n, C].
        temperature: T > 0; the paper's value is 1.

    Returns:
        [n].

    Raises:
        ValueError: The temperature is not above 0.

    Example:
        >>> energy([[0.0, 0.0]]).round(4).tolist()
        [-0.6931]

    References:
        Liu et al., "Energy-based Out-of-distribution Detection", NeurIPS 2020, Eq. 4.
    """
    if not temperature > 0:
        raise ValueError(f"`temperature` must be > 0, got {temperature}.")
    array = np.asarray(logits, dtype=np.float64)
    return -temperature * np.asarray(scipy.special.logsumexp(array / temperature, axis=1))


def shrunk_covariance(residuals: ArrayLike) -> FloatArray:
    """Estimate a covariance of centred rows, shrunk towards a multiple of the identity.

    ``(1 - s) S + s (tr S / D) I`` with the share s that Ledoit and Wolf show to be best for large
    m and D; it is regular even with fewer rows than sizes.

    Args:
        residuals: Rows less their mean, [m, D].

    Returns:
        [D, D].

    Example:
        >>> shrunk_covariance([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]]).tolist()
        [[0.5, 0.0], [0.0, 0.5]]

    References:
        Ledoit and Wolf, "A well-conditioned estimator for large-dimensional covariance matrices",
        Journal of Multivariate Analysis 88, 2004, Section 3.2.
    """
    rows = _matrix(residuals)
    m, D = rows.shape
    covariance = rows.T @ rows / m
    size = float(np.trace(covariance)) / D
    spread = float((covariance**2).sum()) / D - size**2
    noise = (float(((rows**2).sum(axis=1) ** 2).mean()) - float((covariance**2).sum())) / (m * D)
    share = 1.0 if spread <= 0 else min(1.0, max(0.0, noise) / spread)
    return np.asarray((1.0 - share) * covariance + share * size * np.eye(D))


@dataclass(frozen=True)
class Mahalanobis:
    """The distance of a state to the nearest class of ordinary states, by their own spread.

    ``min_c (h - mean_c)^T Sigma^-1 (h - mean_c)`` with one covariance for all classes.

    Args:
        means: Mean state of each class, [C, D].
        factor: Lower Cholesky factor of the covariance, [D, D].

    Example:
        >>> rows = [[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]]
        >>> Mahalanobis.of(rows, [0, 0, 0, 0]).score([[0.0, 2.0]]).round(6).tolist()
        [8.0]

    References:
        Lee et al., "A Simple Unified Framework for Detecting Out-of-Distribution Samples and
        Adversarial Attacks", NeurIPS 2018, Eq. 2.
        Differs: the covariance is shrunk (`shrunk_covariance`), the last layer alone is read, and
        the input is not perturbed.
    """

    means: FloatArray
    factor: FloatArray

    @classmethod
    def of(cls, states: ArrayLike, classes: ArrayLike) -> Mahalanobis:
        """Learn from ordinary rows.

        Args:
            states: [m, D], finite.
            classes: Class of each row, [m]; classes without rows have no mean.

        Raises:
            ValueError: The states are not finite, or do not vary within their classes.
        """
        rows = _matrix(states)
        _, places = np.unique(np.asarray(classes), return_inverse=True)
        if len(places) != len(rows):
            raise ValueError(f"Expected one class a state, got {len(places)} and {len(rows)}.")
        counts = np.bincount(places).astype(np.float64)
        sums = np.zeros((len(counts), rows.shape[1]))
        np.add.at(sums, places, rows)
        means = sums / counts[:, None]
        try:
            factor = scipy.linalg.cholesky(shrunk_covariance(rows - means[places]), lower=True)
        except np.linalg.LinAlgError as error:
            raise ValueError("the states do not vary within their classes") from error
        return cls(means, np.asarray(factor))

    def score(self, states: ArrayLike) -> FloatArray:
        """Return the squared distance of each state [n, D] to its nearest class, [n]."""
        rows = _matrix(states)
        white = scipy.linalg.solve_triangular(self.factor, rows.T, lower=True).T
        centres = scipy.linalg.solve_triangular(self.factor, self.means.T, lower=True).T
        distances = [((white - centre) ** 2).sum(axis=1) for centre in centres]
        return np.asarray(np.stack(distances).min(axis=0))


@dataclass(frozen=True)
class Neighbours:
    """The distance of a state to the k-th nearest of the ordinary states, all of length 1.

    Args:
        states: Ordinary states of length 1, [m, D].
        k: Which neighbour, in 1..m.

    Example:
        >>> Neighbours.of([[1.0, 0.0], [0.0, 3.0]], k=2).score([[5.0, 0.0]]).round(4).tolist()
        [1.4142]

    References:
        Sun et al., "Out-of-Distribution Detection with Deep Nearest Neighbors", ICML 2022, Eq. 3.
    """

    states: FloatArray
    k: int

    @classmethod
    def of(cls, states: ArrayLike, *, k: int = 10) -> Neighbours:
        """Learn from ordinary rows.

        Args:
            states: [m, D], finite.
            k: Which neighbour; the paper's 50 belongs to a million rows.

        Raises:
            ValueError: There are fewer than k rows, or the states are not finite.
        """
        rows = _matrix(states)
        if not 1 <= k <= len(rows):
            raise ValueError(f"there are {len(rows)} rows, and neighbour number {k} is asked for")
        return cls(_of_length_one(rows), k)

    def score(self, states: ArrayLike) -> FloatArray:
        """Return the distance of each state [n, D] to its k-th neighbour, [n], in [0, 2]."""
        rows = _of_length_one(_matrix(states))
        size = max(1, _BLOCK // len(self.states))
        found = [
            np.partition(rows[start : start + size] @ self.states.T, -self.k, axis=1)[:, -self.k]
            for start in range(0, len(rows), size)
        ]
        # |a - b|^2 = 2 - 2 a.b; rounding may leave a cosine above 1.
        cosine = np.concatenate(found) if found else np.zeros(0)
        return np.sqrt(np.maximum(2.0 - 2.0 * cosine, 0.0))


def _of_length_one(rows: FloatArray) -> FloatArray:
    """Divide rows by their length; a row of zeros stays, and is as far from all."""
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(rows / np.where(lengths > 0, lengths, 1.0))


def _matrix(values: ArrayLike) -> FloatArray:
    """Return finite float64 [rows, D]."""
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 2 or not array.shape[1] or not len(array):
        raise ValueError(f"Expected states [rows, D], got shape {list(array.shape)}.")
    if not bool(np.isfinite(array).all()):
        raise ValueError("a state is not finite")
    return array


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
    """Share of ordinary rows flagged at the highest threshold that flags 95% of the anomalies.

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
