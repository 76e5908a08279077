"""`temper.fit` and ``temper fit``: train, evaluate and calibrate a classifier in one call.

First some rows are set aside. Candidates are compared on folds of the other rows
(`temper.study.fit`). The best one is trained on all of those rows. It is evaluated and calibrated
on the rows that were set aside.
"""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from temper.api.keywords import TRAIN, Many, Source, TrainKeywords
from temper.api.nested import (
    default_folder,
    nested,
    of_output_folder,
    of_paths,
    of_tables,
    refuse,
    split_list,
)
from temper.checkpoints.checkpoint import Checkpoint
from temper.checkpoints.folder import difference_in_words, held_folder, read_json
from temper.checkpoints.identity import digest
from temper.data.examples import LABELS_OF, Examples
from temper.data.reading import splits_read_as
from temper.data.sources import load_splits
from temper.display.bars import Bars
from temper.display.wording import plural
from temper.errors import CheckpointError, DataError, ModelError, SettingError
from temper.files import write_json, write_text
from temper.progress import Progress
from temper.study.goals import Budget

if TYPE_CHECKING:
    from temper.calibration.classifier import Classifier

RECORD, LABELS, PAGE = "fit.json", "labels.csv", "report.html"
START, MODEL, EVALUATION, EXPORT = PARTS = "start", "model", "evaluation", "export"
MODELS, BUDGET = "minilm", "10m"
SET_ASIDE = 0.2
"""Fraction of the rows that is set aside if the data have no evaluation split."""
SEARCH = 0.8
"""Fraction of the budget for the search and the training; the rest is for the evaluation."""
PERSPECTIVES = ("task", "calibration", "coverage", "token_corruption")


@dataclass(frozen=True)
class Fitted:
    """The result of `fit`: the out folder and the content of its ``fit.json``."""

    folder: Path
    record: Mapping[str, Any]

    @property
    def model(self) -> Path:
        return self.folder / MODEL

    @property
    def page(self) -> Path:
        """The report: the findings, then the evaluation."""
        return self.folder / PAGE

    @property
    def findings(self) -> list[str]:
        return list(self.record["findings"])

    def load(self) -> Classifier:
        """Load the model with its calibration."""
        from temper.calibration.classifier import Classifier

        return Classifier.load(self.model)

    def __str__(self) -> str:
        return "\n".join([*self.findings, str(self.folder)])


def fit(
    data: Source | None = None,
    *,
    models: Many = MODELS,
    budget: str = BUDGET,
    out: str | Path | None = None,
    config: Any = None,
    progress: Progress | None = None,
    **settings: Unpack[TrainKeywords],
) -> Fitted:
    """Train the best classifier within a time budget, evaluate it and calibrate it.

    Args:
        data: Rows with one class each, as in `temper.train`. If there is no evaluation split, a
            fifth of the rows is set aside for it.
        models: Encoders to choose from: Hub ids, folders, or short names of ``temper list models``.
        budget: Target for the total time, for example ``10m``. It is checked before each training.
        out: Output folder. Default: ``runs/DATA-fit-HASH``, the same for the same settings.
        config: TOML file or nested settings, which the keywords override.
        progress: Receives training runs, steps and notices; None shows bars.
        settings: As in `temper.train`, without method, learning rate and epochs, which are chosen.

    Returns:
        The folder with ``report.html``, ``model`` (trained and calibrated), ``evaluation``,
        ``export`` (a pipeline that needs no Temper), ``labels.csv`` and ``fit.json``.

    Raises:
        TemperError: If data, models or settings do not fit, or the folder has another result.
    """
    progress = progress or Bars()
    tree = nested(TRAIN, config, {"data": data, **settings})
    names = split_list(models, "--models")
    folder = Path(default_folder(tree, "fit", budget, names) if out is None else out)
    time_limit, *_ = refuse(
        partial(_seconds, budget),
        *(partial(_check, tree, name) for name in names),
        *of_tables(tree),
        *(check for name in names for check in of_paths({**tree, "model": name})),
        of_output_folder(folder, "result", RECORD),
    )
    if out is None:
        progress.info(f"No --out: the result is written to {folder}.")
    begun = time.monotonic()
    progress.info(f"Loading {', '.join(names)} ...")
    from temper.training.config import RunConfig

    table = {"dev_fraction": SET_ASIDE, "drop_overlap": True, **tree.get("data", {})}
    tree = {**tree, "data": table}
    splits = load_splits(RunConfig.of({**tree, "model": names[0]}).data)
    progress.info_all(splits_read_as(splits))
    progress.notice_all([*splits.notices, *_repeated(splits.train)])
    if splits.train.kind != "classification":
        as_classes = splits.train.kind in ("regression", "multi_label")
        classes = ", or pass --set data.kind=classification" if as_classes else ""
        raise DataError(
            "`temper fit` takes rows with one class each, and the labels of "
            f"{splits.train.origin} are {LABELS_OF[splits.train.kind]}. Use `temper "
            f"train`{classes}."
        )
    hashes = {"training rows": splits.train.hash, "evaluation rows": splits.dev.hash}
    request: dict[str, Any] = {"models": names, "budget": budget, "settings": tree, **hashes}
    started: dict[str, Any] = {"key": digest(request), "request": request}
    kept = read_json(folder / RECORD) if (folder / RECORD).exists() else started
    if kept["key"] != started["key"]:
        what = difference_in_words(kept["request"], request)
        raise CheckpointError(
            f"{folder} has another result: {what}. Choose another folder for this one."
        )
    if "findings" in kept:
        progress.notice(f"Up to date: {folder}")
        return Fitted(folder, kept)
    from temper.study.fit import Search

    with held_folder(folder):
        # A stopped search is repeated: its runs are short, and not kept.
        for name in PARTS:
            shutil.rmtree(folder / name, ignore_errors=True)
        write_json(folder / RECORD, started)
        search = Search(
            tree, splits.train, models=names, seconds=SEARCH * time_limit, progress=progress
        )
        choice = search.run()
        search.train_best(folder / START, folder / MODEL, splits)
        evaluation = _evaluate(folder, progress)
        calibration = _calibrate(folder, progress)
        _export(folder, progress)
        from temper.api.findings import candidates_of, findings, suspicious_labels, title_of

        labels = suspicious_labels(choice)
        write_text(folder / LABELS, labels.to_csv(index=False, lineterminator="\n"))
        results = findings(choice, splits, labels, evaluation, calibration, folder / MODEL)
        seconds = round(time.monotonic() - begun, 1)
        record = {
            **started,
            "title": title_of(choice.trials[0], evaluation),
            "candidates": candidates_of(choice),
            "findings": results,
            "seconds": seconds,
        }
        _write_page(folder, record)
        write_json(folder / RECORD, record)
        if seconds > time_limit:
            progress.notice(
                f"It took {seconds / 60:.1f} minutes, longer than the budget of "
                f"{budget}: the last training and the evaluation took longer than estimated."
            )
    return Fitted(folder, record)


