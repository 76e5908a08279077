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
class Ordinary:
    """In-distribution rows to fit and compare OOD detectors on; none of them sets thresholds.

    Args:
        answers: The uncalibrated predictions, n rows.
        states: Their hidden states, [n, L, D]; D is 0 if they cannot be read.
        taught: Training rows' states to fit `Mahalanobis` on, [m, L, D]; None uses ``states``.
    """

    answers: Prediction
    states: States
    taught: States | None = None


def choose_detector(
    made: Calibration,
    ordinary: Ordinary,
    anomalies: Mapping[str, tuple[Prediction, States]],
) -> tuple[Detector, dict[str, dict[str, float]]]:
    """Return the OOD detector with the best mean AUROC, and detector -> OOD set -> AUROC.

    If ``Mahalanobis`` has no separate training rows, it is scored by two-fold cross-fitting.
    Without OOD sets, the choice is Mahalanobis distance if states can be read, else energy.
    """
    known: tuple[DetectorName, ...] = get_args(DetectorName)
    classes = one_class(ordinary.answers)
    names = [name for name in known if (ordinary.states.shape[2] if name == OF_STATES else classes)]
    if not names:
        raise ValueError(
            "it does not predict one class per text, and its hidden states cannot be read"
        )
    halves = [np.arange(len(ordinary.states)) % 2 == half for half in (0, 1)]

    @cache
    def fitted(name: DetectorName, left_out: int | None = None) -> Detector:
        if name != OF_STATES:
            return Detector(name)
        if ordinary.taught is not None:
            return Detector(name, Mahalanobis.of(ordinary.taught))
        rows = slice(None) if left_out is None else ~halves[left_out]
        return Detector(name, Mahalanobis.of(ordinary.states[rows]))

    scores: dict[str, dict[str, float]] = {}
    for name in names if anomalies else ():
        result = [
            # Fitted once if training rows are known.
            _aurocs(
                made,
                fitted(name, None if ordinary.taught is not None else half),
                ordinary,
                np.flatnonzero(rows),
                anomalies,
            )
            for half, rows in enumerate(halves)
        ]
        scores[name] = {each: float(np.mean([half[each] for half in result])) for each in anomalies}
    best = max(names, key=lambda name: sum(scores.get(name, {}).values()))
    return fitted(best), scores


def _aurocs(
    made: Calibration,
    judge: Detector,
    ordinary: Ordinary,
    rows: IntegerArray,
    anomalies: Mapping[str, tuple[Prediction, States]],
) -> dict[str, float]:
    answers = ordinary.answers.take(rows)
    ours = judge.score(answers, made.applied(answers), ordinary.states[rows])
    result = {}
    for each, (given, states) in anomalies.items():
        theirs = judge.score(given, made.applied(given), states)
        flags = np.repeat([0.0, 1.0], [len(ours), len(theirs)])
        result[each] = float(auroc(flags, np.concatenate([ours, theirs])))
    return result
