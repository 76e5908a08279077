"""A study's folder and its runs: the plan in ``study.json``; train, evaluate, return step times."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from temper.checkpoints.checkpoint import Checkpoint
from temper.checkpoints.folder import (
    RunFolder,
    check_study_room,
    difference_in_words,
    read_json,
)
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
    """The folder of one study.

    Args:
        path: Where it lies, or shall lie.
        config: The plan.
        keys: Key of every run.
    """

    path: Path
    config: StudyConfig
    keys: Mapping[GridCell, str]

    def splits(self) -> Splits:
        """Load the rows that the runs are trained on."""
        return load_splits(self.config.data)

    def load(self) -> Work:
        """Load what the runs share.

        Raises:
            TemperError: Something cannot be read.
        """
        splits = self.splits()
        return Work(self, splits, evaluation_sets(self.config, splits))

    def run(self, cell: GridCell) -> RunFolder:
        """Return the folder of a run; its key is part of the name: other settings lie elsewhere."""
        column, seed = cell
        return RunFolder(self.path / "runs" / f"{column}-s{seed}-{self.keys[cell]}")

    def check(self) -> None:
        """Refuse a folder that holds something else than this study.

        Columns and seeds may be added to a study, or left out. A column that is in both must be the
        same, or one name would stand for two things in one folder.

        Raises:
            CheckpointError: Where the folder is no study or has other settings; it names them.
        """
        file = self.path / "study.json"
        check_study_room(self.path)
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
                # It was planned and never begun, so that its name stands for nothing yet.
                continue
            what = difference_in_words(
                {"model": record.get("model"), **record.get("settings", {})},
                {"model": run.model, **run.settings()},
            )
            raise CheckpointError(
                f"{self.path} holds a study in which column {column!r} had other settings: {what}. "
                "Give another --out, or give the changed column a name of its own with --variant."
            )

    def _check_shared(self, planned: Mapping[str, Mapping[str, str]]) -> None:
        """Refuse a folder whose runs have begun and of which this study has none."""
        if any(str(seed) in planned.get(column, {}) for column, seed in self.config.runs):
            return
        begun = [
            column
            for column, indices in planned.items()
            if any(RunFolder(self.path / index).record() for index in indices.values())
        ]
        if begun:
            raise CheckpointError(
                f"{self.path} holds a study of other columns or seeds ({', '.join(begun)}), of "
                "which this one has none. Give another --out, or name one of them too."
            )

    def write(self, *, cost: Mapping[str, Mapping[str, float]]) -> None:
        """Write ``study.json`` in one go.

        Args:
            cost: Cost of a step of each column, as far as it is known.
        """
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
    """Objects that the runs of a study share.

    Args:
        folder: The study's folder, with its plan.
        splits: The rows that all runs are trained on.
        sets: What they are judged on.
    """

    folder: StudyFolder
    splits: Splits
    sets: EvaluationSets

    def do(self, cell: GridCell, *, progress: Progress) -> float | None:
        """Train and evaluate one run; what is finished of it is left.

        Args:
            cell: Which.
            progress: Hears of its steps and of its evaluation.

        Returns:
            The median seconds of a step, None if a kill left only the evaluation to do.

        Raises:
            TemperError: Where model or method does not fit, or a loss is not finite.
        """
        run, settings = self.folder.run(cell), self.folder.config.runs[cell]
        train(settings, run.path, splits=self.splits, progress=progress)
        return self.evaluate(cell, progress=progress)

    def is_done(self, cell: GridCell) -> bool:
        """Return whether a run is trained and evaluated.

        Args:
            cell: Which.
        """
        run = self.folder.run(cell)
        is_trained = (run.record() or {}).get("status") == "finished"
        return is_trained and stored_key(run.path / "evaluation") == self._evaluation_key(cell)

    def _evaluation_key(self, cell: GridCell) -> str:
        config = self.folder.config
        max_length = config.runs[cell].data.max_length
        key = self.folder.keys[cell]
        return evaluation_key(key, self.sets, config.evaluate, max_length=max_length)

    def evaluate(self, cell: GridCell, *, progress: Progress) -> float | None:
        """Evaluate a run that is trained, unless that is done.

        Args:
            cell: Which.
            progress: Hears of its evaluation.

        Returns:
            The median seconds of a step of its training; None if they are not known.
        """
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
            # The scores lie on the disk, and the run is whole without its tracker.
            progress.notice(f"The scores of {run.name} are not sent. {error}")
        return seconds


def evaluation_sets(config: StudyConfig, splits: Splits) -> EvaluationSets:
    """Load what every run of a plan is judged on.

    Args:
        config: The plan.
        splits: Its rows.

    Raises:
        TemperError: Where a set is wrong.
    """
    trained = set(splits.train.rows)
    return load_sets(
        config.sets,
        settings=config.any_run.data,
        evaluate=config.evaluate,
        dev=splits.dev,
        train=splits.train,
        trained=lambda _: (trained, ()),
    )
