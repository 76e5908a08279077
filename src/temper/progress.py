"""The interface that receives the progress of training, evaluation and studies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


class Progress:
    """Base class of progress displays; it ignores all calls."""

    def runs(self, number: int, total: int, name: str) -> None:
        """Run ``number`` (from 1) of a study begins; ``name`` is its method and seed."""

    def steps(self, done: int, total: int, *, loss: float | None) -> None:
        """An optimizer step of the run is done; ``loss`` is the last logged loss, if any."""

    def logged(self, entry: Mapping[str, Any]) -> None:
        """A line of ``metrics.jsonl`` was written (docs/formats.md): losses or scores."""

    def evaluation(self, done: int, total: int, what: str) -> None:
        """``done`` of ``total`` parts of a measurement are done; ``what`` is its name."""

    def notice(self, text: str) -> None:
        """Receive a warning for the user, for example that rows were dropped."""

    def info(self, text: str) -> None:
        """Receive an informational message, for example which columns are read."""

    def info_all(self, texts: Iterable[str]) -> None:
        for text in texts:
            self.info(text)

    def notice_all(self, texts: Iterable[str]) -> None:
        for text in texts:
            self.notice(text)
