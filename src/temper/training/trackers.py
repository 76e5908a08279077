"""Runs of experiment trackers: opened before the first step, and again for an evaluation's scores.

Transformers' callbacks send what the Trainer logs. What they lack is here: a stopped run goes on in
the tracker's run that it began, each run of a comparison is a run of its own, the method's settings
stand beside the Trainer's arguments, and the scores of epochs and evaluations arrive too.

No tracker is a dependency: whoever names one brings its package.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from temper.checkpoints.folder import EVENTS, TRACKED, read_json
from temper.errors import SettingError, one_line
from temper.files import write_json
from temper.training.settings import TRACKERS

Values = Mapping[str, float]
LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrackedRun:
    """What a tracker is told of a run when it opens.

    Args:
        folder: The run's folder.
        settings: Its settings, nested.
        step: Optimiser steps that are done.
    """

    folder: Path
    settings: Mapping[str, Any]
    step: int = 0


class Tracker(ABC):
    """Hold a run of one tracker open.

    Args:
        run: What it is told of the run.
        known: The tracker's own name of a run that goes on; None begins one.
    """

    def __init__(self, run: TrackedRun, known: str | None) -> None:
        self.id: str | None = known

    @abstractmethod
    def send(self, values: Values, step: int) -> None:
        """Send values.

        Args:
            values: Finite numbers by name.
            step: Optimiser step that they are of.
        """

    @abstractmethod
    def close(self, *, failed: bool) -> None:
        """Close the run, unless the caller had opened it."""


class TensorBoard(Tracker):
    """Event files in ``tensorboard/`` of the run's folder, or in TENSORBOARD_LOGGING_DIR/NAME."""

    def __init__(self, run: TrackedRun, known: str | None) -> None:
        super().__init__(run, known)
        try:
            board = import_module("torch.utils.tensorboard")
        except ImportError:
            board = import_module("tensorboardX")
        shared = os.environ.get("TENSORBOARD_LOGGING_DIR")
        folder = Path(shared).expanduser() / run.folder.name if shared else run.folder / EVENTS
        # What a stopped run logged behind its last checkpoint is logged again.
        self.writer = board.SummaryWriter(
            str(folder), purge_step=run.step + 1 if run.step else None
        )
        if known is None:
            self.writer.add_text("settings", f"```json\n{json.dumps(run.settings, indent=1)}\n```")
        self.id = folder.name

    def send(self, values: Values, step: int) -> None:
        """Write scalars."""
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)

    def close(self, *, failed: bool) -> None:
        """Write to disk."""
        self.writer.close()


class WeightsAndBiases(Tracker):
    """A run of W&B in the project WANDB_PROJECT, or the one that the caller has opened."""

    def __init__(self, run: TrackedRun, known: str | None) -> None:
        super().__init__(run, known)
        wandb = self._wandb = import_module("wandb")
        self._borrowed = wandb.run is not None
        if not self._borrowed:
            project = os.environ.get("WANDB_PROJECT", "huggingface")
            resumed = {} if known is None else {"id": known, "resume": "allow"}
            wandb.init(project=project, name=run.folder.name, **resumed)
        self.id = wandb.run.id
        wandb.config.update({"temper": dict(run.settings)}, allow_val_change=True)

    def send(self, values: Values, step: int) -> None:
        """Log values; the step is an axis of its own, as that of Transformers' callback."""
        self._wandb.log({**values, "train/global_step": step})

    def close(self, *, failed: bool) -> None:
        """Finish the run, so that the next one of a comparison begins its own."""
        if not self._borrowed:
            self._wandb.finish(exit_code=int(failed))


class MLflow(Tracker):
    """A run of MLflow, or the one that the caller or MLFLOW_RUN_ID has opened."""

    def __init__(self, run: TrackedRun, known: str | None) -> None:
        super().__init__(run, known)
        mlflow = self._mlflow = import_module("mlflow")
        self._borrowed = mlflow.active_run() is not None or "MLFLOW_RUN_ID" in os.environ
        if mlflow.active_run() is None:
            mlflow.start_run(run_id=None if self._borrowed else known, run_name=run.folder.name)
        self.id = mlflow.active_run().info.run_id
        if known is None:
            # Tags and not parameters: MLflow refuses parameters that change, and long ones.
            mlflow.set_tags({"temper": json.dumps(run.settings)[:5000]})
        if "MLFLOW_RUN_ID" in os.environ:
            # Transformers' callback opens that run by itself, and would find it open.
            mlflow.end_run()

    def send(self, values: Values, step: int) -> None:
        """Log metrics, whose names have some signs only."""
        plain = {re.sub(r"[^\w\-. :/]", "_", name): value for name, value in values.items()}
        self._mlflow.log_metrics(plain, step=step, run_id=self.id)

    def close(self, *, failed: bool) -> None:
        """End the run."""
        if not self._borrowed:
            self._mlflow.end_run("FAILED" if failed else "FINISHED")


