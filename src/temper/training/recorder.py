"""Record a run while it trains: its logs, the time of its steps, and where it stands."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from statistics import median
from typing import Any

from temper.training.checkpoint_folder import RunFolder
from temper.training.progress import Progress


class Listener:
    """Hear the events of a Trainer.

    It fits Transformers' callbacks by the names of its methods, since only trainer.py may import
    their class.
    """

    def __getattr__(self, name: str) -> Callable[..., None]:
        """Ignore the events that are of no interest here, those of later Transformers too."""
        if name.startswith("on_"):
            return _ignore
        raise AttributeError(name)


class Recorder(Listener):
    """Write the logs of a Trainer to ``metrics.jsonl``, time its steps, and tell the progress.

    Args:
        folder: The run's folder.
        progress: Hears of every step.
        on_save: Called when a checkpoint was written.
    """

    def __init__(
        self, folder: RunFolder, progress: Progress, *, on_save: Callable[[], None]
    ) -> None:
        self.done = 0
        self._folder, self._progress, self._on_save = folder, progress, on_save
        self._started = timestamp()
        self._begun = time.perf_counter()
        self._earlier = 0.0
        self._earlier_median: float | None = None
        self._seconds: list[float] = []
        self._step_begun = 0.0
        self._loss: float | None = None

    def resume(self, step: int, times: Mapping[str, Any]) -> None:
        """Take over the times of the part of the run that came before a stop.

        Args:
            step: Steps that are done.
            times: ``times`` of the stopped run's record.
        """
        self.done = step
        self._started = str(times.get("started", self._started))
        self._earlier = float(times.get("train_seconds", 0.0))
        self._earlier_median = times.get("step_seconds_median")

    def times(self) -> dict[str, Any]:
        """Return what ``run.json`` holds as ``times``."""
        seconds = self._earlier + time.perf_counter() - self._begun
        return {
            "started": self._started,
            "train_seconds": round(seconds, 3),
            "step_seconds_median": median(self._seconds) if self._seconds else self._earlier_median,
            "steps": self.done,
        }

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Start the clock."""
        self._begun = time.perf_counter()
        self._progress.steps(state.global_step, state.max_steps, loss=None)

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Start timing a step."""
        self._step_begun = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Count and time a step."""
        self._seconds.append(time.perf_counter() - self._step_begun)
        self.done = state.global_step
        if state.global_step >= state.max_steps:
            # A run that is shorter than `logging_steps` would leave no log at all.
            control.should_log = True
        self._progress.steps(state.global_step, state.max_steps, loss=self._loss)

    def on_log(
        self, args: Any, state: Any, control: Any, logs: Mapping[str, Any] | None = None, **_: Any
    ) -> None:
        """Keep a training log; the summary at the end has no ``loss`` and is in ``run.json``."""
        if not logs or "loss" not in logs:
            return
        self._loss = float(logs["loss"])
        entry = {
            "step": state.global_step,
            "epoch": state.epoch,
            **{name: value for name, value in logs.items() if name not in ("step", "epoch")},
        }
        self._folder.append_metrics(entry)
        self._progress.logged(entry)

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Note that a checkpoint was written."""
        self._on_save()


def _ignore(*_: Any, **__: Any) -> None:
    return None


def timestamp() -> str:
    """Return the time as ``2026-01-01T00:00:00Z``."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
