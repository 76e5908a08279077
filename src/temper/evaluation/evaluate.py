"""Evaluate one model into a folder: load it and its sets, measure, write the scores."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from temper.checkpoints.checkpoint import Checkpoint
from temper.checkpoints.folder import check_room, difference_in_words, differences, read_json
from temper.checkpoints.identity import digest, model_identity
from temper.data.examples import Examples
from temper.data.labels import LabelKind
from temper.data.reading import read_as
from temper.data.settings import TRAINING_ONLY, UNLABELED, DataSettings
from temper.data.sources import (
    is_taken_whole,
    load_examples,
    load_splits,
    load_task_dev,
    with_configuration,
)
from temper.display.wording import folded
from temper.errors import CheckpointError, SettingError, unknown
from temper.evaluation.classifier import ClassifierPredictor
from temper.evaluation.folder import write_files
from temper.evaluation.lengths import longest_row
from temper.evaluation.loading import (
    check_named_models,
    check_pairs,
    load_predictor,
    named_models,
    predictor_identity,
    unknown_in,
    with_reference,
)
from temper.evaluation.measurement import without_unknown
from temper.evaluation.predictor import KINDS, Predictor
from temper.evaluation.run import Evaluation, EvaluationData, evaluate
from temper.evaluation.sets import EvaluationSets, load_sets, trained_among, trained_rows
from temper.evaluation.settings import EvaluationSettings, PredictorSettings, SetSources
from temper.files import check_free, check_memory, checksums, put_back, staged_folder, write_json
from temper.functional.precision import bf16_notices
from temper.progress import Progress
from temper.settings import Faults, section

# Settings that may be given for a run's own data, because they do not change how it is read. A
# `kind` that the model predicts equals the run's, whether the run's was given or guessed.
FREE = {"source", "task", "kind", "eval_rows", "eval_split", "seed", "max_length", "group_column"}


NUMBER = 8
"""Bytes of a number."""


def load_evaluated(
    model: Checkpoint, settings: DataSettings, *, predictor: Predictor, labeled: bool | None = True
) -> Examples:
    """Load the rows that a model is evaluated on.

    If the source is the run's training data, the rows are the run's validation rows (also if they
    were held out from the training rows), so no training row is scored. They are read as the run
    read them. A single file or a named split is used whole; other sources use their evaluation
    split. Columns of other sources may have the names of the run's columns.

    The set is named ``dev``. If ``labeled`` is None, it may have no labels.

    Raises:
        DataError: If the data is wrong.
        SettingError: If settings would read the run's own rows differently, or ``kind`` is not the
            kind that the model predicts.
    """
    wanted = KINDS[predictor.gives]
    # Other labels are recognized by their columns.
    kind: LabelKind | None = None
    if wanted in ("classification", "regression", "multi_label"):
        kind = wanted
    if settings.kind not in (None, kind):
        raise SettingError(
            f"`data.kind` is {settings.kind!r}, and what {model} answers is {wanted}. Leave it out."
        )
    trained, known = model.data, model.columns
    if _is_run_data(trained, settings):
        whole = {"eval_rows": None, **dict.fromkeys(UNLABELED)}
        if settings.group_column is not None:
            whole["group_column"] = settings.group_column
        run_data = DataSettings.model_validate({**trained, **whole})
        _check_run_data(model, settings, run_data)
        examples = load_splits(run_data).dev
    elif settings.task is not None:
        examples = load_task_dev(settings, known=known)
    elif is_taken_whole(settings):
        examples = load_examples(
            with_configuration(settings),
            split=settings.eval_split,
            columns=settings.columns,
            kind=kind,
            labeled=labeled,
            reading=settings.reading,
            known=known,
        )
    else:
        examples = load_splits(settings.model_copy(update={"eval_rows": None}), known=known).dev
    if settings.skip_bad_rows:
        examples = without_unknown(examples, predictor.label_names)
    paired = examples.text_pair is not None
    check_pairs(model, model.paired, paired, rows=f"the rows of {settings.source}")
    if settings.eval_rows is not None:
        examples = examples.sample(settings.eval_rows, seed=settings.seed)
    return replace(examples, name="dev")


def which_rows(model: Checkpoint, settings: DataSettings, rows: Examples, *, scored: int) -> str:
    """Return a sentence on the rows that `load_evaluated` returned."""
    trained = model.data
    split = rows.source.get("split")
    drawn = f", drawn with seed {settings.seed}" if len(rows) == settings.eval_rows else ""
    if not _is_run_data(trained, settings):
        # The only split of a file has no name that the user knows.
        alone = settings.eval_split is None and Path(settings.source).is_file()
        among = "" if split is None or alone else f", split {split!r}"
        return f"{scored:,} rows of {settings.source}{among}{drawn} are evaluated."
    carved = split == trained.get("train_split", "train")
    among = "held back from training" if carved else f"split {split!r}"
    return (
        f"{scored:,} rows of {settings.source}{drawn} are evaluated: the dev rows of {model}, "
        f"{among}."
    )


def _is_run_data(trained: Mapping[str, Any], settings: DataSettings) -> bool:
    """Return whether the requested rows are the validation rows of the run."""
    return (
        "source" in trained
        and _same_source(str(trained["source"]), settings.source)
        and settings.eval_split is None
    )


def measure(
    predictor: Predictor,
    sets: EvaluationSets,
    settings: EvaluationSettings,
    out: Path,
    *,
    model: str,
    key: str,
    run: str | None = None,
    asked: Mapping[str, Any] | None = None,
    thresholds: tuple[float, ...] | None = None,
    progress: Progress | None = None,
) -> Evaluation:
    """Measure a model and write the evaluation.

    An older evaluation in ``out`` is replaced once the new one is complete. ``key`` and ``run`` are
    fingerprints of the evaluation and of the training run; ``asked`` has further tables of settings
    to store.

    Raises:
        MemoryLimitError: The predictions would not fit into free memory.
        WriteError: They would not fit on the disk.
    """
    check_size(sets.data, out)
    on_progress = (progress or Progress()).evaluation
    # The lock is kept while measuring, so that no other process does the same work.
    with staged_folder(out) as staged:
        measured = evaluate(
            predictor, sets.data, settings, model=model, thresholds=thresholds, progress=on_progress
        )
        notices = dict.fromkeys((*sets.notices, *measured.notices))
        evaluation = replace(measured, notices=tuple(notices), missing=sets.missing, seen=sets.seen)
        write_files(evaluation, staged)
        settings_file = {
            "key": key,
            **({} if run is None else {"run": run}),
            "evaluate": settings.model_dump(mode="json"),
            **(asked or {}),
            "files": checksums(staged),
        }
        write_json(staged / "settings.json", settings_file)
    return evaluation


def check_size(data: EvaluationData, out: Path) -> None:
    """Raise before any work if the predictions do not fit into memory or on the disk.

    The estimate covers one prediction per text; perspectives need more.

    Raises:
        MemoryLimitError: There is not enough free memory.
        WriteError: There is not enough free disk space.
    """
    sets = (data.dev, *data.shift.values(), *data.adversarial.values(), *data.anomaly.values())
    rows = sum(len(examples) for examples in sets)
    # In addition to the probabilities: index, label, prediction, loss and a 16-digit hash.
    wanted = rows * NUMBER * (6 + data.dev.classes)
    check_memory(wanted, what=f"The answers to {rows:,} texts")
    # Hashes are random bytes, so no file format compresses them.
    check_free(out, rows * NUMBER, what="the rows of the evaluation")


def stored_key(folder: Path) -> str | None:
    """Return the fingerprint of an evaluation, None if there is none or its files are damaged."""
    try:
        read_json(folder / "scores.json")
        return str(read_json(folder / "settings.json").get("key"))
    except CheckpointError:
        return None


def changed_since(folder: Path, model: str, tables: Mapping[str, Mapping[str, Any]]) -> str:
    """Describe how a folder's evaluation differs from the requested one."""
    record = read_json(folder / "settings.json")
    before, now = {}, {}
    for name in tables:
        # Sections of perspectives that only one of both measures, and tables that older
        # versions did not store, are not compared.
        known = set(record.get(name, {})) & set(tables[name]) - {"batch_size"}
        before[name], now[name] = (
            {key: table[key] for key in sorted(known)}
            for table in (record.get(name, {}), tables[name])
        )
    named = read_json(folder / "scores.json")["model"]
    if os.path.realpath(named) == os.path.realpath(model):
        named = model
    return difference_in_words({"model": named, **before}, {"model": model, **now})


