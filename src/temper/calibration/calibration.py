"""Calibration of a model on held-out rows.

Every threshold is a quantile over rows on which nothing else was fitted.
Those answers are held, so that any coverage may be asked for. Letters: n held-out rows, N rows to
answer, C classes, L layers, D entries of a state.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from temper.calibration.settings import Within
from temper.errors import SettingError
from temper.evaluation.decisions import decided
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
from temper.functional.selective import Selection, shown_risks
from temper.lazy import scipy
from temper.types import Windows

FAILURE = 0.1
"""Probability with which the limit of ``max_risk`` may fail, over the held-out rows."""
REFERENCE = 200
"""Held-out rows that batches are compared with at most: the test costs their square."""
STARTS = 4
"""Places of ``confidences`` that the sequence of tests starts from."""
DetectorName = Literal["mahalanobis", "energy", "max_softmax"]


@dataclass(frozen=True)
class SetRule:
    """How prediction sets, or intervals of a regression, are made.

    Args:
        by: Scope of the coverage.
        coverage: Coverages that the held-out rows are known to be enough for; the first is the one
            that answers are given at where none is asked for.
    """

    by: Within
    coverage: tuple[float, ...]


@dataclass(frozen=True)
class HeldOut:
    """A model's outputs for rows that set thresholds and are not used for fitting.

    Args:
        prediction: The model's own answers, n rows.
        labels: Class indices or targets, [n]; of several labels, 1 where one applies, [n, L]; of
            tags those of all words, [W].
        anomaly: The detector's score, [n].
        repeats: Whether an earlier row has the same text, [n]; None if no row has.
    """

    prediction: Prediction
    labels: FloatArray
    anomaly: FloatArray
    repeats: BooleanArray | None = None

    @property
    def counted(self) -> list[IntegerArray]:
        """The sets of rows to compute thresholds on: all rows and, if texts repeat, each text once.

        New texts may repeat as these do, or not at all. The more conservative threshold is valid
        in both cases.
        """
        every = np.arange(len(self.anomaly))
        return [every] if self.repeats is None else [every, every[~self.repeats]]


@dataclass(frozen=True)
class Detector:
    """An OOD detector; ``fitted`` is None for one that reads logits."""

    name: DetectorName
    fitted: Mahalanobis | None = None

    def score(self, answers: Prediction, scaled: Prediction, states: NDArray[Any]) -> FloatArray:
        """Score rows, higher is stranger, [n]; only `mahalanobis` reads the states [n, L, D]."""
        if self.fitted is not None:
            return self.fitted.score(states)
        if self.name == "energy":
            assert answers.logits is not None
            return detectors.energy(answers.logits)
        return detectors.max_softmax(scaled.probabilities)


@dataclass(frozen=True)
class Calibration:
    """The calibration of a model on held-out rows.

    Args:
        max_length: Tokens that texts were cut to, None if they were not.
        windows: How longer texts were read in windows of that length; None if they were cut.
        temperature: Temperature that divides logits, one for each of several labels; None for a
            regression.
        held_out: The rows that set thresholds; None if only a temperature is kept.
        rule: How sets and intervals are made; None for tags of words.
        detector: How anomalies are found.
        false_alarms: Fraction of ordinary rows that may be flagged.
        reference: States of held-out rows that batches are compared with, [r, D]; None if the model
            shows none, and answers are compared.
        confidences: Confidences from high to low that may be needed for an answer, chosen on rows
            that set no threshold, [k]; None of a regression, several labels and tags.
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
        """The thresholds on the model's own probabilities, which give the same decisions."""
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
        """The reference of shift tests: states, or predictions, of held-out rows, [r, .]."""
        if self.reference is not None or self.held_out is None:
            return self.reference
        return outputs(self.held_out.prediction)[:REFERENCE]

    def applied(self, prediction: Prediction) -> Prediction:
        """Return predictions with calibrated probabilities and the decisions of the thresholds."""
        if self.temperature is None:
            return prediction
        assert prediction.logits is not None
        if prediction.applies is not None:
            divided = prediction.logits / np.asarray(self.temperature)
            scaled = Prediction.of_labels(divided, truncated=prediction.truncated)
        else:
            logits = scaled_logits(prediction.logits, self.temperature)
            scaled = replace(prediction, logits=logits, probabilities=np.exp(logits))
        return decided(scaled, self.thresholds)

    def in_sets(self, scaled: Prediction, *, coverage: float) -> BooleanArray:
        """Return which classes are in each row's prediction set, [N, C].

        For several labels ``coverage`` is the expected fraction of a text's labels that are in its
        set. A `SettingError` is raised if the held-out rows are too few for it.
        """
        assert self.rule is not None
        return prediction_sets(lac_scores(scaled.probabilities), self.threshold(coverage))

    def intervals(self, values: FloatArray, *, coverage: float) -> tuple[FloatArray, FloatArray]:
        """Return the ends of each predicted value's interval, [N] each; see `threshold`."""
        threshold = self.threshold(coverage)
        return values - threshold, values + threshold

    def threshold(self, coverage: float) -> FloatArray:
        """Return the conformal threshold: one number [], or one per class [C].

        Raises:
            SettingError: The held-out rows are too few for it.
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
        answers, labels = self.held_out_answers, self.held_out.labels
        result = []
        try:
            for rows in self.held_out.counted:
                if answers.applies is not None and self.rule.by == "all":
                    scores = lac_scores(answers.probabilities[rows])
                    result.append(
                        np.asarray(risk_threshold(scores, labels[rows], coverage=coverage))
                    )
                    continue
                scores, label_indices = _scores_at_labels(answers.take(rows), labels[rows])
                if self.rule.by == "class":
                    classes = answers.probabilities.shape[1]
                    result.append(
                        conformal_quantiles(scores, label_indices, classes, coverage=coverage)
                    )
                else:
                    result.append(np.asarray(conformal_quantile(scores, coverage=coverage)))
            return np.asarray(np.max(result, axis=0))
        except ValueError as error:
            raise SettingError(f"{error} Calibrate on more rows, or ask for less.") from error

    @cached_property
    def held_out_answers(self) -> Prediction:
        """The calibrated answers to the held-out rows."""
        assert self.held_out is not None
        return self.applied(self.held_out.prediction)

    @cached_property
    def alarm(self) -> float:
        """Score of anomaly above which a row is flagged.

        An ordinary row is with probability ``false_alarms`` at most.
        """
        assert self.held_out is not None
        coverage, scores = 1.0 - self.false_alarms, self.held_out.anomaly
        return max(
            conformal_quantile(scores[rows], coverage=coverage) for rows in self.held_out.counted
        )

    @cached_property
    def shown_risks(self) -> FloatArray:
        """The least risk that each of ``confidences`` is shown to keep, [k]."""
        assert self.held_out is not None
        assert self.confidences is not None
        scaled = self.held_out_answers
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

    def confident(self, risk: float) -> Selection:
        """Return the confidence from which on answers are wrong at the rate ``risk`` at most.

        Raises:
            SettingError: None is shown to be enough on the held-out rows.
        """
        assert self.held_out is not None
        assert self.confidences is not None
        scaled = self.held_out_answers
        wrong = scaled.prediction != self.held_out.labels
        sure = scaled.probabilities.max(axis=1)
        kept = np.flatnonzero(self.shown_risks <= risk)
        if not len(kept):
            least = math.ceil(1000 * self.shown_risks.min()) / 1000
            raise SettingError(
                f"No confidence is shown to keep the risk at {risk:g}, with probability "
                f"{1 - FAILURE:.0%}, by the {len(sure)} held-out rows, of which {int(wrong.sum())} "
                f"are answered wrongly; the least that is shown is {least:g}. Ask for that or "
                "more, or calibrate on more rows."
            )
        lowest = float(self.confidences[kept[-1]])
        answered = sure >= lowest
        return Selection(lowest, int(answered.sum()), int(wrong[answered].sum()), len(sure))


def one_class(answers: Prediction) -> bool:
    """Return whether each text has one class, not a number, several labels or tags of words."""
    return not answers.regression and answers.applies is None and answers.words is None


def _scores_at_labels(answers: Prediction, labels: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the conformal score of each row's label or target, and the label, [n] each.

    A row with several labels, [n, L], has one score for each label that applies.
    """
    if answers.regression:
        # The absolute residual (Lei et al., JASA 2018).
        return np.abs(labels - answers.prediction), labels
    scores = lac_scores(answers.probabilities)
    if answers.applies is not None:
        rows, which = np.nonzero(labels)
        return scores[rows, which], which.astype(np.float64)
    return at_labels(scores, labels), labels


def middle(states: NDArray[Any]) -> NDArray[Any]:
    """Return the states of the middle layer, which batches are compared by, [n, L, D] to [n, D].

    A batch of a new topic or style differs there; the last layers keep little but the class.
    """
    return states[:, states.shape[1] // 2]


def outputs(answers: Prediction) -> FloatArray:
    """Return the inputs of a shift test without states: logits, or values, [n, .]."""
    return answers.prediction[:, None] if answers.logits is None else answers.logits
