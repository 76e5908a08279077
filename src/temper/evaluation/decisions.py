"""Decisions at thresholds other than 0.5, for several labels or for class 1 of two."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from temper.evaluation.predictor import Prediction
from temper.functional.conformal import BooleanArray
from temper.functional.resampling import FloatArray


def label_probabilities(prediction: Prediction) -> FloatArray:
    """Return the probability of each of several labels, or of class 1 of two, [n, L].

    Args:
        prediction: n answers.
    """
    several = prediction.applies is not None
    return prediction.probabilities if several else prediction.probabilities[:, 1:]


def label_decisions(prediction: Prediction) -> BooleanArray:
    """Return whether each of several labels, or class 1 of two, is predicted, [n, L].

    Args:
        prediction: n answers.
    """
    if prediction.applies is not None:
        return prediction.applies
    return np.asarray(prediction.prediction[:, np.newaxis] == 1)


def label_matrix(labels: FloatArray) -> FloatArray:
    """Return which of several labels, or whether class 1 of two, applies, [n, L].

    Args:
        labels: 0 or 1, [n] or [n, L].
    """
    return labels if labels.ndim == 2 else labels[:, np.newaxis]


def decided(prediction: Prediction, thresholds: tuple[float, ...] | None) -> Prediction:
    """Return the same predictions with decisions at other thresholds.

    Args:
        prediction: n answers.
        thresholds: Probability above which each label, or class 1 of two, is predicted, L of them;
            None changes nothing.

    Example:
        >>> answers = Prediction.of_probabilities([[0.6, 0.4], [0.8, 0.2]])
        >>> decided(answers, (0.3,)).prediction.tolist()
        [1.0, 0.0]
    """
    if thresholds is None:
        return prediction
    above = label_probabilities(prediction) > np.asarray(thresholds)
    if prediction.applies is not None:
        return replace(prediction, applies=above)
    return replace(prediction, prediction=above[:, 0].astype(np.float64))
