"""The calibration of a model: what was fitted on held-out rows, and how to apply it.

Every threshold is a quantile over held-out rows on which nothing else was fitted. Their predictions
are stored, so that users can request any coverage. Letters: n held-out rows, N rows to predict, C
classes, L layers (or labels), D hidden size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from temper.calibration.settings import OpenFraction, Within
from temper.errors import SettingError
from temper.evaluation.prediction import Prediction
from temper.functional import detectors
from temper.functional.calibration import scaled as scaled_logits
from temper.functional.conformal import (
    BooleanArray,
    at_labels,
    conformal_quantile,
    conformal_quantiles,
    lac_scores,
    prediction_sets,
    risk_threshold,
)
from temper.functional.detectors import Mahalanobis
from temper.functional.resampling import FloatArray, IntegerArray
from temper.functional.selective import AcceptanceThreshold, shown_risks
from temper.lazy import scipy
from temper.types import Windows

FAILURE = 0.1
"""Probability, over draws of the held-out rows, that the error rate exceeds ``max_risk``."""
REFERENCE = 200
"""Maximum number of held-out rows in a shift test, whose cost is quadratic in them."""
STARTS = 4
"""Number of entries of ``confidences`` at which fixed-sequence testing starts."""
DetectorName = Literal["mahalanobis", "energy", "max_softmax"]


@dataclass(frozen=True)
class SetRule:
    """How prediction sets, or intervals of a regression, are made.

    Args:
        by: Whether the coverage holds over ``all`` rows, or within each ``class``.
        coverage: Coverages for which there are enough held-out rows; the first is the default.
    """

    by: Within
    coverage: Annotated[tuple[OpenFraction, ...], Field(min_length=1)]


@dataclass(frozen=True)
class HeldOut:
    """A model's outputs for the held-out rows that set thresholds and are not used for fitting.

    Args:
        prediction: The uncalibrated predictions, n rows.
        labels: Class indices or targets, [n]; for several labels, 1 if a label applies, else 0,
            [n, L]; for tags, the tag indices of all words, [W].
        anomaly: OOD score of each row, [n].
        repeats: Whether an earlier row has the same text, [n]; None if all texts differ.
    """

    prediction: Prediction
    labels: FloatArray
    anomaly: FloatArray
    repeats: BooleanArray | None = None

    @property
    def counted(self) -> list[IntegerArray]:
        """Row indices to compute thresholds on: all rows and, if texts repeat, each text once.

        Use the more conservative of the two thresholds. It is valid whether or not new texts
        repeat.
        """
        every = np.arange(len(self.anomaly))
        return [every] if self.repeats is None else [every, every[~self.repeats]]


@dataclass(frozen=True)
class Detector:
    """An OOD detector; ``fitted`` is None for detectors of logits, which need no fit."""

    name: DetectorName
    fitted: Mahalanobis | None = None

    def score(
        self, uncalibrated: Prediction, scaled: Prediction, states: NDArray[Any]
    ) -> FloatArray:
        """Return the OOD score of each row, [n]; higher is more unusual.

        ``scaled`` are the calibrated predictions. Only ``mahalanobis`` reads the states [n, L, D].
        """
        if self.fitted is not None:
            return self.fitted.score(states)
        if self.name == "energy":
            assert uncalibrated.logits is not None
            return detectors.energy(uncalibrated.logits)
        return detectors.max_softmax(scaled.probabilities)


@dataclass(frozen=True)
class Calibration:
    """The fitted calibration of a model.

    Args:
        max_length: Maximum number of tokens of the held-out texts; None without a limit.
        windows: How longer texts were read in windows of that length; None if they were truncated.
        temperature: Divisor of the logits, or one for each of several labels; None for a
            regression.
        held_out: The rows that set thresholds; None if only a temperature was fitted.
        rule: How sets and intervals are made; None for tags of words.
        detector: The OOD detector.
        false_alarms: Maximum fraction of in-distribution texts to flag as anomalies.
        reference: Hidden states of held-out rows for the shift test, [r, D]; None if they cannot be
            read, and predictions are compared instead.
        confidences: Candidates for the lowest confidence to accept, descending, [k]; chosen on
            rows that set no threshold. None unless each text has one class.
        thresholds: Calibrated probability above which each label, or class 1 of two, is predicted;
            None for 0.5.
    """

    max_length: int | None
    temperature: float | tuple[float, ...] | None = None
    held_out: HeldOut | None = None
    rule: SetRule | None = None
    detector: Detector | None = None
    false_alarms: float = 0.05
    reference: FloatArray | None = None
    confidences: FloatArray | None = None
    windows: Windows | None = None
    thresholds: tuple[float, ...] | None = None

    @property
    def raw_thresholds(self) -> tuple[float, ...] | None:
        """Thresholds of the uncalibrated probabilities that give the same decisions."""
        if self.thresholds is None:
            return None
        logits = np.asarray(self.temperature) * scipy.special.logit(self.thresholds)
        result = scipy.special.expit(logits)
        return tuple(result.tolist())

    @property
    def wants_states(self) -> bool:
        fitted = self.detector is not None and self.detector.fitted is not None
        return fitted or self.reference is not None

    @property
    def compared(self) -> FloatArray | None:
        """What shift tests compare with: states or predictions of r held-out rows, [r, .]."""
        if self.reference is not None or self.held_out is None:
            return self.reference
        return outputs(self.held_out.prediction)[:REFERENCE]

    def applied(self, prediction: Prediction) -> Prediction:
        """Divide logits by the temperature, and decide by the thresholds."""
        if self.temperature is None:
            return prediction
        assert prediction.logits is not None
        if prediction.applies is not None:
            divided = prediction.logits / np.asarray(self.temperature)
            scaled = Prediction.of_labels(divided, truncated=prediction.truncated)
        else:
            logits = scaled_logits(prediction.logits, self.temperature)
            scaled = replace(prediction, logits=logits, probabilities=np.exp(logits))
        return scaled.decided(self.thresholds)

    def in_sets(self, scaled: Prediction, *, coverage: float) -> BooleanArray:
        """Return which classes are in each row's prediction set, [N, C].

        ``coverage`` is the probability that a set contains the label; for several labels, the
        expected fraction of a text's labels in its set. Raises a `SettingError` if the held-out
        rows are too few.
        """
        assert self.rule is not None
        return prediction_sets(lac_scores(scaled.probabilities), self.threshold(coverage))

    def intervals(self, values: FloatArray, *, coverage: float) -> tuple[FloatArray, FloatArray]:
        """Return the lower and upper ends of prediction intervals around values, [N] each."""
        threshold = self.threshold(coverage)
        return values - threshold, values + threshold

    def threshold(self, coverage: float) -> FloatArray:
        """Return the conformal threshold at a coverage: a number [], or one per class [C].

        Raises:
            SettingError: The held-out rows are too few for the coverage.
        """
        if coverage not in self._thresholds:
            self._thresholds[coverage] = self._threshold(coverage)
        return self._thresholds[coverage]

    @cached_property
    def _thresholds(self) -> dict[float, FloatArray]:
        return {}

    def _threshold(self, coverage: float) -> FloatArray:
        assert self.rule is not None
        assert self.held_out is not None
        predictions, labels = self.held_out_predictions, self.held_out.labels
        result: list[Any] = []
        try:
            for rows in self.held_out.counted:
                if predictions.applies is not None and self.rule.by == "all":
                    scores = lac_scores(predictions.probabilities[rows])
                    result.append(risk_threshold(scores, labels[rows], coverage=coverage))
                    continue
                scores, classes = _scores_at_labels(predictions.take(rows), labels[rows])
                if self.rule.by == "class":
                    count = predictions.probabilities.shape[1]
                    result.append(conformal_quantiles(scores, classes, count, coverage=coverage))
                else:
                    result.append(conformal_quantile(scores, coverage=coverage))
            return np.asarray(np.max(result, axis=0))
        except ValueError as error:
            raise SettingError(f"{error} Calibrate on more rows, or lower the coverage.") from error

    @cached_property
    def held_out_predictions(self) -> Prediction:
        """The calibrated predictions for the held-out rows."""
        assert self.held_out is not None
        return self.applied(self.held_out.prediction)

    @cached_property
    def alarm(self) -> float:
        """OOD score above which a row is flagged as an anomaly.

        An in-distribution row exceeds it with probability at most ``false_alarms``.
        """
        assert self.held_out is not None
        coverage, scores = 1.0 - self.false_alarms, self.held_out.anomaly
        return max(
            conformal_quantile(scores[rows], coverage=coverage) for rows in self.held_out.counted
        )

    @cached_property
    def shown_risks(self) -> FloatArray:
        """Upper bounds on the error rate of predictions at or above each of ``confidences``, [k].

        They are those of Learn-then-Test; see `temper.functional.selective.shown_risks`.
        """
        assert self.held_out is not None
        assert self.confidences is not None
        scaled = self.held_out_predictions
        sure, wrong = scaled.probabilities.max(axis=1), scaled.prediction != self.held_out.labels
        result = [
            shown_risks(
                sure[rows],
                wrong[rows],
                failure=FAILURE,
                thresholds=self.confidences.tolist(),
                starts=min(STARTS, len(self.confidences)),
            )
            for rows in self.held_out.counted
        ]
        return np.asarray(np.max(result, axis=0))

    def confident(self, risk: float) -> AcceptanceThreshold:
        """Return the lowest confidence at which the error rate of predictions is at most ``risk``.

        Raises:
            SettingError: The held-out rows do not show this for any confidence.
        """
        assert self.held_out is not None
        assert self.confidences is not None
        scaled = self.held_out_predictions
        wrong = scaled.prediction != self.held_out.labels
        sure = scaled.probabilities.max(axis=1)
        kept = np.flatnonzero(self.shown_risks <= risk)
        if not len(kept):
            least = math.ceil(1000 * self.shown_risks.min()) / 1000
            raise SettingError(
                f"`max_risk` {risk:g} cannot be guaranteed with probability {1 - FAILURE:.0%}: the "
                f"model is wrong on {int(wrong.sum())} of the {len(sure)} held-out rows, which "
                f"show a risk of {least:g} at best. Raise `max_risk` (--max-risk) to {least:g}, or "
                "calibrate on more rows."
            )
        lowest = float(self.confidences[kept[-1]])
        accepted = sure >= lowest
        return AcceptanceThreshold(
            lowest, int(accepted.sum()), int(wrong[accepted].sum()), len(sure)
        )


def one_class(predictions: Prediction) -> bool:
    """Return whether each text has one class, instead of a value, several labels or tags."""
    return not predictions.regression and predictions.applies is None and predictions.words is None


def _scores_at_labels(predictions: Prediction, labels: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the conformal score of each row's label or target, and that label, [n] each.

    Of labels [n, L], each one that applies has a separate score.
    """
    if predictions.regression:
        # The absolute residual (Lei et al., JASA 2018).
        return np.abs(labels - predictions.prediction), labels
    scores = lac_scores(predictions.probabilities)
    if predictions.applies is not None:
        rows, which = np.nonzero(labels)
        return scores[rows, which], which.astype(np.float64)
    return at_labels(scores, labels), labels


def middle(states: NDArray[Any]) -> NDArray[Any]:
    """Return the middle layer of states [n, L, D], as [n, D], for shift tests.

    Topic and style are visible there; the last layers contain little except the class.
    """
    return states[:, states.shape[1] // 2]


def outputs(predictions: Prediction) -> FloatArray:
    """Return logits [n, C], or values [n, 1]; a shift test compares them without hidden states."""
    return predictions.prediction[:, None] if predictions.logits is None else predictions.logits
