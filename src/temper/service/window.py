"""Gather answered texts until they are enough to say whether the traffic has shifted."""

from __future__ import annotations

import numpy as np

from temper.calibration.answers import Shift
from temper.calibration.classifier import Classifier
from temper.evaluation.predictor import Prediction, joined
from temper.functional.resampling import FloatArray


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
        self._parts: list[tuple[Prediction, FloatArray]] = []

    def add(self, own: Prediction, states: FloatArray) -> Shift | None:
        """Add texts.

        Args:
            own: The model's own answers, n rows.
            states: Their states, [n, D].

        Returns:
            What the last texts say, where they fill a window; a new one begins then.
        """
        self._parts.append((own, states))
        count = sum(len(part) for part, _ in self._parts)
        if count < self._rows:
            return None
        parts, self._parts = self._parts, []
        last = np.arange(count - self._rows, count)
        whole = joined(range(count), [part for part, _ in parts])
        return self._classifier.shift(
            whole.take(last), np.concatenate([seen for _, seen in parts])[last]
        )
