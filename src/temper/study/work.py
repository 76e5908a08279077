"""The folder and the runs of a study: the plan in ``study.json``; training and evaluation."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from temper.checkpoints.checkpoint import Checkpoint
from temper.checkpoints.folder import (
    RunFolder,
    check_study_folder,
    difference_in_words,
    read_json,
)
from temper.cluster import plugins
from temper.data.examples import Splits
from temper.data.sources import load_splits
from temper.data.suites.suite import KINDS
from temper.errors import CheckpointError, SettingError
from temper.evaluation.evaluate import evaluation_key, measure, stored_key
from temper.evaluation.loading import load_predictor, with_reference
from temper.evaluation.sets import EvaluationSets, load_sets
from temper.files import put_back, write_json
from temper.progress import Progress
from temper.study.plan import StudyConfig
from temper.training.run import train
from temper.training.trackers import TrackedRun, score_values, tracked

GridCell = tuple[str, int]
"""Column and seed of a run."""


@dataclass(frozen=True)
class StudyFolder:
    """The folder of a study (which may not exist yet), its plan, and the key of every run."""

    path: Path
    config: StudyConfig
    keys: Mapping[GridCell, str]

    def splits(self) -> Splits:
        return load_splits(self.config.data)

    def load(self, imports: Iterable[str] = ()) -> Work:
        """Load the data, and first the user's modules of ``imports``, in another process."""
        for module in imports:
            plugins.load(module)
        splits = self.splits()
        return Work(self, splits, evaluation_sets(self.config, splits))

    def run(self, cell: GridCell) -> RunFolder:
        """Return the folder of a run; the key of its settings is part of the name."""
        column, seed = cell
        return RunFolder(self.path / "runs" / f"{column}-s{seed}-{self.keys[cell]}")

    def check(self) -> None:
        """Raise an error if the folder has different content from this study.

        Columns and seeds may be added or left out. A common column must have the same settings.
        """
        file = self.path / "study.json"
        check_study_folder(self.path)
        if not file.exists():
            return
        planned = read_json(file).get("runs", {})
        self._check_shared(planned)
        for cell, run in self.config.runs.items():
            column, seed = cell
            before = planned.get(column, {}).get(str(seed))
            if before is None or before == self._relative(cell):
                continue
            record = RunFolder(self.path / before).record()
            if record is None:
                # A column that was planned but never started may change.
                continue
            what = difference_in_words(
                {"model": record.get("model"), **record.get("settings", {})},
                {"model": run.model, **run.settings()},
            )
            raise CheckpointError(
                f"{self.path} has a study in which method {column!r} had other settings: {what}. "
                "Choose another --out, or rename the changed method with --variant."
            )

    def _check_shared(self, planned: Mapping[str, Mapping[str, str]]) -> None:
        """Raise an error if the folder has runs of another study only."""
        if any(str(seed) in planned.get(column, {}) for column, seed in self.config.runs):
            return
        begun = [
            column
            for column, folders in planned.items()
            if any(RunFolder(self.path / folder).record() for folder in folders.values())
        ]
        if begun:
            raise CheckpointError(
                f"{self.path} has a study with other columns or seeds ({', '.join(begun)}). Choose "
                "another --out, or add one of them."
            )

    def write(self, *, cost: Mapping[str, Mapping[str, float]]) -> None:
        """Write ``study.json`` atomically, with the known step costs of columns."""
        config = self.config
        suite = config.sets.found_suite
        runs: dict[str, dict[str, str]] = {}
        for column, seed in self.keys:
            runs.setdefault(column, {})[str(seed)] = self._relative((column, seed))
        content: dict[str, Any] = {
            "model": config.any_run.model,
            "data": config.data.model_dump(mode="json"),
            "train": config.base.get("train", {}),
            **{name: config.base[name] for name in ("architecture",) if name in config.base},
            "evaluate": config.evaluate.model_dump(mode="json"),
            **{kind: config.sets.named(kind) for kind in KINDS},
            "suite": None if suite is None else suite.suite.name,
            "missing": config.sets.missing,
            "held_out": config.sets.held_out,
            "seeds": list(config.seeds),
            "reference": config.reference,
            "columns": [
                {"name": column.name, "method": column.method, "settings": column.settings}
                for column in config.columns
            ],
            "runs": runs,
            "cost": {name: dict(values) for name, values in cost.items()},
        }
        write_json(self.path / "study.json", content)

    def _relative(self, cell: GridCell) -> str:
        return Path(os.path.relpath(self.run(cell).path, self.path)).as_posix()


@dataclass(frozen=True)
class Work:
    """Train and evaluate the runs of a study on data that is loaded once."""

    folder: StudyFolder
    splits: Splits
    sets: EvaluationSets

    def do(self, cell: GridCell, *, progress: Progress) -> float | None:
        """Train and evaluate a run, reusing finished parts.

        Returns:
            Median seconds of a training step, from the run's record; None if no step was timed.
        """
        run, settings = self.folder.run(cell), self.folder.config.runs[cell]
        train(settings, run.path, splits=self.splits, progress=progress)
        return self.evaluate(cell, progress=progress)

    def is_done(self, cell: GridCell) -> bool:
        run = self.folder.run(cell)
        is_trained = (run.record() or {}).get("status") == "finished"
        return is_trained and stored_key(run.path / "evaluation") == self._evaluation_key(cell)

    def _evaluation_key(self, cell: GridCell) -> str:
        config = self.folder.config
        max_length = config.runs[cell].data.max_length
        key = self.folder.keys[cell]
        return evaluation_key(key, self.sets, config.evaluate, max_length=max_length)

    def evaluate(self, cell: GridCell, *, progress: Progress) -> float | None:
        """Evaluate a trained run, unless that is done; return the median seconds of a step."""
        folder, settings = self.folder.run(cell), self.folder.config.runs[cell]
        run, record, evaluate = folder.path, folder.record() or {}, self.folder.config.evaluate
        out, run_key, max_length = run / "evaluation", str(record["key"]), settings.data.max_length
        seconds: float | None = record["times"]["step_seconds_median"]
        key = self._evaluation_key(cell)
        put_back(out)
        if stored_key(out) == key:
            return seconds
        predictor = load_predictor(
            Checkpoint.of(run),
            max_length=max_length,
            batch_size=evaluate.batch_size,
            precision=evaluate.precision,
            device=settings.train.device,
        )
        measure(
            predictor,
            with_reference(self.sets, Checkpoint.of(run), predictor, evaluate),
            evaluate,
            out,
            model=run.name,
            key=key,
            run=run_key,
            progress=progress,
        )
        tracked_run = TrackedRun(run, settings.settings(), int(record["times"]["steps"]))
        try:
            with tracked(tracked_run, settings.train.report_to, progress.notice) as trackers:
                trackers.send(
                    score_values(read_json(out / "scores.json")["scores"]), tracked_run.step
                )
        except SettingError as error:
            # The scores are stored, so a failed tracker is not an error.
            progress.notice(f"The scores of {run.name} were not sent. {error}")
        return seconds


def evaluation_sets(config: StudyConfig, splits: Splits) -> EvaluationSets:
    trained = set(splits.train.rows)
    return load_sets(
        config.sets,
        settings=config.any_run.data,
        evaluate=config.evaluate,
        dev=splits.dev,
        train=splits.train,
        trained=lambda _: (trained, ()),
    )
