"""The runs of a study, one at a time: train it, judge it, tell what its steps took."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from temper.app.judge import evaluation_key, judge, judging_key
from temper.app.predictors import load_predictor
from temper.app.reference import with_reference
from temper.app.row_attack import RowAttacker
from temper.app.sets import JudgedSets, load_sets
from temper.data.examples import Splits
from temper.study.plan import StudyConfig
from temper.study.store import StudyFolder
from temper.training.checkpoint_folder import RunFolder
from temper.training.config import RunConfig
from temper.training.progress import Progress
from temper.training.run import train

Place = tuple[str, int]
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
    sets: JudgedSets
    keys: Mapping[Place, str]

    def run(self, place: Place) -> RunFolder:
        """Return the folder of a run."""
        column, seed = place
        return self.folder.run(column, seed, self.keys[place])

    def do(self, place: Place, *, progress: Progress, attack: RowAttacker) -> float:
        """Train and judge one run; what is finished of it is left.

        Args:
            place: Which.
            progress: Hears of its steps and of its evaluation.
            attack: Runs the attacks that its settings name, or knows what they found.

        Returns:
            The median seconds of a step.

        Raises:
            TemperError: Where model or method does not fit, or a loss is not finite.
        """
        run, settings = self.run(place), self.config.runs[place]
        said = _Unsaid(progress, self.splits.notices)
        train(settings, run.path, splits=self.splits, progress=said, attack=attack)
        seconds = float((run.record() or {})["times"]["step_seconds_median"])
        self._judge(run, settings, progress)
        return seconds

    def _judge(self, run: RunFolder, settings: RunConfig, progress: Progress) -> None:
        out = run.path / "evaluation"
        record = run.record() or {}
        max_length = settings.data.max_length
        key = judging_key(
            str(record.get("key")), self.sets, self.config.evaluate, max_length=max_length
        )
        if evaluation_key(out) == key:
            return
        predictor = load_predictor(
            str(run.path),
            max_length=max_length,
            batch_size=self.config.evaluate.batch_size,
            device=settings.train.device,
        )
        judge(
            predictor,
            with_reference(self.sets, str(run.path), predictor, self.config.evaluate),
            self.config.evaluate,
            out,
            model=run.path.name,
            key=key,
            run=record.get("key"),
            progress=progress,
        )


def judged_sets(config: StudyConfig, splits: Splits) -> JudgedSets:
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


class _Unsaid(Progress):
    """Pass on all but the data's notices: the study has said them once, for all runs."""

    def __init__(self, progress: Progress, said: tuple[str, ...]) -> None:
        self._progress, self._said = progress, said

    def notice(self, text: str) -> None:
        if text not in self._said:
            self._progress.notice(text)

    def steps(self, done: int, total: int, *, loss: float | None) -> None:
        self._progress.steps(done, total, loss=loss)

    def logged(self, entry: Mapping[str, Any]) -> None:
        self._progress.logged(entry)

    def evaluation(self, done: int, total: int, what: str) -> None:
        self._progress.evaluation(done, total, what)
