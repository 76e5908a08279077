"""The runs of a study, one at a time: train, evaluate, return what a step took."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from temper.app.measure import evaluation_key, measure, stored_key
from temper.app.predictors import load_predictor
from temper.app.reference import with_reference
from temper.app.row_attack import RowAttacker
from temper.app.sets import EvaluationSets, load_sets
from temper.data.examples import Splits
from temper.study.plan import StudyConfig
from temper.study.store import StudyFolder
from temper.training.checkpoint_folder import RunFolder
from temper.training.config import RunConfig
from temper.training.progress import Progress
from temper.training.run import train

GridCell = tuple[str, int]
"""Column and seed of a run."""


@dataclass(frozen=True)
class Work:
    """What the runs of a study share.

    Args:
        config: The plan.
        folder: The study's folder.
        splits: The rows that all runs are trained on.
        sets: What they are judged on.
        keys: Key of every run.
    """

    config: StudyConfig
    folder: StudyFolder
    splits: Splits
    sets: EvaluationSets
    keys: Mapping[GridCell, str]

    def run(self, cell: GridCell) -> RunFolder:
        """Return the folder of a run."""
        column, seed = cell
        return self.folder.run(column, seed, self.keys[cell])

    def do(self, cell: GridCell, *, progress: Progress, attack: RowAttacker) -> float:
        """Train and evaluate one run; what is finished of it is left.

        Args:
            cell: Which.
            progress: Hears of its steps and of its evaluation.
            attack: Runs the attacks that its settings name, or knows what they found.

        Returns:
            The median seconds of a step.

        Raises:
            TemperError: Where model or method does not fit, or a loss is not finite.
        """
        run, settings = self.run(cell), self.config.runs[cell]
        train(settings, run.path, splits=self.splits, progress=progress, attack=attack)
        seconds = float((run.record() or {})["times"]["step_seconds_median"])
        self._evaluate(run, settings, progress)
        return seconds

    def _evaluate(self, run: RunFolder, settings: RunConfig, progress: Progress) -> None:
        out = run.path / "evaluation"
        record = run.record() or {}
        max_length = settings.data.max_length
        key = evaluation_key(
            str(record.get("key")), self.sets, self.config.evaluate, max_length=max_length
        )
        if stored_key(out) == key:
            return
        predictor = load_predictor(
            str(run.path),
            max_length=max_length,
            batch_size=self.config.evaluate.batch_size,
            device=settings.train.device,
        )
        measure(
            predictor,
            with_reference(self.sets, str(run.path), predictor, self.config.evaluate),
            self.config.evaluate,
            out,
            model=run.path.name,
            key=key,
            run=record.get("key"),
            progress=progress,
        )


def evaluation_sets(config: StudyConfig, splits: Splits) -> EvaluationSets:
    """Load what every run of a plan is judged on.

    Args:
        config: The plan.
        splits: Its rows.

    Raises:
        TemperError: Where a set is wrong.
    """
    any_run = next(iter(config.runs.values()))
    return load_sets(
        config.sets,
        settings=any_run.data,
        evaluate=config.evaluate,
        dev=splits.dev,
        train=splits.train,
    )
