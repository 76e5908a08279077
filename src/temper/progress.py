"""Progress of long work, for any display; nothing here prints."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any


class Progress:
    """Hear of every run, step and evaluation; this base does nothing with it.

    The command line draws bars by overriding these methods; a notebook may do the same.

    Example:
        >>> Progress().steps(1, 10, loss=None)
    """

    def runs(self, number: int, total: int, name: str) -> None:
        """Hear that a run of a study begins.

        Args:
            number: Which run, from 1.
            total: Runs of the study.
            name: Column and seed.
        """

    def steps(self, done: int, total: int, *, loss: float | None) -> None:
        """Hear that an optimizer step of the present run is done.

        Args:
            done: Steps done.
            total: Steps of the run.
            loss: The last logged loss, None before the first.
        """

    def logged(self, entry: Mapping[str, Any]) -> None:
        """Hear a line of ``metrics.jsonl``: the loss with its parts, or the scores of an epoch.

        Args:
            entry: As docs/formats.md describes it.
        """

    def evaluation(self, done: int, total: int, what: str) -> None:
        """Hear how far an evaluation is.

        Args:
            done: Parts done.
            total: Parts in all.
            what: Name of the measurement.
        """

    def notice(self, text: str) -> None:
        """Hear something that the user should know, for example rows that were dropped."""

    def info(self, text: str) -> None:
        """Receive an informational message, for example which columns are read."""

    def info_all(self, texts: Iterable[str]) -> None:
        """Hear several.

        Args:
            texts: Each as `info` takes it.
        """
        for text in texts:
            self.info(text)

    def notice_all(self, texts: Iterable[str]) -> None:
        """Hear several.

        Args:
            texts: Each as `notice` takes it.
        """
        for text in texts:
            self.notice(text)


class LoggedNotices(Progress):
    """Log the warnings of a Python call, which has no display."""

    def info(self, text: str) -> None:
        """Log an informational message."""
        logging.getLogger("temper").info(text)

    def notice(self, text: str) -> None:
        """Log a notice as a warning."""
        logging.getLogger("temper").warning(text)
