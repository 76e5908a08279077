"""Run a study on this machine, reuse finished runs, and write the report."""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import pandas

from temper import report
from temper.checkpoints.checkpoint import Checkpoint
from temper.checkpoints.folder import held_folder, read_json
from temper.checkpoints.identity import model_identity
from temper.cluster.machines import Cluster
from temper.cluster.store import Store
from temper.data.collator import Collator
from temper.data.encode import LazilyEncoded
from temper.data.examples import NAMED, Splits
from temper.data.reading import splits_read_as
from temper.data.sources import load_splits
from temper.display import folders
from temper.display.folders import is_plain
from temper.display.wording import plural
from temper.errors import CheckpointError, SettingError, TemperError
from temper.evaluation.evaluate import stored_key
from temper.evaluation.folder import read
from temper.evaluation.loading import check_named_models, load_predictor
from temper.evaluation.pairing import (
    RESAMPLES,
    RowSamples,
    paired_differences,
    row_variances,
)
from temper.evaluation.predictor import Predictor
from temper.evaluation.run import check_before_training
from temper.evaluation.sets import EvaluationSets
from temper.files import check_free, size_in_words, write_json
from temper.functional.units import MARGIN
from temper.methods.soup import members_of
from temper.models.names import resolve
from temper.progress import Progress
from temper.results import Result
from temper.settings import override
from temper.study.alternatives import passes_over_rows
from temper.study.cluster import Job, do_runs
from temper.study.plan import Column, StudyConfig
from temper.study.work import GridCell, StudyFolder, Work, evaluation_sets
from temper.study.workers import run_in_words, side_by_side
from temper.training.checks import check_head, check_in_windows
from temper.training.config import run_key
from temper.training.cost import PLAIN, passes_of
from temper.training.prepared import label_names, make_network, with_head

PAIRED = "paired.json"
"""File of the paired statistics; see `_pair_columns`."""


@dataclass(frozen=True, repr=False)
class Study(Result):
    """A finished study: its folder, its report and its table.

    With an object ``store``, the folder is a temporary copy without weights.
    """

    folder: Path
    page: Path
    comparison: report.Comparison
    store: Store | None = None

    @property
    def title(self) -> str:
        return f"{self.comparison.model}: {', '.join(self.comparison.columns)}"

    @property
    def scores(self) -> pandas.DataFrame:
        """One row per score, column and seed, as in ``scores.csv``."""
        return pandas.read_csv(self.folder / "scores.csv")

    def _read(self) -> tuple[folders.Source, report.Comparison]:
        return folders.read(self.folder), self.comparison

    def load(self, column: str, seed: int, *, device: str | None = None) -> Predictor:
        """Load the model of a run.

        Args:
            column: Name of its column.
            seed: Its seed.
            device: None uses a GPU if there is one.

        Raises:
            CheckpointError: If the study has no such run.
        """
        runs = read_json(self.folder / "study.json")["runs"]
        if str(seed) not in runs.get(column, {}):
            raise CheckpointError(
                f"{self.folder} has no run of method {column!r}, seed {seed}. Its methods are "
                f"{', '.join(runs)}."
            )
        run = self.folder / runs[column][str(seed)]
        if self.store is not None:
            self.store.fetch(run, weights=True)
        return load_predictor(Checkpoint.of(run), device=device)


def run_study(
    config: StudyConfig,
    out: Path | str,
    *,
    workers: int = 1,
    cluster: Cluster | None = None,
    equal_compute: bool = False,
    margin: float = MARGIN,
    detect: float | None = None,
    splits: Splits | None = None,
    progress: Progress | None = None,
) -> Study:
    """Train and evaluate every run of a plan, and write the report.

    Finished runs and evaluations, identified by their keys, are reused; a stopped run resumes from
    its last checkpoint. All columns of a seed read the same rows in the same order and start from
    the same head.

    Args:
        config: The checked plan.
        out: The study's folder; created after all checks.
        workers: Number of worker processes; 1 does the runs in this process.
        cluster: Ray cluster in place of workers; ``out`` then comes from
            `temper.study.cluster.opened`.
        equal_compute: Whether to add plain fine-tuning with the compute of the most expensive
            method.
        margin: Largest negligible difference in points.
        detect: Difference in points; the report states how many seeds detect it.
        splits: The data of the plan, if it is loaded already.
        progress: Receives runs, steps and evaluations.
    """
    if cluster is not None and workers > 1:
        raise SettingError(
            "--workers (local processes) and --cluster exclude each other. Pass one."
        )
    store = None if cluster is None else cluster.store
    progress = progress or Progress()
    path = Path(out)
    splits = load_splits(config.data) if splits is None else splits
    sets = checked_sets(config, splits, progress)
    if equal_compute:
        config = with_equal_compute(config, splits, progress)
    identity = model_identity(config.any_run.model)
    keys = {cell: run_key(run, splits, identity=identity) for cell, run in config.runs.items()}
    folder = StudyFolder(path, config, keys)
    folder.check()
    work = Work(folder, splits, sets)
    seconds: dict[str, dict[int, float | None]] = {column.name: {} for column in config.columns}
    with held_folder(path) as is_new:
        # Another process may have written it since the first check.
        folder.check()
        if store is None:
            check_disk_space(folder, workers=workers)
        try:
            folder.write(cost={})
            # Closed here, so that no worker outlives a later error.
            with closing(_runs(work, workers, cluster, progress)) as finished:
                for (column, seed), taken in finished:
                    seconds[column][seed] = taken
                    folder.write(cost=step_cost(seconds, reference=config.reference))
        except (TemperError, KeyboardInterrupt, SystemExit):
            # If the model of the first run cannot be loaded, remove the empty study.
            if is_new and not (path / "runs").exists():
                (path / "study.json").unlink(missing_ok=True)
            raise
        return replace(finish_study(work, margin=margin, detect=detect), store=store)


