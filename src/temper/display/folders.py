"""Read the input of a report: a study, run or evaluation folder (docs/formats.md).

All three become a `Source`: a run is read as a study with one method and one seed, an evaluation as
a run without ``run.json``. No model is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from temper.checkpoints.checkpoint import Checkpoint
from temper.checkpoints.folder import RUN, RunFolder, read_json
from temper.display.records import (
    CostRecord,
    Parameters,
    RunRecord,
    ScoreRecord,
    ScoresRecord,
    StudyRecord,
    parse,
    run_record,
)
from temper.errors import CheckpointError, unknown
from temper.files import check_table
from temper.lazy import pandas as pd
from temper.lazy import parquet as pq
from temper.lazy import pyarrow as pa
from temper.models.names import near_folder

FILE = "scores.parquet"


def read_kept(folder: Path, study: StudyRecord) -> dict[str, Run]:
    """Return folder name -> finished run, for a study that stored its results but no models."""
    scores: dict[tuple[str, int], list[ScoreRecord]] = {}
    try:
        for row in pq.read_table(folder / FILE).to_pylist():
            record = {**row, "parameters": Parameters.of_text(row["parameters"])}
            kept = scores.setdefault((row["column"], row["seed"]), [])
            kept.append(ScoreRecord.model_validate(record))
        runs: dict[str, Run] = {}
        for column, seeds in study.runs.items():
            for seed, name in seeds.items():
                if name not in study.records:
                    continue
                record = joined(study.record, study.records[name])
                evaluation = record.pop("evaluation")
                records = scores.get((column, int(seed)), [])
                where = folder / name
                runs[name] = Run(
                    column,
                    int(seed),
                    where,
                    RunRecord.model_validate(record),
                    where / "evaluation",
                    ScoresRecord.model_validate({**evaluation, "scores": records}),
                )
    except (OSError, pa.ArrowException, KeyError, ValueError, TypeError) as error:
        raise CheckpointError(
            f"The results of the study in {folder} cannot be read: {error}. Restore its study.json "
            f"and {FILE} (docs/formats.md)."
        ) from error
    return runs


def joined(common: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Merge what all records of a study share with the rest of one run's record."""
    whole = dict(common)
    for name, value in own.items():
        both = isinstance(value, dict) and isinstance(whole.get(name), dict)
        whole[name] = joined(whole[name], value) if both else value
    return whole


Kind = Literal["study", "run", "evaluation"]


def read_columns(
    path: Path,
    columns: Sequence[str],
    what: str,
    *,
    optional: Sequence[str] = (),
    perspective: str | None = None,
) -> pd.DataFrame:
    """Read columns of a Parquet file of an evaluation, of one perspective or of all.

    ``optional`` columns may be missing. ``what`` describes the content in errors.
    """
    filters = None if perspective is None else [("perspective", "==", perspective)]
    try:
        known = pq.read_schema(path).names
        if lacking := [name for name in columns if name not in known]:
            raise CheckpointError(f"{path} lacks the columns {lacking}. Evaluate the model again.")
        wanted = [*columns, *(name for name in optional if name in known)]
        if perspective is None:
            check_table(path)
        return pq.read_table(path, columns=wanted, filters=filters).to_pandas()
    except (OSError, UnicodeDecodeError, pa.ArrowException) as error:
        raise CheckpointError(
            f"Cannot read the {what} in {path}: {error}. Evaluate the model again."
        ) from error


