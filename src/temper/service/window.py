"""Gather answered texts until they are enough for the shift test and an estimate of accuracy."""

from __future__ import annotations

import numpy as np

from temper.calibration.answers import Answers, Shift, UnlabeledScores
from temper.calibration.classifier import Classifier
from temper.calibration.estimating import unlabeled_scores
from temper.evaluation.predictor import joined


class ShiftWindow:
    """Compare every ``rows`` answered texts with the held-out rows of the calibration, once.

    Windows share no text, so that each alarm is a test by itself. They mix texts of several
    clients: what is asked is whether the traffic as a whole looks like the held-out rows.

    Args:
        classifier: What answers, with held-out rows to compare with.
        rows: Texts of a window, >= 20.
    """

    def __init__(self, classifier: Classifier, rows: int) -> None:
        self._classifier, self._rows = classifier, rows
        self._parts: list[Answers] = []

    def add(self, answers: Answers) -> tuple[Shift, UnlabeledScores | None] | None:
        """Add answers of `Classifier.answers`.

        Returns:
            The shift and the estimated scores of the last texts, if they fill a window; then a new
            window begins.
        """
        self._parts.append(answers)
        count = sum(map(len, self._parts))
        if count < self._rows:
            return None
        parts, self._parts = self._parts, []
        last = np.arange(count - self._rows, count)
        own = joined(range(count), [part.own for part in parts if part.own is not None]).take(last)
        states = [part.states for part in parts if part.states is not None]
        shift = self._classifier.shift(own, np.concatenate(states)[last])
        assert shift is not None
        anomaly = np.array([answer.anomaly for part in parts for answer in part])[last]
        return shift, unlabeled_scores(self._classifier.calibration, own, anomaly, shift)
