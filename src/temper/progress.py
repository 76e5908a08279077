"""Receivers of the progress of long work."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


class Progress:
    """Receives the progress of runs, steps and evaluations; this base class ignores it."""

    def runs(self, number: int, total: int, name: str) -> None:
        """A run of a study begins: ``number`` counts from 1, ``name`` is column and seed."""

    def steps(self, done: int, total: int, *, loss: float | None) -> None:
        """An optimizer step of the run is done; ``loss`` is the last logged one, if any."""

    def logged(self, entry: Mapping[str, Any]) -> None:
        """A line of ``metrics.jsonl`` was written (docs/formats.md): losses or scores."""

    def evaluation(self, done: int, total: int, what: str) -> None:
        """A part of an evaluation is done; ``what`` names the measurement."""

    def notice(self, text: str) -> None:
        """Receive a problem that the user should know, for example rows that were dropped."""

    def info(self, text: str) -> None:
        """Receive an informational message, for example which columns are read."""

    def info_all(self, texts: Iterable[str]) -> None:
        for text in texts:
            self.info(text)

    def notice_all(self, texts: Iterable[str]) -> None:
        for text in texts:
            self.notice(text)
