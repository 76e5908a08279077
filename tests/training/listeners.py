"""`Progress` classes that record messages or stop a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from temper.progress import Progress


class StopAt(Progress):
    """Interrupt the run at a step, as Ctrl-C does."""

    def __init__(self, step: int) -> None:
        self.step = step

    def steps(self, done: int, total: int, *, loss: float | None) -> None:
        if done == self.step:
            raise KeyboardInterrupt


class Heard(Progress):
    """Keep the notices, the steps that are done and the lines of logs."""

    def __init__(self) -> None:
        self.notices: list[str] = []
        self.done: list[int] = []
        self.entries: list[dict[str, Any]] = []

    def steps(self, done: int, total: int, *, loss: float | None) -> None:
        self.done.append(done)

    def logged(self, entry: Mapping[str, Any]) -> None:
        self.entries.append(dict(entry))

    def notice(self, text: str) -> None:
        self.notices.append(text)