def check_disk_space(folder: StudyFolder, *, workers: int) -> None:
    """Raise a `WriteError`, before training, if there is no room for the models of a study."""
    begins = [
        settings
        for cell, settings in folder.config.runs.items()
        # Adapters are small, and the size of a network from scratch is unknown before it is built.
        if settings.architecture is None
        and settings.train.adapter is None
        and not folder.run(cell).path.exists()
    ]
    if not begins:
        return
    # None are found if the model is not in a folder of this machine.
    weights = Path(resolve(begins[0].model)).expanduser().glob("*.safetensors")
    if size := sum(file.stat().st_size for file in weights):
        number, at_once = len(begins), min(workers, len(begins))
        what = f"all of {plural(number, 'run')} of {size_in_words(size)} of weights each"
        # A run in progress also has a checkpoint: weights and two optimizer moments.
        check_free(folder.path, (number + 3 * at_once) * size, what=what)


def checked_sets(config: StudyConfig, splits: Splits, progress: Progress) -> EvaluationSets:
    """Load a plan's evaluation sets; raise if sets, data, model or methods do not fit."""
    for (column, _), run in config.runs.items():
        method = run.method_config()
        check_head(method, {f"Method {column!r}": splits.train.kind})
        if config.data.windows is not None:
            check_in_windows(method)
    sets = evaluation_sets(config, splits)
    progress.notice_all(sets.seen)
    progress.info_all(splits_read_as(splits))
    progress.notice_all(splits.notices)
    # The evaluation checks this too; here a wrong label or model is found before training.
    check_before_training(sets.data, config.evaluate, with_head(config.any_run, splits).train)
    check_named_models(config.evaluate, regression=splits.train.kind == "regression")
    progress.notice_all(notice for notice in sets.notices if notice not in sets.seen)
    return sets


def finish_study(work: Work, *, margin: float = MARGIN, detect: float | None = None) -> Study:
    """Compare the columns of a study whose runs are done, and write its report."""
    _pair_columns(work)
    return reported(work.folder.path, margin=margin, detect=detect)


def reported(path: Path, *, margin: float = MARGIN, detect: float | None = None) -> Study:
    """Compare the columns in a study's folder, and write the report."""
    source = folders.read(path)
    comparison = report.compare(source, margin=margin, detect=detect)
    return Study(path, report.write_report(source, comparison), comparison)


def _runs(
    work: Work, workers: int, cluster: Cluster | None, progress: Progress
) -> Generator[tuple[GridCell, float | None]]:
    """Do all runs of a study; yield finished ones with the median seconds of a step."""
    order = work.folder.config.order()
    if cluster is not None:
        jobs = [Job(work.folder, cell) for cell in order]
        with cluster.connection(), closing(do_runs(jobs, cluster, progress)) as done:
            for job, seconds in done:
                yield job.cell, seconds
    elif workers > 1:
        yield from side_by_side(work, workers=workers, progress=progress)
    else:
        for number, cell in enumerate(order, start=1):
            progress.runs(number, len(order), run_in_words(cell))
            yield cell, work.do(cell, progress=progress)


def step_cost(
    seconds: Mapping[str, Mapping[int, float | None]], *, reference: str
) -> dict[str, dict[str, float]]:
    """Compare median step times. ``seconds`` is column -> seed -> time, None if unknown.

    The result has ``step_seconds`` (median over seeds) and ``over_reference`` (median over common
    seeds, if any).

    Example:
        >>> step_cost({"plain": {0: 1.0}, "uegr": {0: 2.5}}, reference="plain")["uegr"]
        {'step_seconds': 2.5, 'over_reference': 2.5}
    """
    base = seconds.get(reference, {})
    cost = {}
    for column, taken in seconds.items():
        by_seed = {seed: value for seed, value in taken.items() if value is not None}
        if not by_seed:
            continue
        cost[column] = {"step_seconds": median(by_seed.values())}
        ratios = [value / of for seed, value in by_seed.items() if (of := base.get(seed))]
        if ratios:
            cost[column]["over_reference"] = median(ratios)
    return cost