@dataclass(frozen=True)
class Run:
    """One trained and evaluated model.

    Args:
        column: Name of the method.
        seed: Seed of the run; 0 for an evaluation without a run.
        folder: Folder of the run or evaluation.
        record: Content of ``run.json``; None for an evaluation without a run.
        evaluation: Folder of ``scores.json`` and ``rows.parquet``; None if not evaluated.
        scores: Content of ``scores.json``; None if not evaluated.
    """

    column: str
    seed: int
    folder: Path
    record: RunRecord | None = None
    evaluation: Path | None = None
    scores: ScoresRecord | None = None

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def rows_kept(self) -> bool:
        return self.evaluation is not None and (self.evaluation / "rows.parquet").exists()

    def rows(
        self, columns: Sequence[str], perspective: str, *, optional: Sequence[str] = ()
    ) -> pd.DataFrame:
        """Read columns of one perspective's rows; empty if ``rows.parquet`` was not stored."""
        if self.evaluation is None or not self.rows_kept:
            return pd.DataFrame(columns=list(columns))
        path = self.evaluation / "rows.parquet"
        return read_columns(
            path, columns, "evaluated rows", optional=optional, perspective=perspective
        )

    def metrics(self) -> list[dict[str, Any]]:
        """Read the entries of ``metrics.jsonl``, in order; empty without this file."""
        return [] if self.record is None else RunFolder(self.folder).logs()


@dataclass(frozen=True)
class Column:
    """A compared method (or configuration): ``runs`` maps seeds to finished runs.

    ``method`` is empty for an evaluation without a run. ``cost`` is that of a step, if measured.
    """

    name: str
    method: str
    settings: dict[str, Any] = field(default_factory=dict)
    runs: dict[int, Run] = field(default_factory=dict)
    cost: CostRecord | None = None


def is_plain(method: str, settings: Mapping[str, Any]) -> bool:
    """Return whether it is plain fine-tuning, of any number of epochs and learning rate."""
    return method == "plain" and {name for name, value in settings.items() if value} <= {"train"}


@dataclass(frozen=True)
class Source:
    """Everything a report is built from.

    Args:
        reference: Method that the others are compared with; None if there is only one.
        missing: A sentence for every planned run that cannot be used.
        data: Settings of the training data, as in ``study.json`` or ``run.json``.
        sets: Name of a shift, adversarial or OOD set -> source.
    """

    kind: Kind
    folder: Path
    model: str
    reference: str | None
    columns: tuple[Column, ...]
    seeds: tuple[int, ...]
    missing: tuple[str, ...] = ()
    data: dict[str, Any] = field(default_factory=dict)
    sets: dict[str, Any] = field(default_factory=dict)

    @property
    def runs(self) -> list[Run]:
        return [run for column in self.columns for run in column.runs.values()]

    @property
    def first_runs(self) -> dict[str, Run]:
        """Method -> its first run with scores; figures of rows show this run."""
        # Scores of two models have no common scale, so rows of several runs cannot be pooled.
        result: dict[str, Run] = {}
        for run in self.runs:
            if run.scores is not None:
                result.setdefault(run.column, run)
        return result

    @property
    def drawn_seeds(self) -> str:
        """Caption with the seeds of `first_runs`; empty if there is only one seed."""
        several = any(len(column.runs) > 1 for column in self.columns)
        return "The figure shows the first seed of each method." if several else ""


def _evaluated(run: Run, folder: Path) -> Run:
    if not (folder / "scores.json").exists():
        return run
    scores = parse(folder / "scores.json", ScoresRecord)
    return replace(run, evaluation=folder, scores=scores)


def evaluation_of(model: Checkpoint) -> tuple[Path | None, str]:
    """Return the folder of a run's evaluation: inside the run's, or next to it as RUN-evaluation.

    If it cannot be used, the folder is None, and the second result is the reason.
    """
    whole = model.folder.resolve()
    for result in (model.folder / "evaluation", whole.with_name(f"{whole.name}-evaluation")):
        if (result / "scores.json").exists():
            fault = evaluation_fault(result, model)
            return (None, fault) if fault else (result, "")
    return None, ""


def evaluation_fault(evaluation: Path, model: Checkpoint) -> str:
    """Return why an evaluation is not one of a run; empty if it is, or if it names no run."""
    if not (evaluation / "scores.json").exists():
        raise CheckpointError(
            f"{evaluation} has no scores.json. Pass the --out folder of `temper evaluate`."
        )
    path = evaluation / "settings.json"
    run = read_json(path).get("run") if path.exists() else None
    if model.key is None or run in (None, model.key):
        return ""
    return (
        f"{evaluation} is an evaluation of the run {run}, and this one is {model.key}. Evaluate "
        "it again."
    )


