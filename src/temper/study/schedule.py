"""Run a study on this machine, keeping what is finished; then report."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pandas

from temper import methods, report
from temper.app.named_models import check_named_models
from temper.app.predictors import load_predictor
from temper.app.results import Result
from temper.app.row_attack import RowAttacker, check_augmentation
from temper.data.sources import load_splits
from temper.errors import CheckpointError, TemperError
from temper.evaluation.predictor import Predictor
from temper.evaluation.run import check_before_training
from temper.study.cost import step_cost
from temper.study.pairing import FILE, pair_columns
from temper.study.plan import StudyConfig
from temper.study.store import StudyFolder
from temper.study.work import GridCell, Work, evaluation_sets
from temper.study.workers import check_workers, side_by_side
from temper.training.checkpoint_folder import make_folder, read_json, remove_empty
from temper.training.checks import check_regressions
from temper.training.progress import Progress
from temper.training.run import model_identity, run_key


@dataclass(frozen=True)
class Study(Result):
    """A finished study.

    Args:
        folder: Where it lies.
        page: Its report.
        comparison: Its table.
    """

    folder: Path
    page: Path
    comparison: report.Comparison

    @property
    def title(self) -> str:
        """Model and columns."""
        return f"{self.comparison.model}: {', '.join(self.comparison.columns)}"

    @property
    def scores(self) -> pandas.DataFrame:
        """A line for each score, column and seed, as ``scores.csv`` holds them."""
        return pandas.read_csv(self.folder / "scores.csv")

    def load(self, column: str, seed: int, *, device: str | None = None) -> Predictor:
        """Load the model of a run.

        Args:
            column: Name of its column.
            seed: Its seed.
            device: Where it runs; None takes a GPU where there is one.

        Raises:
            CheckpointError: The study has no such run.
        """
        runs = read_json(self.folder / "study.json")["runs"]
        if str(seed) not in runs.get(column, {}):
            raise CheckpointError(f"{self.folder} has no run of column {column!r}, seed {seed}.")
        return load_predictor(str(self.folder / runs[column][str(seed)]), device=device)


def run_study(
    config: StudyConfig,
    out: Path | str,
    *,
    workers: int = 1,
    progress: Progress | None = None,
) -> Study:
    """Train and evaluate every run of a plan, and write the report.

    Finished runs and evaluations are recognised by their keys and left as they are; a stopped run
    goes on from its last checkpoint. All columns of one seed see the same rows in the same order
    and start from the same head.

    Args:
        config: The checked plan.
        out: The study's folder; made once all data, methods and keys are known to fit.
        workers: Processes that do the runs; 1 does them here, one after the other.
        progress: Hears of runs, steps and evaluations.

    Returns:
        The study, with its table and report.

    Raises:
        TemperError: Where data, model or a method does not fit, the folder holds something else, or
            a loss is not finite.
    """
    check_workers(workers)
    progress = progress or Progress()
    folder = StudyFolder(Path(out))
    any_run = next(iter(config.runs.values()))
    built = {column: methods.build(run.method_config()) for (column, _), run in config.runs.items()}
    splits = load_splits(config.data)
    if splits.train.kind == "regression":
        for column, method in built.items():
            check_regressions(method, [f"Column {column!r}"])
    for text in splits.notices:
        progress.notice(text)
    for run in config.runs.values():
        check_augmentation(run.data, splits.train)
    sets = evaluation_sets(config, splits)
    # The evaluation does the same; here a wrong label or model shows before hours of training.
    check_before_training(sets.data, config.evaluate, splits.train)
    check_named_models(config.evaluate, regression=splits.train.kind == "regression")
    for text in sets.notices:
        progress.notice(text)
    identity = model_identity(any_run.model)
    keys = {cell: run_key(run, splits, identity=identity) for cell, run in config.runs.items()}
    folder.check(config, keys)
    work = Work(config, folder, splits, sets, keys)
    made = make_folder(folder.path)
    try:
        return _Schedule(work, workers, progress).go()
    except TemperError:
        # A model that cannot be loaded shows with the first run; nothing is worth keeping then.
        if made and not (folder.path / "runs").exists():
            (folder.path / "study.json").unlink(missing_ok=True)
            remove_empty(made)
        raise


@dataclass(frozen=True)
class _Schedule:
    """A study between its checks and its report."""

    work: Work
    workers: int
    progress: Progress

    def go(self) -> Study:
        work = self.work
        config, folder = work.config, work.folder
        seconds: dict[str, dict[int, float]] = {column.name: {} for column in config.columns}
        folder.write(config, work.keys, cost={})
        # Closed here, so that no worker outlives an error in what follows.
        with closing(self._runs()) as finished:
            for (column, seed), taken in finished:
                seconds[column][seed] = taken
                cost = step_cost(seconds, reference=config.reference)
                folder.write(config, work.keys, cost=cost)
        self._pair()
        page = report.build(folder.path)
        return Study(folder.path, page, report.comparison(folder.path))

    def _runs(self) -> Generator[tuple[GridCell, float]]:
        """Do all runs, and tell of each that is finished what a step took."""
        if self.workers > 1:
            yield from side_by_side(self.work, workers=self.workers, progress=self.progress)
            return
        order, attack = self.work.config.order(), RowAttacker()
        for number, cell in enumerate(order, start=1):
            self.progress.runs(number, len(order), f"{cell[0]}, seed {cell[1]}")
            yield cell, self.work.do(cell, progress=self.progress, attack=attack)

    def _pair(self) -> None:
        """Compare the columns over examples where one seed is all that there is."""
        work = self.work
        config, folder = work.config, work.folder
        if len(config.seeds) > 1 or len(config.columns) < 2:
            (folder.path / FILE).unlink(missing_ok=True)
            return
        pair_columns(
            folder.path,
            {cell: work.run(cell).path / "evaluation" for cell in config.order()},
            reference=config.reference,
            metric=work.sets.data.metric,
            perspectives=config.evaluate.perspectives,
            seed=config.evaluate.seed,
        )
