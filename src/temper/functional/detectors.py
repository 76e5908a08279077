"""Scores of OOD detectors (higher is more anomalous), and metrics of detection.

`max_softmax`, `max_logit` and `energy` read a text's logits; `Mahalanobis` compares its hidden
states with those of in-distribution rows. Letters: n rows, m in-distribution rows, C classes, L
layers, D dimensions of a state. Everything is computed in float64.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from temper.functional.resampling import Counts, FloatArray, divide, pair, row_counts
from temper.lazy import scipy


def max_softmax(probabilities: ArrayLike) -> FloatArray:
    """Return ``-max_k p_k`` of each row of probabilities [n, C], in [-1, -1/C].

    References:
        Hendrycks and Gimpel, "A Baseline for Detecting Misclassified and Out-of-Distribution
        Examples in Neural Networks", ICLR 2017.
    """
    return np.asarray(-np.asarray(probabilities, dtype=np.float64).max(axis=1))


def max_logit(logits: ArrayLike) -> FloatArray:
    """Return ``-max_k z_k`` of each row of logits [n, C].

    References:
        Hendrycks et al., "Scaling Out-of-Distribution Detection for Real-World Settings", ICML
        2022.
    """
    return np.asarray(-np.asarray(logits, dtype=np.float64).max(axis=1))


def energy(logits: ArrayLike) -> FloatArray:
    """Return the free energy ``-log sum_k exp z_k`` of each row of logits [n, C].

    References:
        Liu et al., "Energy-based Out-of-distribution Detection", NeurIPS 2020, Eq. 4 with T = 1.
    """
    array = np.asarray(logits, dtype=np.float64)
    return np.asarray(-scipy.special.logsumexp(array, axis=1))


def shrunk_covariance(residuals: ArrayLike) -> FloatArray:
    """Estimate a covariance of centered rows [m, D], shrunk towards a multiple of the identity.

    ``(1 - s) S + s (tr S / D) I`` with Ledoit and Wolf's optimal s. It is invertible even with
    fewer rows than dimensions.

    References:
        Ledoit and Wolf, "A well-conditioned estimator for large-dimensional covariance matrices",
            Journal of Multivariate Analysis 88, 2004, Section 3.2.
    """
    rows = _finite(residuals, "rows, D")
    m, D = rows.shape
    covariance = rows.T @ rows / m
    size = float(np.trace(covariance)) / D
    spread = float((covariance**2).sum()) / D - size**2
    noise = (float(((rows**2).sum(axis=1) ** 2).mean()) - float((covariance**2).sum())) / (m * D)
    fraction = 1.0 if spread <= 0 else min(1.0, max(0.0, noise) / spread)
    return np.asarray((1.0 - fraction) * covariance + fraction * size * np.eye(D))


@dataclass(frozen=True)
class Mahalanobis:
    """Mahalanobis distance of hidden states from in-distribution rows, averaged over all layers.

    The score is ``mean_l (d_l(x) - m_l) / s_l`` with ``d_l(x) = (h_l - mu_l)^T Sigma_l^-1 (h_l -
    mu_l)``. ``m_l`` and ``s_l`` are the mean and standard deviation of d_l over other
    in-distribution rows than those that mu_l and Sigma_l were computed from.

    Args:
        means: Mean state of each layer, [L, D].
        whitening: Inverse of the lower Cholesky factor of each covariance, [L, D, D].
        centers: ``m_l``, [L].
        scales: ``s_l`` > 0, [L].

    Example:
        >>> rows = np.random.default_rng(0).normal(size=(400, 3, 2))
        >>> scores = Mahalanobis.of(rows[:200]).score([rows[200], rows[201] + 9.0])
        >>> bool(scores[0] < 2 < 20 < scores[1])
        True

    References:
        Lee et al., "A Simple Unified Framework for Detecting Out-of-Distribution Samples and
        Adversarial Attacks", NeurIPS 2018, Eq. 2 (distance); Darrin et al., "Unsupervised
        Layer-wise Score Aggregation for Textual OOD Detection", arXiv 2302.09852 (all layers).
        Differs: one mean instead of one per class, which is as good in the middle layers; the
        covariance is shrunk (`shrunk_covariance`); the layers' scores are averaged as z-scores.
    """

    means: FloatArray
    whitening: FloatArray
    centers: FloatArray
    scales: FloatArray

    @classmethod
    def of(cls, states: ArrayLike) -> Mahalanobis:
        """Fit the detector on in-distribution states [m, L, D], m >= 4.

        Raises:
            ValueError: There are fewer than 4 rows, a state is not finite, or the states of a
                layer do not vary.
        """
        rows = _finite(states, "rows, L, D")
        if len(rows) < 4:
            raise ValueError(f"at least 4 in-distribution rows are needed, got {len(rows)}")
        # Each half of the rows is scored by the other half's distances, for `m_l` and `s_l`.
        half = np.arange(len(rows)) % 2 == 0
        fitted, centers, scales = [], [], []
        for layer in rows.transpose(1, 0, 2):
            held_out = np.concatenate(
                [_distances(layer[~part], *_whitening(layer[part])) for part in (half, ~half)]
            )
            fitted.append(_whitening(layer))
            centers.append(held_out.mean())
            scales.append(held_out.std())
        if min(scales) <= 0:
            raise ValueError("the states are the same for all rows")
        means, whitening = (np.stack(parts) for parts in zip(*fitted, strict=True))
        return cls(means, whitening, np.asarray(centers), np.asarray(scales))

    def score(self, states: ArrayLike) -> FloatArray:
        """Return the OOD score of each row: states [n, L, D] to [n]."""
        layers = _finite(states, "rows, L, D").transpose(1, 0, 2)
        distances = [
            _distances(*given) for given in zip(layers, self.means, self.whitening, strict=True)
        ]
        z_scores = (np.stack(distances, axis=1) - self.centers) / self.scales
        return np.asarray(z_scores.mean(axis=1))


def _whitening(rows: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the mean [D] of one layer's rows [m, D] and their whitening matrix [D, D]."""
    mean = rows.mean(axis=0)
    try:
        factor = scipy.linalg.cholesky(shrunk_covariance(rows - mean), lower=True)
    except np.linalg.LinAlgError as error:
        raise ValueError("the states are the same for all rows") from error
    white = scipy.linalg.solve_triangular(factor, np.eye(len(mean)), lower=True)
    # The file stores single precision. Round now, so that scores do not change after loading.
    return mean, np.asarray(white.astype(np.float32), dtype=np.float64)