KNOWN: dict[str, type[Tracker]] = {
    "tensorboard": TensorBoard,
    "wandb": WeightsAndBiases,
    "mlflow": MLflow,
}
"""Trackers that get scores too; the others of Transformers get the logs of the training alone."""


class OpenTrackers:
    """Send values to every tracker of a run that is open.

    Args:
        trackers: By name.
        notice: Hears of one that fails, which is no reason to lose the work that it is told of.
    """

    def __init__(self, trackers: Mapping[str, Tracker], notice: Callable[[str], None]) -> None:
        self._trackers, self._notice = trackers, notice

    def attach(self, callbacks: Iterable[Any]) -> None:
        """Have Transformers' callback write to our event file; the others find the open run."""
        board = self._trackers.get("tensorboard")
        for callback in callbacks:
            if type(callback).__name__ == "TensorBoardCallback" and isinstance(board, TensorBoard):
                callback.tb_writer = board.writer

    def send(self, values: Mapping[str, float | None], step: int) -> None:
        """Send values; those that are undefined are left out.

        Args:
            values: By name.
            step: Optimiser step that they are of.
        """
        finite = {name: value for name, value in values.items() if value is not None}
        for name, tracker in self._trackers.items():
            with self._told(name, f"did not take the scores of step {step}"):
                tracker.send(finite, step)

    def close(self, *, failed: bool) -> None:
        """Close every tracker's run.

        Args:
            failed: Whether the work has failed.
        """
        for name, tracker in self._trackers.items():
            with self._told(name, "cannot be closed"):
                tracker.close(failed=failed)

    @contextmanager
    def _told(self, name: str, what: str) -> Iterator[None]:
        """Turn an error of a tracker into a notice."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - whatever a tracker raises
            self._notice(f"The tracker {name!r} {what}: {_reason(error)} The work goes on.")


@contextmanager
def tracked(
    run: TrackedRun, report_to: Sequence[str], notice: Callable[[str], None] = LOG.warning
) -> Iterator[OpenTrackers]:
    """Hold a run open in its trackers; the one that it began before goes on.

    Args:
        run: What the trackers are told.
        report_to: ``train.report_to``.
        notice: Hears of a tracker that fails once it is open.

    Raises:
        SettingError: A tracker cannot be opened, for want of a login, for instance.
    """
    file = run.folder / TRACKED
    known: dict[str, str] = read_json(file) if file.exists() else {}
    opened: dict[str, Tracker] = {}
    trackers, failed = OpenTrackers(opened, notice), True
    try:
        for name in _chosen(report_to):
            opened[name] = _open(name, run, known.get(name))
        ids = {name: tracker.id for name, tracker in opened.items()}
        if ids:
            write_json(file, {**known, **ids})
        yield trackers
        failed = False
    finally:
        trackers.close(failed=failed)


def _open(name: str, run: TrackedRun, known: str | None) -> Tracker:
    try:
        return KNOWN[name](run, known)
    except Exception as error:
        raise SettingError(
            f"The tracker {name!r} cannot be opened: {_reason(error)} Mend that, or leave it out "
            "of `train.report_to`."
        ) from error


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {one_line(str(error))}"


def _chosen(report_to: Sequence[str]) -> list[str]:
    if "all" not in report_to:
        return [name for name in KNOWN if name in report_to]
    return [name for name in KNOWN if any(map(importlib.util.find_spec, TRACKERS[name]))]


def score_values(scores: Iterable[Mapping[str, Any]]) -> dict[str, float | None]:
    """Name an evaluation's scores for a tracker.

    Args:
        scores: ``scores`` of ``scores.json``.

    Returns:
        Value by ``evaluation/PERSPECTIVE/SET/CONDITION/SCORE``; parameters stand behind the
        condition, and of a score over no set that part is left out.

    Example:
        >>> of = {"perspective": "embedding_attack", "set": "dev", "condition": "pgd"}
        >>> score_values([{**of, "parameters": {"radius": 0.1}, "name": "accuracy", "value": 0.5}])
        {'evaluation/embedding_attack/dev/pgd radius:0.1/accuracy': 0.5}
    """
    named = {}
    for score in scores:
        parameters = [f"{name}:{value}" for name, value in score.get("parameters", {}).items()]
        condition = " ".join([score["condition"], *parameters])
        parts = ("evaluation", score["perspective"], score["set"], condition, score["name"])
        named["/".join(part for part in parts if part)] = score["value"]
    return named
