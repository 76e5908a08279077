"""Choose the OOD detector of a calibration, and fit it on in-distribution rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from temper.calibration.calibration import Calibration, Detector, DetectorName, one_class
from temper.evaluation.perspectives.anomaly import OF_STATES
from temper.evaluation.prediction import Prediction
from temper.functional.detectors import Mahalanobis, auroc
from temper.functional.resampling import IntegerArray

States = NDArray[np.float32]


@dataclass(frozen=True)
class InDistribution:
    """In-distribution rows to fit and compare OOD detectors on; none of them sets thresholds.

    Args:
        predictions: The uncalibrated predictions, n rows.
        states: Their hidden states, [n, L, D]; D is 0 if they cannot be read.
        training: Training rows' states to fit `Mahalanobis` on, [m, L, D]; None uses ``states``.
    """

    predictions: Prediction
    states: States
    training: States | None = None


def choose_detector(
    made: Calibration,
    in_distribution: InDistribution,
    anomalies: Mapping[str, tuple[Prediction, States]],
) -> tuple[Detector, dict[str, dict[str, float]]]:
    """Return the OOD detector with the best mean AUROC, and detector -> OOD set -> AUROC.

    If ``Mahalanobis`` has no separate training rows, it is scored by two-fold cross-fitting.
    Without OOD sets, the choice is Mahalanobis distance if states can be read, else energy.
    """
    known: tuple[DetectorName, ...] = get_args(DetectorName)
    classes = one_class(in_distribution.predictions)
    names = [
        name
        for name in known
        if (in_distribution.states.shape[2] if name == OF_STATES else classes)
    ]
    if not names:
        raise ValueError(
            "it does not predict one class per text, and its hidden states cannot be read"
        )
    halves = [np.arange(len(in_distribution.states)) % 2 == half for half in (0, 1)]

    @cache
    def fitted(name: DetectorName, left_out: int | None = None) -> Detector:
        if name != OF_STATES:
            return Detector(name)
        if in_distribution.training is not None:
            return Detector(name, Mahalanobis.of(in_distribution.training))
        rows = slice(None) if left_out is None else ~halves[left_out]
        return Detector(name, Mahalanobis.of(in_distribution.states[rows]))

    scores: dict[str, dict[str, float]] = {}
    for name in names if anomalies else ():
        result = [
            # Fitted once if training rows are known.
            _aurocs(
                made,
                fitted(name, None if in_distribution.training is not None else half),
                in_distribution,
                np.flatnonzero(rows),
                anomalies,
            )
            for half, rows in enumerate(halves)
        ]
        scores[name] = {
            anomaly: float(np.mean([half[anomaly] for half in result])) for anomaly in anomalies
        }
    best = max(names, key=lambda name: sum(scores.get(name, {}).values()))
    return fitted(best), scores


def _aurocs(
    made: Calibration,
    judge: Detector,
    in_distribution: InDistribution,
    rows: IntegerArray,
    anomalies: Mapping[str, tuple[Prediction, States]],
) -> dict[str, float]:
    predictions = in_distribution.predictions.take(rows)
    ours = judge.score(predictions, made.applied(predictions), in_distribution.states[rows])
    result = {}
    for name, (given, states) in anomalies.items():
        theirs = judge.score(given, made.applied(given), states)
        flags = np.repeat([0.0, 1.0], [len(ours), len(theirs)])
        result[name] = float(auroc(flags, np.concatenate([ours, theirs])))
    return result