def evaluation_key(
    model: str, sets: EvaluationSets, settings: EvaluationSettings, *, max_length: int | None
) -> str:
    """Hash everything that an evaluation's result depends on.

    ``model`` is the fingerprint of the weights. The result has 12 hexadecimal digits.
    """
    identities = {
        setting.partition(".")[2]: model_identity(name)
        for setting, name in named_models(settings).items()
    }
    # A default is left out, so that fingerprints of versions without the setting stay valid.
    left_out = {"batch_size", *({"precision"} if settings.precision == "fp32" else ())}
    return digest(
        {
            "model": model,
            "evaluate": settings.model_dump(mode="json", exclude=left_out),
            **sets.fingerprint(),
            **identities,
            "max_length": max_length,
        }
    )


def _check_run_data(model: Checkpoint, settings: DataSettings, run_data: DataSettings) -> None:
    """Raise if settings were given that would be ignored, because the run's are used."""
    given = settings.model_fields_set - FREE
    changed = differences(
        {"data": run_data.model_dump(include=given)}, {"data": settings.model_dump(include=given)}
    )
    if changed:
        raise SettingError(
            f"{model} was trained on {settings.source}, and its dev rows are read with the run's "
            f"settings, but {'; '.join(changed)}. Leave that out, or name the split to read "
            "differently with --set data.eval_split=NAME."
        )


