"""Decide at thresholds other than 0.5, for several labels or for class 1 of two."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from temper.evaluation.prediction import Prediction
from temper.functional.conformal import BooleanArray
from temper.functional.resampling import FloatArray


def label_probabilities(prediction: Prediction) -> FloatArray:
    """Return the probability of each of several labels, or of class 1 of two, [n, L]."""
    several = prediction.applies is not None
    return prediction.probabilities if several else prediction.probabilities[:, 1:]


def label_decisions(prediction: Prediction) -> BooleanArray:
    """Return whether each of several labels, or class 1 of two, is predicted, [n, L]."""
    if prediction.applies is not None:
        return prediction.applies
    return np.asarray(prediction.prediction[:, np.newaxis] == 1)


def label_matrix(labels: FloatArray) -> FloatArray:
    """Return 1 for each of several labels, or class 1 of two, that applies, else 0, [n, L]."""
    return labels if labels.ndim == 2 else labels[:, np.newaxis]


def decided(prediction: Prediction, thresholds: tuple[float, ...] | None) -> Prediction:
    """Predict each label, or class 1 of two, if its probability is above a threshold.

    ``thresholds`` has one probability per label, or one for class 1; None changes nothing.
    """
    if thresholds is None:
        return prediction
    above = label_probabilities(prediction) > np.asarray(thresholds)
    if prediction.applies is not None:
        return replace(prediction, applies=above)
    return replace(prediction, prediction=above[:, 0].astype(np.float64))
