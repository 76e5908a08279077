"""Counters of the service, in the format of Prometheus."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from fastapi import Response
from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)

from temper.calibration.classifier import ALARM, Classifier
from temper.calibration.estimating import unlabeled_scores
from temper.calibration.predictions import CalibratedPredictions, Shift, UnlabeledScores
from temper.evaluation.prediction import joined

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
ALARMS = (
    f"Windows with a p value of at most {ALARM:.3g}. Without a shift, at most 1% of windows alarm, "
    "for 19 in 20 sets of held-out rows."
)
ESTIMATE = (
    "Accuracy and macro-F1 of the last window, estimated without labels, with the 90% interval; "
    "NaN if the texts differ from the held-out rows."
)
METRICS: tuple[tuple[str, Any, str, Sequence[str]], ...] = (
    ("request_seconds", partial(Histogram, buckets=SECONDS), "Seconds of a request.", ["path"]),
    ("requests", Counter, "Requests by path and status.", ["path", "status"]),
    ("rows", Counter, "Predicted texts.", []),
    ("batch_rows", partial(Histogram, buckets=ROWS), "Texts per batch of predictions.", []),
    ("abstentions", Counter, "Texts abstained from, by rule; several may apply.", ["rule"]),
    ("anomalies", Counter, "Texts that were flagged as OOD.", []),
    ("shift_tests", Counter, "Windows of texts that were compared with held-out rows.", []),
    ("shift_alarms", Counter, ALARMS, []),
    ("shift_p", Gauge, "The last window's p value.", []),
    ("estimate", Gauge, ESTIMATE, ["score", "bound"]),
    ("waiting_rows", Gauge, "Texts that wait.", []),
)
"""Name, kind, description and labels of each metric."""


class Metrics:
    """Prometheus metrics of one service; ``waiting`` returns the number of rows in the queue."""

    def __init__(self, waiting: Callable[[], int]) -> None:
        self._registry = CollectorRegistry()
        self._metrics: dict[str, Any] = {
            name: kind(f"temper_{name}", description, labels, registry=self._registry)
            for name, kind, description, labels in METRICS
        }
        self._metrics["shift_p"].set(math.nan)
        self._estimated(None)
        self._metrics["waiting_rows"].set_function(waiting)

    def request(self, path: str, status: int, seconds: float) -> None:
        """Count a request; the path of an unknown address is ``other``."""
        self._metrics["request_seconds"].labels(path).observe(seconds)
        self._metrics["requests"].labels(path, str(status)).inc()

    def predicted(self, predictions: CalibratedPredictions) -> None:
        """Count the predicted texts of one pass, and those that were abstained from or flagged."""
        self._metrics["rows"].inc(len(predictions))
        self._metrics["batch_rows"].observe(len(predictions))
        for rule, count in predictions.abstained.items():
            self._metrics["abstentions"].labels(rule).inc(count)
        self._metrics["anomalies"].inc(
            sum(prediction.anomalous or False for prediction in predictions)
        )

    def compared(self, shift: Shift, scores: UnlabeledScores | None) -> None:
        """Count a comparison of a window of texts with the held-out rows."""
        self._estimated(scores)
        self._metrics["shift_tests"].inc()
        self._metrics["shift_alarms"].inc(shift.shifted)
        self._metrics["shift_p"].set(shift.p)

    def _estimated(self, scores: UnlabeledScores | None) -> None:
        for name in ("accuracy", "macro_f1"):
            estimate = getattr(scores, name, None)
            for bound in ("value", "low", "high"):
                gauge = self._metrics["estimate"].labels(name, bound)
                gauge.set(getattr(estimate, bound, math.nan))

    async def response(self) -> Response:
        return Response(generate_latest(self._registry), media_type=CONTENT_TYPE_LATEST)


class ShiftWindow:
    """Test every ``rows`` (>= 20) texts for a distribution shift from the held-out rows.

    Windows do not overlap, but all are compared with the same held-out rows; the level `ALARM`
    allows for that. A window mixes the texts of all clients: the test is whether the traffic as a
    whole looks like the held-out rows.
    """

    def __init__(self, classifier: Classifier, rows: int) -> None:
        self._classifier, self._rows = classifier, rows
        self._parts: list[CalibratedPredictions] = []

    def add(self, batch: CalibratedPredictions) -> tuple[Shift, UnlabeledScores | None] | None:
        """Add predictions; if a window is full, return its shift test and estimated scores."""
        self._parts.append(batch)
        count = sum(map(len, self._parts))
        if count < self._rows:
            return None
        parts, self._parts = self._parts, []
        # If the last request has more texts than the window lacks, only the last rows count.
        last = np.arange(count - self._rows, count)
        predictions = joined(
            range(count), [part.uncalibrated for part in parts if part.uncalibrated is not None]
        ).take(last)
        states = [part.states for part in parts if part.states is not None]
        shift = self._classifier.shift(predictions, np.concatenate(states)[last])
        assert shift is not None
        anomaly = np.array([item.anomaly for part in parts for item in part])[last]
        return shift, unlabeled_scores(self._classifier.calibration, predictions, anomaly, shift)
