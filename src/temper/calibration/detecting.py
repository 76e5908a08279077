"""Choose the OOD detector of a calibration, and fit it on in-distribution rows."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from temper.calibration.calibration import Calibration, Detector, DetectorName, one_class
from temper.evaluation.perspectives.anomaly import OF_STATES
from temper.evaluation.prediction import Prediction
from temper.functional.detectors import Mahalanobis, auroc

States = NDArray[np.float32]


def choose_detector(
    calibration: Calibration,
    predictions: Prediction,
    states: States,
    training: States | None,
    anomalies: Mapping[str, tuple[Prediction, States]],
) -> tuple[Detector, dict[str, dict[str, float]]]:
    """Return the OOD detector with the best mean AUROC, and detector -> OOD set -> AUROC.

    If ``Mahalanobis`` has no separate training rows, it is scored by two-fold cross-fitting.
    Without OOD sets, the choice is Mahalanobis distance if states can be read, else energy.

    Args:
        calibration: The calibration so far.
        predictions: The uncalibrated predictions of n in-distribution rows that set no threshold.
        states: Their hidden states, [n, L, D]; D is 0 if they cannot be read.
        training: Training rows' states to fit `Mahalanobis` on, [m, L, D]; None uses ``states``.
        anomalies: OOD set -> uncalibrated predictions and states of its rows.
    """
    known: tuple[DetectorName, ...] = get_args(DetectorName)
    readable = {name: one_class(predictions) for name in known} | {OF_STATES: states.shape[2] > 0}
    names = [name for name in known if readable[name]]
    if not names:
        raise ValueError(
            "it does not predict one class per text, and its hidden states cannot be read"
        )
    halves = [np.arange(len(states)) % 2 == half for half in (0, 1)]

    @cache
    def fitted(name: DetectorName, left_out: int | None = None) -> Detector:
        if name != OF_STATES:
            return Detector(name)
        if training is not None:
            return Detector(name, Mahalanobis.of(training))
        rows = slice(None) if left_out is None else ~halves[left_out]
        return Detector(name, Mahalanobis.of(states[rows]))

    scores: dict[str, dict[str, float]] = {}
    for name in names if anomalies else ():
        areas: dict[str, list[float]] = {anomaly: [] for anomaly in anomalies}
        for half, rows in enumerate(halves):
            # Fitted once if training rows are known.
            judge = fitted(name, None if training is not None else half)
            kept = predictions.take(np.flatnonzero(rows))
            ours = judge.score(kept, calibration.applied(kept), states[rows])
            for anomaly, (given, seen) in anomalies.items():
                theirs = judge.score(given, calibration.applied(given), seen)
                flags = np.repeat([0.0, 1.0], [len(ours), len(theirs)])
                areas[anomaly].append(float(auroc(flags, np.concatenate([ours, theirs]))))
        scores[name] = {anomaly: float(np.mean(values)) for anomaly, values in areas.items()}
    best = max(names, key=lambda name: sum(scores.get(name, {}).values()))
    return fitted(best), scores