def _same_source(first: str, second: str) -> bool:
    if Path(first).exists() and Path(second).exists():
        return Path(first).resolve() == Path(second).resolve()
    return first == second


PLACES = ("data", "evaluate", "sets", "predictor")
OF_THE_RUN = (
    "source",
    "task",
    "config",
    "kind",
    "text_column",
    "text_pair_column",
    "label_column",
    "encoding",
    "skip_bad_rows",
)
"""Settings of a run's data and of how its splits are read."""


@dataclass(frozen=True)
class EvaluationRequest:
    """The model to evaluate, its data and the settings.

    ``thresholds`` [L] are probabilities, not calibrated, above which each label, or class 1 of two,
    is predicted; None is 0.5. ``max_length`` None is the length of the training.
    """

    model: Checkpoint
    data: DataSettings
    evaluate: EvaluationSettings
    sets: SetSources = field(default_factory=SetSources)
    predictor: PredictorSettings = field(default_factory=PredictorSettings)
    max_length: int | None = None
    thresholds: tuple[float, ...] | None = None

    @classmethod
    def of(
        cls,
        tree: Mapping[str, Any],
        *,
        model: Checkpoint,
    ) -> EvaluationRequest:
        """Check nested settings: ``data``, ``evaluate``, ``sets`` and ``predictor``.

        If no source is given, a run is evaluated on the data that it was trained with, read with
        the run's settings. For another source only the run's encoding is used.

        Raises:
            SettingError: If anything is wrong; it lists every fault.
        """
        faults = Faults(unknown("setting", name, PLACES) for name in tree if name not in PLACES)
        table = tree.get("data", {})
        if isinstance(table, Mapping):
            faults += [
                f"`data.{name}` is a training setting and has no effect here. Leave it out."
                for name in TRAINING_ONLY
                if name in table
            ]
        checked: dict[str, Any] = {"sets": section(SetSources, "sets", tree.get("sets", {}))}
        tree = _with_own_data(checked["sets"].completed(tree), model)
        classes: dict[str, type[BaseModel]] = {
            "data": DataSettings,
            "evaluate": EvaluationSettings,
            "predictor": PredictorSettings,
        }
        for name, settings in classes.items():
            with faults.caught():
                checked[name] = section(settings, name, tree.get(name, {}))
        if not faults:
            faults += checked["sets"].faults(checked["evaluate"])
        faults.refuse()
        length = checked["data"].max_length if "max_length" in table else None
        return cls(model=model, max_length=length, **checked)

    def load(self) -> Predictor:
        return load_predictor(
            self.model,
            max_length=self.max_length,
            batch_size=self.evaluate.batch_size,
            precision=self.evaluate.precision,
            settings=self.predictor,
        )