def _read_run(folder: Path, column: str, seed: int | None = None) -> Run | str:
    """Return the run in a folder, or the reason why it cannot be used."""
    record = run_record(Checkpoint.of(folder))
    if record is None:
        return f"no {RUN} in {folder}"
    if record.status != "finished":
        return f"not finished (status {record.status!r})"
    if seed is not None and record.seed != seed:
        raise CheckpointError(
            f"{folder / RUN} has seed {record.seed}, but study.json lists it as {seed}. Run "
            "`temper compare` again with another --out."
        )
    return _evaluated(Run(column, record.seed, folder, record), folder / "evaluation")


def _read_study(folder: Path) -> Source:
    study = parse(folder / "study.json", StudyRecord)
    names = [column.name for column in study.columns]
    if len(set(names)) != len(names):
        raise CheckpointError(f"{folder / 'study.json'} lists a method twice: {names}. Restore it.")
    for name in [study.reference, *study.runs, *study.cost]:
        if name not in names:
            raise CheckpointError(f"{folder / 'study.json'}: {unknown('method', name, names)}")
    kept = read_kept(folder, study) if (folder / FILE).exists() else None
    columns, missing = [], []
    for plan in study.columns:
        runs: dict[int, Run] = {}
        for seed in study.seeds:
            where = study.runs.get(plan.name, {}).get(str(seed))
            run: Run | str = "not run"
            if where is not None and kept is not None:
                run = kept.get(where, "its scores were not stored")
            elif where is not None:
                run = _read_run(folder / where, plan.name, seed)
            if isinstance(run, Run) and run.scores is None:
                run = "not evaluated"
            if isinstance(run, str):
                missing.append(f"{plan.name}, seed {seed}: {run}.")
            else:
                runs[seed] = run
        columns.append(
            Column(plan.name, plan.method, plan.settings, runs, study.cost.get(plan.name))
        )
    if not any(column.runs for column in columns):
        raise CheckpointError(
            f"The study in {folder} has no finished and evaluated run. {' '.join(missing)} "
            "Run `temper compare` again with the same --out to finish it."
        )
    return Source(
        kind="study",
        folder=folder,
        model=study.model,
        reference=study.reference,
        columns=tuple(columns),
        seeds=tuple(study.seeds),
        missing=tuple(missing),
        data=study.data,
        sets={**study.shift, **study.adversarial, **study.anomaly},
    )


def read(folder: Path | str) -> Source:
    """Read a study, run or evaluation folder.

    Raises:
        CheckpointError: There is no such folder, a file is damaged, or no run can be used.
    """
    folder = Path(folder)
    if (folder / "study.json").exists():
        return _read_study(folder)
    model = Checkpoint.of(folder)
    if (record := run_record(model)) is not None:
        run = _read_run(folder, record.method)
        if isinstance(run, str):
            raise CheckpointError(
                f"The run in {folder} is {run}. Resume it before reporting on it."
            )
        evaluation, fault = evaluation_of(model)
        if run.scores is None and evaluation is not None:
            run = _evaluated(run, evaluation)
        return Source(
            "run",
            folder,
            record.model,
            None,
            (Column(run.column, record.method, {}, {run.seed: run}),),
            (run.seed,),
            (fault,) if fault else (),
            data=record.settings.get("data", {}),
        )
    if (folder / "scores.json").exists():
        run = _evaluated(Run("model", 0, folder), folder)
        assert run.scores is not None  # narrows the type: the file was just found
        return Source(
            "evaluation", folder, run.scores.model, None, (Column("model", "", {}, {0: run}),), (0,)
        )
    if (folder / "fit.json").exists():
        raise CheckpointError(
            f"{folder} is a folder of `temper fit`, and its report is finished: "
            f"{folder / 'report.html'}. A report of its evaluation: "
            f"temper report {folder / 'evaluation'}"
        )
    what = "has no study.json, run.json or scores.json" if folder.is_dir() else "is not a folder"
    raise CheckpointError(
        f"{folder} {what}.{near_folder(folder)} Pass the --out folder of `temper compare`, "
        "`temper train` or `temper evaluate`."
    )