def _pair_columns(work: Work) -> None:
    """Store the statistics of each column's difference from the reference, paired by row.

    With one seed, they are the difference and its interval. With several, they are the variance
    over rows, which the report adds to the variance over seeds. Differences from longer plain
    fine-tuning are stored too. Statistics of unchanged evaluations are reused.
    """
    folder, config = work.folder, work.folder.config
    file = folder.path / PAIRED
    if len(config.columns) < 2:
        file.unlink(missing_ok=True)
        return
    written: dict[str, Any] = read_json(file) if file.exists() else {}
    kept, kept_equal = written.get("columns", {}), written.get("equal_compute", {})
    metric, chosen, seed = work.sets.data.metric, config.evaluate.perspectives, config.evaluate.seed

    @cache
    def samples_of(evaluation: Path) -> RowSamples:
        return RowSamples.of(read(evaluation).rows, metric, chosen=chosen, seed=seed)

    def evaluations(column: str) -> list[Path]:
        return [folder.run((column, seed)).path / "evaluation" for seed in config.seeds]

    def paired(column: str, other: str, before: Mapping[str, Any]) -> Any:
        sides = evaluations(column), evaluations(other)
        keys = [stored_key(evaluation) for side in sides for evaluation in side]
        if before.get("keys") == keys:
            return before
        if len(config.seeds) > 1:
            scores = [
                {**named, "rows": result.difference, "columns": result.columns}
                for named, result in row_variances(*(list(map(samples_of, side)) for side in sides))
            ]
            return {"seeds": list(config.seeds), "keys": keys, "variances": scores}
        mine, others = (read(side[0]).rows for side in sides)
        differences = paired_differences(mine, others, metric, chosen=chosen, seed=seed)
        return {"seed": config.seeds[0], "keys": keys, "scores": differences}

    names = [column.name for column in config.columns if column.name != config.reference]
    columns = {name: paired(name, config.reference, kept.get(name, {})) for name in names}
    plain = [column.name for column in config.columns if is_plain(column.method, column.settings)]
    equal = {
        other: {
            name: paired(name, other, kept_equal.get(other, {}).get(name, {}))
            for name in names
            if name not in plain
        }
        for other in plain
        if config.reference in plain and other != config.reference
    }
    write_json(file, {"resamples": RESAMPLES, "columns": columns, "equal_compute": equal})


def with_equal_compute(config: StudyConfig, splits: Splits, progress: Progress) -> StudyConfig:
    """Add plain fine-tuning with the compute of the most expensive column.

    The column is the reference (the first one) with K times its epochs or steps and the suffix
    `_xK`; K is the rounded ratio of forward passes in training of the most expensive column to the
    reference. The plan stays the same if the reference is not plain fine-tuning, no column costs
    1.5 times as much, or plain fine-tuning of that length is among the columns.
    """
    reference = config.columns[0]
    if not _plain(reference) or all(_plain(column) for column in config.columns):
        return config
    result = costs(config, splits)
    others = [column.name for column in config.columns if not _plain(column)]
    costliest = max(others, key=lambda name: result.get(name, 0.0))
    times = math.floor(result.get(costliest, 0.0) + 0.5)
    name = f"{reference.name}_x{times}"
    longest = max(result[column.name] for column in config.columns if _plain(column))
    # Do not replace a column of the same name.
    if times < 2 or longest >= times - 0.5 or name in [column.name for column in config.columns]:
        return config
    train = config.runs[reference.name, config.seeds[0]].train
    steps = "epochs" if train.max_steps is None else "max_steps"
    settings = override(reference.settings, [(("train", steps), times * getattr(train, steps))])
    progress.notice(
        f"`{name}` is added to the comparison: plain fine-tuning that trains {times} times as "
        f"long, because `{costliest}` costs about {result[costliest]:.1f}x plain fine-tuning. "
        "--no-equal-compute leaves it out."
    )
    return config.with_column(Column(name, reference.method, settings))


def costs(config: StudyConfig, splits: Splits) -> dict[str, float]:
    """Return the training cost of each column in forward passes, relative to the first one (plain).

    The passes of a step are counted on a network, and multiplied by the number of steps. Columns
    whose passes cannot be counted are left out.
    """
    runs = {column.name: config.runs[column.name, config.seeds[0]] for column in config.columns}
    reference = runs[config.reference]
    rows = with_head(reference, splits).train
    labels = label_names(rows) if rows.kind in NAMED else None
    model, tokenizer, _ = make_network(reference, rows, labels=labels)
    encoded = LazilyEncoded(rows, tokenizer, max_length=reference.data.max_length)
    batch = Collator(tokenizer)(encoded.shortest(2))

    result = {}
    for column in config.columns:
        run = runs[column.name]
        length = passes_over_rows(run, len(rows)) / passes_over_rows(reference, len(rows))
        method = run.method_config()
        if _plain(column):
            result[column.name] = length
        elif (passes := passes_of(model, method, batch)) is not None:
            result[column.name] = members_of(method.rule) * length * passes / PLAIN
    return result


def _plain(column: Column) -> bool:
    return is_plain(column.method, column.settings)