def _check(tree: Mapping[str, Any], model: str) -> None:
    from temper.training.config import RunConfig, is_scratch

    chosen = [name for name in ("method", "recipe", "tasks", "model") if name in tree]
    train = tree.get("train", {})
    if isinstance(train, Mapping):
        chosen += [name for name in ("learning_rate", "epochs", "max_steps") if name in train]
    if chosen:
        raise SettingError(
            f"`temper fit` chooses {', '.join(chosen)} itself. Leave it out (models are named in "
            "--models), or use `temper train`."
        )
    if is_scratch(model):
        raise SettingError(
            f"{model!r} is trained from scratch, and `temper fit` starts from a pre-trained "
            "encoder. Choose another model, for example minilm."
        )
    RunConfig.of({**tree, "model": model})


def _repeated(rows: Examples) -> list[str]:
    count = len(rows) - len(set(rows.rows))
    labels = Counter(row for row, _ in set(zip(rows.rows, rows.labels or (), strict=True)))
    different = sum(number > 1 for number in labels.values())
    if not count:
        return []
    return [
        f"{count:,} of {len(rows):,} training rows repeat a text. Texts with "
        f"different labels: {different:,}."
    ]


def _seconds(budget: str) -> float:
    parsed = Budget.parse(budget)
    if parsed.unit != "seconds":
        raise SettingError(f"`temper fit` takes a time as --budget, for example 10m, got {budget}.")
    return parsed.amount


def _evaluate(folder: Path, progress: Progress) -> dict[str, Any]:
    from temper.evaluation.evaluate import evaluate_model
    from temper.evaluation.request import EvaluationRequest

    tree = {"evaluate": {"perspectives": list(PERSPECTIVES)}}
    request = EvaluationRequest.of(tree, model=Checkpoint.of(folder / MODEL))
    return evaluate_model(request, folder / EVALUATION, progress=progress)


def _write_page(folder: Path, record: Mapping[str, Any]) -> None:
    from temper.report import Opening, build

    lines = candidate_lines(record["candidates"])
    cells = [list(line.values()) for line in lines]
    opening = Opening(record["title"], record["findings"], list(lines[0]), cells)
    build(folder / EVALUATION, folder / PAGE, opening=opening)


def candidate_lines(candidates: Iterable[Mapping[str, Any]]) -> list[dict[str, str]]:
    """Return a table of ``candidates`` of ``fit.json``: one dict from column to text per line."""
    return [
        {
            "candidate": scores["candidate"],
            "model": Path(scores["model"]).name,
            "measured on": f"{scores['rows']:,} training rows ({plural(scores['folds'], 'fold')})",
            "accuracy": f"{100 * scores['accuracy']:.1f}%",
            "Brier score": f"{scores['brier']:.3f}",
        }
        for scores in candidates
    ]


def _calibrate(folder: Path, progress: Progress) -> dict[str, Any] | None:
    """Calibrate the model on the rows that were set aside; None if they are too few."""
    from temper.calibration.calibrate import calibrate
    from temper.evaluation.request import EvaluationRequest

    request = EvaluationRequest.of({}, model=Checkpoint.of(folder / MODEL))
    try:
        # Its notices are about rows that a user names. Here a finding has the result.
        return calibrate(request, with_dev=True, progress=Progress())
    except (DataError, SettingError) as error:
        progress.notice(f"The model is not calibrated: {error}")
        return None


def _export(folder: Path, progress: Progress) -> None:
    from temper.export.export import export

    try:
        export(Checkpoint.of(folder / MODEL), folder / EXPORT, progress=progress)
    except ModelError as error:
        progress.notice(f"The model is not exported: {error}")
