"""Runs of experiment trackers: opened before the first step, and again for an evaluation's scores.

Transformers' callbacks send the Trainer's logs. This module adds the rest: a resumed run continues
the tracker's run, each run of a comparison has its own, the method's settings are recorded, and the
scores of epochs and evaluations are sent.

No tracker is a dependency.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from temper.checkpoints.folder import EVENTS, TRACKED, read_json
from temper.errors import SettingError, one_line
from temper.files import write_json
from temper.training.settings import is_installed

Values = Mapping[str, float]
LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrackedRun:
    """Folder and settings of a run for a tracker, and the number of steps already done."""

    folder: Path
    settings: Mapping[str, Any]
    step: int = 0


@dataclass(frozen=True)
class Tracker:
    """An open run of a tracker.

    Args:
        id: The tracker's id of the run.
        send: Sends finite numbers (by name) and their optimizer step.
        close: Closes the run, as failed or not, unless the caller had opened it.
        writer: TensorBoard's writer.
    """

    id: str
    send: Callable[[Values, int], None]
    close: Callable[[bool], None]
    writer: Any = None


def _tensorboard(run: TrackedRun, known: str | None) -> Tracker:
    """Write events to ``tensorboard/`` of the run's folder, or TENSORBOARD_LOGGING_DIR/NAME."""
    try:
        board = import_module("torch.utils.tensorboard")
    except ImportError:
        board = import_module("tensorboardX")
    shared = os.environ.get("TENSORBOARD_LOGGING_DIR")
    folder = Path(shared).expanduser() / run.folder.name if shared else run.folder / EVENTS
    # Steps after the last checkpoint are logged again.
    writer = board.SummaryWriter(str(folder), purge_step=run.step + 1 if run.step else None)
    if known is None:
        writer.add_text("settings", f"```json\n{json.dumps(run.settings, indent=1)}\n```")

    def send(values: Values, step: int) -> None:
        for name, value in values.items():
            writer.add_scalar(name, value, step)

    return Tracker(folder.name, send, lambda failed: writer.close(), writer)


def _wandb(run: TrackedRun, known: str | None) -> Tracker:
    """Use a run of W&B in the project WANDB_PROJECT, or the one that the caller has opened."""
    wandb = import_module("wandb")
    borrowed = wandb.run is not None
    if not borrowed:
        project = os.environ.get("WANDB_PROJECT", "huggingface")
        resumed = {} if known is None else {"id": known, "resume": "allow"}
        wandb.init(project=project, name=run.folder.name, **resumed)
    wandb.config.update({"temper": dict(run.settings)}, allow_val_change=True)
    return Tracker(
        wandb.run.id,
        # The step is a value, as in Transformers' callback.
        lambda values, step: wandb.log({**values, "train/global_step": step}),
        lambda failed: None if borrowed else wandb.finish(exit_code=int(failed)),
    )


def _mlflow(run: TrackedRun, known: str | None) -> Tracker:
    """Use a run of MLflow, or the one that the caller or MLFLOW_RUN_ID has opened."""
    mlflow = import_module("mlflow")
    borrowed = mlflow.active_run() is not None or "MLFLOW_RUN_ID" in os.environ
    if mlflow.active_run() is None:
        mlflow.start_run(run_id=None if borrowed else known, run_name=run.folder.name)
    tracker_run = mlflow.active_run().info.run_id
    if known is None:
        # MLflow refuses parameters that change, and long ones.
        mlflow.set_tags({"temper": json.dumps(run.settings)[:5000]})
    if "MLFLOW_RUN_ID" in os.environ:
        # Transformers' callback opens that run itself.
        mlflow.end_run()

    def send(values: Values, step: int) -> None:
        # MLflow allows few characters in names.
        plain = {re.sub(r"[^\w\-. :/]", "_", name): value for name, value in values.items()}
        mlflow.log_metrics(plain, step=step, run_id=tracker_run)

    def close(failed: bool) -> None:
        if not borrowed:
            mlflow.end_run("FAILED" if failed else "FINISHED")

    return Tracker(tracker_run, send, close)


KNOWN: dict[str, Callable[[TrackedRun, str | None], Tracker]] = {
    "tensorboard": _tensorboard,
    "wandb": _wandb,
    "mlflow": _mlflow,
}
"""Name -> function that opens a tracker; other trackers of Transformers get no scores."""


@dataclass(frozen=True)
class OpenTrackers:
    """Send values to every open tracker of a run; one that fails becomes a notice."""

    trackers: Mapping[str, Tracker]
    notice: Callable[[str], None]

    def attach(self, callbacks: Iterable[Any]) -> None:
        """Make Transformers' TensorBoard callback use our writer; others find the open run."""
        for callback in callbacks:
            if type(callback).__name__ == "TensorBoardCallback" and "tensorboard" in self.trackers:
                callback.tb_writer = self.trackers["tensorboard"].writer

    def send(self, values: Mapping[str, float | None], step: int) -> None:
        finite = {name: value for name, value in values.items() if value is not None}
        fault = f"did not take the scores of step {step}"
        self._each(lambda tracker: tracker.send(finite, step), fault)

    def close(self, *, failed: bool) -> None:
        self._each(lambda tracker: tracker.close(failed), "cannot be closed")

    def _each(self, act: Callable[[Tracker], None], fault: str) -> None:
        for name, tracker in self.trackers.items():
            try:
                act(tracker)
            except Exception as error:  # noqa: BLE001 - trackers raise anything
                self.notice(f"The tracker {name!r} {fault}: {_reason(error)} Continuing.")


@contextmanager
def tracked(
    run: TrackedRun, report_to: Sequence[str], notice: Callable[[str], None] = LOG.warning
) -> Iterator[OpenTrackers]:
    """Open a run, or continue it, in each tracker of ``report_to``."""
    file = run.folder / TRACKED
    known: dict[str, str] = read_json(file) if file.exists() else {}
    opened: dict[str, Tracker] = {}
    trackers, failed = OpenTrackers(opened, notice), True
    try:
        for name, opener in KNOWN.items():
            if name in report_to or ("all" in report_to and is_installed(name)):
                try:
                    opened[name] = opener(run, known.get(name))
                except Exception as error:
                    raise SettingError(
                        f"The tracker {name!r} cannot be opened: {_reason(error)} Fix that, or "
                        "leave it out of `train.report_to`."
                    ) from error
        if opened:
            write_json(file, {**known, **{name: item.id for name, item in opened.items()}})
        yield trackers
        failed = False
    finally:
        trackers.close(failed=failed)


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {one_line(str(error))}"


def score_values(scores: Iterable[Mapping[str, Any]]) -> dict[str, float | None]:
    """Return an evaluation's scores with names for a tracker.

    A name is ``evaluation/PERSPECTIVE/SET/CONDITION/SCORE``; parameters follow the condition, and a
    score without a set has no set part.

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
