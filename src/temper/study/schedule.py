"""Run a study on this machine: run after run, keeping what is finished; then report."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from temper import methods, report
from temper.data.examples import Splits
from temper.data.sources import load_splits
from temper.errors import TemperError
from temper.evaluation.checks import check_before_training
from temper.study.attacked import RowAttacker, check_augmentation
from temper.study.cost import step_cost
from temper.study.judge import judge, judging_key
from temper.study.named_models import check_named_models
from temper.study.pairing import FILE, pair_columns
from temper.study.plan import StudyConfig
from temper.study.predictors import load_predictor
from temper.study.reference import with_reference
from temper.study.sets import JudgedSets, load_sets
from temper.study.store import StudyFolder, evaluation_key
from temper.training.checkpoint_folder import RunFolder, make_folder, remove_empty
from temper.training.config import RunConfig
from temper.training.progress import Progress
from temper.training.run import model_identity, run_key, train


@dataclass(frozen=True)
class Study:
    """A finished study.

    Args:
        folder: Where it lies.
        page: Its report.
        comparison: Its table.
    """

    folder: Path
    page: Path
    comparison: report.Comparison


def run_study(config: StudyConfig, out: Path | str, *, progress: Progress | None = None) -> Study:
    """Train and evaluate every run of a plan, one after the other, and write the report.

    Finished runs and evaluations are recognised by their keys and left as they are; a stopped run
    goes on from its last checkpoint. All columns of one seed see the same rows in the same order
    and start from the same head.

    Args:
        config: The checked plan.
        out: The study's folder; made once all data, methods and keys are known to fit.
        progress: Hears of runs, steps and evaluations.

    Returns:
        The study, with its table and report.

    Raises:
        TemperError: Where data, model or a method does not fit, the folder holds something else, or
            a loss is not finite.
    """
    progress = progress or Progress()
    folder = StudyFolder(Path(out))
    any_run = next(iter(config.runs.values()))
    for run in config.runs.values():
        methods.build(run.method_config())
    splits = load_splits(config.data)
    for text in splits.notices:
        progress.notice(text)
    for run in config.runs.values():
        check_augmentation(run.data, splits.train)
    sets = _judged_sets(config, any_run, splits)
    for text in sets.notices:
        progress.notice(text)
    identity = model_identity(any_run.model)
    keys = {place: run_key(run, splits, identity=identity) for place, run in config.runs.items()}
    folder.check(config, keys)
    work = _Work(config, folder, splits, sets, keys, progress)
    made = make_folder(folder.path)
    try:
        return work.go()
    except TemperError:
        # A model that cannot be loaded shows with the first run; nothing is worth keeping then.
        if made and not (folder.path / "runs").exists():
            (folder.path / "study.json").unlink(missing_ok=True)
            remove_empty(made)
        raise


@dataclass(frozen=True)
class _Work:
    """A study between its checks and its report."""

    config: StudyConfig
    folder: StudyFolder
    splits: Splits
    sets: JudgedSets
    keys: dict[tuple[str, int], str]
    progress: Progress

    def go(self) -> Study:
        seconds: dict[str, dict[int, float]] = {column.name: {} for column in self.config.columns}
        order, attack = self.config.order(), RowAttacker()
        self.folder.write(self.config, self.keys, cost={})
        for number, (column, seed) in enumerate(order, start=1):
            self.progress.runs(number, len(order), f"{column.name}, seed {seed}")
            run = self.folder.run(column.name, seed, self.keys[column.name, seed])
            train(
                self.config.runs[column.name, seed],
                run.path,
                splits=self.splits,
                progress=_Unsaid(self.progress, self.splits.notices),
                attack=attack,
            )
            seconds[column.name][seed] = _step_seconds(run)
            self._evaluate(run, self.config.runs[column.name, seed])
            cost = step_cost(seconds, reference=self.config.reference)
            self.folder.write(self.config, self.keys, cost=cost)
        self._pair()
        page = report.build(self.folder.path)
        return Study(self.folder.path, page, report.comparison(self.folder.path))

    def _pair(self) -> None:
        """Compare the columns over examples where one seed is all that there is."""
        if len(self.config.seeds) > 1 or len(self.config.columns) < 2:
            (self.folder.path / FILE).unlink(missing_ok=True)
            return
        pair_columns(
            self.folder.path,
            {
                (column.name, seed): self.folder.run(
                    column.name, seed, self.keys[column.name, seed]
                ).path
                / "evaluation"
                for column, seed in self.config.order()
            },
            reference=self.config.reference,
            metric=self.sets.data.metric,
            perspectives=self.config.evaluate.perspectives,
            seed=self.config.evaluate.seed,
        )

    def _evaluate(self, run: RunFolder, settings: RunConfig) -> None:
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
            progress=self.progress,
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

    def evaluation(self, done: int, total: int, what: str) -> None:
        self._progress.evaluation(done, total, what)


def _judged_sets(config: StudyConfig, run: RunConfig, splits: Splits) -> JudgedSets:
    sets = load_sets(
        config.sets,
        settings=run.data,
        evaluate=config.evaluate,
        dev=splits.dev,
        train=splits.train,
    )
    # The evaluation does the same; here a wrong label or model shows before hours of training.
    check_before_training(sets.data, config.evaluate, splits.train)
    check_named_models(config.evaluate, regression=splits.train.kind == "regression")
    return sets


def _step_seconds(run: RunFolder) -> float:
    record = run.record() or {}
    return float(record["times"]["step_seconds_median"])
