"""What the service counts, in the form that Prometheus reads."""

from __future__ import annotations

import math
from collections.abc import Callable

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)

from temper.calibration.answers import Answers, Shift
from temper.calibration.classifier import ALARM

CONTENT_TYPE = CONTENT_TYPE_LATEST
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Metrics:
    """Counters of one service.

    Args:
        waiting: Returns the rows that wait.
    """

    def __init__(self, waiting: Callable[[], int]) -> None:
        self._registry = CollectorRegistry()
        registry = self._registry
        self._seconds = Histogram(
            "temper_request_seconds",
            "Seconds of a request.",
            ["path"],
            buckets=SECONDS,
            registry=registry,
        )
        self._requests = Counter(
            "temper_requests", "Requests by path and status.", ["path", "status"], registry=registry
        )
        self._rows = Counter("temper_rows", "Texts that the model answered.", registry=registry)
        self._batches = Histogram(
            "temper_batch_rows",
            "Texts that were answered together.",
            buckets=ROWS,
            registry=registry,
        )
        self._abstained = Counter(
            "temper_abstentions",
            "Texts abstained from, by rule; several may object to one text.",
            ["rule"],
            registry=registry,
        )
        self._anomalies = Counter(
            "temper_anomalies", "Texts that were flagged as anomalies.", registry=registry
        )
        self._shift_tests = Counter(
            "temper_shift_tests",
            "Windows of answered texts that were compared with held-out rows.",
            registry=registry,
        )
        self._shift_alarms = Counter(
            "temper_shift_alarms",
            f"Windows with a p value of at most {ALARM:.2g}. Without a shift, at most 1% of "
            "windows alarm, for 19 in 20 sets of held-out rows.",
            registry=registry,
        )
        self._shift_p = Gauge("temper_shift_p", "The last window's p value.", registry=registry)
        self._shift_p.set(math.nan)
        Gauge("temper_waiting_rows", "Texts that wait.", registry=registry).set_function(waiting)

    def request(self, path: str, status: int, seconds: float) -> None:
        """Count a request.

        Args:
            path: One of the service's, or ``other``.
            status: What it was answered with.
            seconds: How long it took.
        """
        self._seconds.labels(path).observe(seconds)
        self._requests.labels(path, str(status)).inc()

    def answered(self, answers: Answers) -> None:
        """Count a batch that the model answered.

        Args:
            answers: Its answers.
        """
        self._rows.inc(len(answers))
        self._batches.observe(len(answers))
        for rule, count in answers.abstained.items():
            self._abstained.labels(rule).inc(count)
        self._anomalies.inc(sum(answer.anomalous or False for answer in answers))

    def compared(self, shift: Shift) -> None:
        """Count a window of texts that was compared with held-out rows.

        Args:
            shift: What came of it.
        """
        self._shift_tests.inc()
        self._shift_alarms.inc(shift.shifted)
        self._shift_p.set(shift.p)

    def text(self) -> bytes:
        """Return all counters."""
        return generate_latest(self._registry)
