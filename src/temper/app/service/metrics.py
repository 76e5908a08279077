"""What the service counts, in the form that Prometheus reads."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)

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

    def answered(self, rows: int) -> None:
        """Count a batch that the model answered.

        Args:
            rows: Its texts.
        """
        self._rows.inc(rows)
        self._batches.observe(rows)

    def text(self) -> bytes:
        """Return all counters."""
        return generate_latest(self._registry)
