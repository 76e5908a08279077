"""Receivers of the progress of long work."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


class Progress:
    """Receives the progress of runs, steps and evaluations; this base class ignores it.

    Example:
        >>> Progress().steps(1, 10, loss=None)
    """

    def runs(self, number: int, total: int, name: str) -> None:
        """A run of a study begins.

        Args:
            number: Which run, from 1.
            total: Runs of the study.
            name: Column and seed.
        """

    def steps(self, done: int, total: int, *, loss: float | None) -> None:
        """An optimizer step of the current run is done.

        Args:
            done: Steps done.
            total: Steps of the run.
            loss: The last logged loss, None before the first.
        """

    def logged(self, entry: Mapping[str, Any]) -> None:
        """A line of ``metrics.jsonl`` was written: losses, or the scores of an epoch.

        Args:
            entry: As docs/formats.md describes it.
        """

    def evaluation(self, done: int, total: int, what: str) -> None:
        """A part of an evaluation is done.

        Args:
            done: Parts done.
            total: Parts in all.
            what: Name of the measurement.
        """

    def notice(self, text: str) -> None:
        """Receive a problem that the user should know, for example rows that were dropped."""

    def info(self, text: str) -> None:
        """Receive an informational message, for example which columns are read."""

    def info_all(self, texts: Iterable[str]) -> None:
        """Receive several informational messages."""
        for text in texts:
            self.info(text)

    def notice_all(self, texts: Iterable[str]) -> None:
        """Receive several problems."""
        for text in texts:
            self.notice(text)