def evaluate_model(
    request: EvaluationRequest,
    out: Path,
    *,
    notices: Iterable[str] = (),
    progress: Progress | None = None,
    answering: Callable[[Predictor], AbstractContextManager[Predictor]] = nullcontext,
) -> dict[str, Any]:
    """Evaluate one model into a new folder.

    An evaluation with the same settings is kept. ``notices`` follow those about rows that the model
    was trained on. ``answering`` yields a predictor to use instead of the loaded one, for example
    one that predicts on the machines of a cluster.

    Raises:
        TemperError: If model, data or settings do not fit, or the folder has other content.
    """
    progress = progress or Progress()
    put_back(out)
    check_room(out, what="evaluation", held=lambda: stored_key(out) is not None)
    stored = stored_key(out)
    predictor = request.load()
    if isinstance(predictor, ClassifierPredictor) and predictor.precision == "bf16":
        progress.notice_all(bf16_notices(predictor.device))
    dev = load_evaluated(request.model, request.data, predictor=predictor)
    # Detectors are fitted on the training rows; a temperature must not be.
    learns = request.sets.detects(request.evaluate) and request.sets.fit is None
    wanted = learns or request.sets.held_out is not None
    train, unread = trained_rows(request.model) if wanted else (None, ())
    sets = load_sets(
        request.sets,
        settings=request.data,
        evaluate=request.evaluate,
        dev=dev,
        train=train,
        trained=partial(trained_among, request.model),
        known=request.model.columns,
        classes=predictor.label_names,
        notices=(*unread, *_calibration_notices(request)),
    )
    progress.notice_all(sets.seen)
    progress.notice_all(notices)
    progress.notice(which_rows(request.model, request.data, dev, scored=len(sets.data.dev)))
    progress.info_all(filter(None, [read_as(dev)]))
    for name, rows in {**sets.data.shift, **sets.data.adversarial}.items():
        paired = rows.text_pair is not None
        check_pairs(request.model, request.model.paired, paired, rows=f"the rows of set {name!r}")
    in_memory = request.model.kind == "object"
    identity = predictor_identity(request.model, request.predictor)
    data = request.data.model_copy(update={"max_length": longest_row(predictor)})
    asked = {
        "data": data.model_dump(mode="json", exclude={*TRAINING_ONLY, "train_split"}),
        "sets": request.sets.model_dump(mode="json"),
        "predictor": request.predictor.model_dump(
            mode="json", include={"gives", "label_names", "label_map"}
        )
        | request.predictor.given_windows,
    }
    if request.thresholds is not None:
        asked["predictor"]["thresholds"] = list(request.thresholds)
        identity = digest({"content": identity, "thresholds": list(request.thresholds)})
    key = evaluation_key(identity, sets, request.evaluate, max_length=longest_row(predictor))
    if stored is not None and stored != key:
        tables = {**asked, "evaluate": request.evaluate.model_dump(mode="json")}
        what = changed_since(out, request.model.name, tables)
        raise CheckpointError(
            f"{out} holds another evaluation: {what}. Give another --out, or remove that folder."
        )
    if stored is None or in_memory:
        regression = predictor.gives == "values"
        check_named_models(request.evaluate, regression=regression, reference=False)
        scored = {"dev": sets.data.dev, **sets.data.shift, **sets.data.adversarial}
        rows_of = {f"rows of set {name!r}": rows for name, rows in scored.items()}
        uncovered = unknown_in(predictor, request.model, rows_of)
        sets = replace(sets, notices=(*sets.notices, *uncovered))
        sets = with_reference(sets, request.model, predictor, request.evaluate)
        with answering(predictor) as measured:
            evaluation = measure(
                measured,
                sets,
                request.evaluate,
                out,
                model=request.model.name,
                key=key,
                run=request.model.key,
                asked=asked,
                thresholds=request.thresholds,
                progress=progress,
            )
        progress.notice_all(folded(each for each in evaluation.notices if each not in sets.seen))
    else:
        progress.notice(f"Up to date: {out}")
    return read_json(out / "scores.json")


def _with_own_data(tree: Mapping[str, Any], model: Checkpoint) -> Mapping[str, Any]:
    """Return the settings, with the run's data and reading settings if no source is given."""
    table, trained = tree.get("data", {}), model.data
    if not isinstance(table, Mapping):
        return tree
    # The encoding is set only for files that are not UTF-8.
    names = OF_THE_RUN if "source" in trained and "source" not in table else ("encoding",)
    known = {name: trained[name] for name in names if trained.get(name) is not None}
    return {**tree, "data": {**known, **table}} if known else tree


def _calibration_notices(request: EvaluationRequest) -> tuple[str, ...]:
    if not request.model.is_calibrated:
        return ()
    what = "Only its decision thresholds are applied here"
    if request.thresholds is None:
        what = "It is not applied here"
    return (
        f"{request.model} has a calibration, which `temper predict` applies. {what}: the scores "
        "are those of the model's uncalibrated predictions.",
    )