def _distances(rows: FloatArray, mean: FloatArray, whitening: FloatArray) -> FloatArray:
    """Return the squared Mahalanobis distance of each row [n, D], [n]."""
    return np.asarray((((rows - mean) @ whitening.T) ** 2).sum(axis=1))


def _finite(values: ArrayLike, axes: str) -> FloatArray:
    """Return states as float64; raise unless finite, not empty and with the axes ``axes``."""
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != len(axes.split(",")) or not array.size:
        raise ValueError(f"Expected states [{axes}], got shape {list(array.shape)}.")
    if not bool(np.isfinite(array).all()):
        raise ValueError("a state is NaN or infinite")
    return array


def auroc(anomalous: ArrayLike, scores: ArrayLike, *, counts: Counts = None) -> FloatArray:
    """Area under the ROC curve with OOD rows as positives.

    It is the probability that an OOD row scores above an in-distribution row; ties count half.

    Args:
        anomalous: True for OOD rows, [n].
        scores: Anomaly score, [n]; higher means more anomalous.
        counts: How often each row is drawn, [n] or [R, n] (bootstrap); once by default.

    Returns:
        A value in [0, 1] (or [R] of them); NaN if there are no OOD or no in-distribution rows.

    Example:
        >>> float(auroc([0, 0, 1, 1], [0.1, 0.4, 0.35, 0.8]))
        0.75
    """
    hits, alarms = _threshold_sums(anomalous, scores, counts)
    steps = np.diff(alarms, axis=-1, prepend=0.0)
    before = hits - np.diff(hits, axis=-1, prepend=0.0)
    area = (steps * (before + hits) / 2).sum(axis=-1)
    return divide(area, hits[..., -1] * alarms[..., -1])


def aupr(anomalous: ArrayLike, scores: ArrayLike, *, counts: Counts = None) -> FloatArray:
    """Average precision with OOD rows as positives.

    ``sum_t (recall_t - recall_{t-1}) precision_t`` over the distinct thresholds, as scikit-learn's
    ``average_precision_score``.

    Arguments and result are those of `auroc`.
    """
    hits, alarms = _threshold_sums(anomalous, scores, counts)
    flagged = hits + alarms
    precision = hits / np.where(flagged > 0, flagged, 1)
    area = (np.diff(hits, axis=-1, prepend=0.0) * precision).sum(axis=-1)
    value = divide(area, hits[..., -1])
    return np.where(alarms[..., -1] > 0, value, np.nan)[()]


def fpr95(anomalous: ArrayLike, scores: ArrayLike, *, counts: Counts = None) -> FloatArray:
    """False positive rate at the highest threshold that flags 95% of the OOD rows.

    Arguments and result are those of `auroc`.
    """
    hits, alarms = _threshold_sums(anomalous, scores, counts)
    total = hits[..., -1:]
    # Counts are whole numbers, so the tolerance only corrects the rounding of 0.95 * total.
    first = (hits >= 0.95 * total - 1e-9 * total).argmax(axis=-1)
    flagged = np.take_along_axis(alarms, first[..., None], axis=-1)[..., 0]
    value = divide(flagged, alarms[..., -1])
    return np.where(total[..., 0] > 0, value, np.nan)[()]


def _threshold_sums(
    anomalous: ArrayLike, scores: ArrayLike, counts: Counts
) -> tuple[FloatArray, FloatArray]:
    """Count the OOD and in-distribution rows that each distinct threshold flags, highest first."""
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
