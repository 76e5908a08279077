"""Choose what finds anomalies among a model's texts, and let it learn from ordinary ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import get_args

import numpy as np

from temper.calibration.calibration import Calibration, Detector, DetectorName
from temper.evaluation.perspectives.anomaly import OF_STATES
from temper.evaluation.predictor import Prediction
from temper.functional.detectors import Mahalanobis, Neighbours, auroc
from temper.functional.resampling import FloatArray, IntegerArray

NEIGHBOURS = 10


@dataclass(frozen=True)
class Ordinary:
    """Rows that no threshold is taken from.

    Args:
        answers: The model's own answers, n rows.
        states: Their states, [n, D]; D is 0 where none are read.
        classes: Their classes, [n]; one class of a regression.
        taught: States and classes that detectors learn from instead of these, [m, D] and [m].
    """

    answers: Prediction
    states: FloatArray
    classes: FloatArray
    taught: tuple[FloatArray, FloatArray] | None = None


def choose_detector(
    made: Calibration,
    ordinary: Ordinary,
    anomalies: Mapping[str, tuple[Prediction, FloatArray]],
) -> tuple[Detector, dict[str, dict[str, float]]]:
    """Return the detector with the best mean AUROC, and the AUROC of all by name and set.

    What learns from the ordinary rows themselves is scored on the half that it has not learnt from.
    Without anomalies it is the Mahalanobis distance, where states are read, else the energy.

    Args:
        made: The temperature that is already fitted.
        ordinary: Ordinary rows.
        anomalies: Answers and states of each set of anomalies.

    Raises:
        ValueError: No detector fits the model, or one cannot learn from the rows.
    """
    known: tuple[DetectorName, ...] = get_args(DetectorName)
    names = [
        name
        for name in known
        if (ordinary.states.shape[1] if name in OF_STATES else not ordinary.answers.regression)
    ]
    if not names:
        raise ValueError("it is a regression, and its hidden states cannot be read")
    halves = [np.arange(len(ordinary.classes)) % 2 == half for half in (0, 1)]

    @cache
    def learnt(name: DetectorName, left_out: int | None = None) -> Detector:
        """Let a detector learn, from all ordinary rows or those of the other half."""
        if ordinary.taught is not None:
            return _learnt(name, *ordinary.taught)
        rows = slice(None) if left_out is None else ~halves[left_out]
        return _learnt(name, ordinary.states[rows], ordinary.classes[rows])

    scores: dict[str, dict[str, float]] = {}
    for name in names if anomalies else ():
        found = [
            _aurocs(made, learnt(name, half), ordinary, np.flatnonzero(rows), anomalies)
            for half, rows in enumerate(halves)
        ]
        scores[name] = {each: float(np.mean([half[each] for half in found])) for each in anomalies}
    best = max(names, key=lambda name: sum(scores.get(name, {}).values()))
    return learnt(best), scores


def _aurocs(
    made: Calibration,
    judge: Detector,
    ordinary: Ordinary,
    rows: IntegerArray,
    anomalies: Mapping[str, tuple[Prediction, FloatArray]],
) -> dict[str, float]:
    """Return the AUROC of some of the ordinary rows against each set of anomalies."""
    answers = ordinary.answers.take(rows)
    ours = judge.score(answers, made.applied(answers), ordinary.states[rows])
    found = {}
    for each, (given, states) in anomalies.items():
        theirs = judge.score(given, made.applied(given), states)
        flags = np.repeat([0.0, 1.0], [len(ours), len(theirs)])
        found[each] = float(auroc(flags, np.concatenate([ours, theirs])))
    return found


def _learnt(name: DetectorName, states: FloatArray, classes: FloatArray) -> Detector:
    """Let a detector learn from ordinary rows, if it does."""
    if name == "mahalanobis":
        return Detector(name, Mahalanobis.of(states, classes))
    if name == "knn":
        return Detector(name, Neighbours.of(states, k=min(NEIGHBOURS, len(states))))
    return Detector(name)
