"""Evaluate one model: load it and its sets, measure, and write the scores to a folder."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from temper.checkpoints.folder import check_output_folder, difference_in_words, read_json
from temper.checkpoints.identity import digest, model_identity
from temper.data.reading import read_as
from temper.data.settings import TRAINING_ONLY
from temper.display.wording import folded
from temper.errors import CheckpointError
from temper.evaluation.classifier import ClassifierPredictor
from temper.evaluation.folder import write_files
from temper.evaluation.lengths import longest_row
from temper.evaluation.loading import (
    check_named_models,
    named_models,
    predictor_identity,
    unknown_in,
    with_reference,
)
from temper.evaluation.predictor import Predictor
from temper.evaluation.request import EvaluationRequest, check_pairs, which_rows
from temper.evaluation.run import Evaluation, EvaluationData, evaluate
from temper.evaluation.sets import EvaluationSets, load_sets, trained_among, trained_rows
from temper.evaluation.settings import EvaluationSettings
from temper.files import check_free, check_memory, checksums, put_back, staged_folder, write_json
from temper.functional.precision import bf16_notices
from temper.progress import Progress

NUMBER = 8
"""Bytes of a stored number."""


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
    """Measure a model and write the evaluation to the folder ``out``.

    An older evaluation is replaced once the new one is complete. ``key`` and ``run`` are
    fingerprints of the evaluation and of the training run. ``asked`` has tables of settings to
    store in addition to ``settings``.

    Raises:
        MemoryLimitError: The predictions would not fit into free memory.
        WriteError: The predictions would not fit on the disk.
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
    """Raise before any work if one prediction per text does not fit into memory or on the disk.

    Perspectives that perturb texts need more than this estimate.

    Raises:
        MemoryLimitError: There is not enough free memory.
        WriteError: There is not enough free disk space.
    """
    rows = sum(len(examples) for examples in data.sets.values())
    # In addition to the probabilities: index, label, prediction, loss and a 16-digit hash.
    wanted = rows * NUMBER * (6 + data.dev.classes)
    check_memory(wanted, what=f"The predictions for {rows:,} texts")
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
    """Describe how the model and settings of a folder's evaluation differ from requested ones."""
    record = read_json(folder / "settings.json")
    before, now = {}, {}
    for name in tables:
        # Sections of perspectives that only one of both measures, and tables that a study does
        # not store, are not compared.
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
    """Return the fingerprint of an evaluation: 12 hexadecimal digits.

    It is a hash of everything that affects the result. ``model`` is the fingerprint of the weights.
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


def evaluate_model(
    request: EvaluationRequest,
    out: Path,
    *,
    thresholds: tuple[float, ...] | None = None,
    progress: Progress | None = None,
    predictor_context: Callable[[Predictor], AbstractContextManager[Predictor]] = nullcontext,
) -> dict[str, Any]:
    """Evaluate one model, and return the content of ``scores.json`` in the folder ``out``.

    If ``out`` already has an evaluation with the same fingerprint, it is returned.

    Args:
        request: The model, its data and the settings.
        out: Folder for the result.
        thresholds: Uncalibrated probability above which each label, or class 1 of two, is
            predicted, [L]; None for 0.5.
        progress: Reports progress and notices.
        predictor_context: Replaces the loaded predictor, for example by one that predicts on a
            cluster.

    Raises:
        TemperError: Model, data or settings do not fit, or the folder has different content.
    """
    progress = progress or Progress()
    put_back(out)
    check_output_folder(out, what="evaluation", held=lambda: stored_key(out) is not None)
    stored = stored_key(out)
    predictor = request.load()
    if isinstance(predictor, ClassifierPredictor) and predictor.precision == "bf16":
        progress.notice_all(bf16_notices(predictor.device))
    dev = request.rows(predictor)
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
        notices=(*unread, *_calibration_notices(request, thresholds)),
    )
    progress.notice_all(sets.seen)
    progress.info(which_rows(request.model, request.data, dev, scored=len(sets.data.dev)))
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
    if thresholds is not None:
        asked["predictor"]["thresholds"] = list(thresholds)
        identity = digest({"content": identity, "thresholds": list(thresholds)})
    key = evaluation_key(identity, sets, request.evaluate, max_length=longest_row(predictor))
    if stored is not None and stored != key:
        tables = {**asked, "evaluate": request.evaluate.model_dump(mode="json")}
        what = changed_since(out, request.model.name, tables)
        raise CheckpointError(
            f"{out} has another evaluation: {what}. Choose another --out, or remove that folder."
        )
    if stored is None or in_memory:
        regression = predictor.gives == "values"
        check_named_models(request.evaluate, regression=regression, reference=False)
        rows_of = {f"rows of set {name!r}": rows for name, rows in sets.data.labeled.items()}
        uncovered = unknown_in(predictor, request.model, rows_of)
        sets = replace(sets, notices=(*sets.notices, *uncovered))
        sets = with_reference(sets, request.model, predictor, request.evaluate)
        with predictor_context(predictor) as measured:
            evaluation = measure(
                measured,
                sets,
                request.evaluate,
                out,
                model=request.model.name,
                key=key,
                run=request.model.key,
                asked=asked,
                thresholds=thresholds,
                progress=progress,
            )
        progress.notice_all(
            folded(notice for notice in evaluation.notices if notice not in sets.seen)
        )
    else:
        progress.notice(f"Up to date: {out}")
    return read_json(out / "scores.json")


def _calibration_notices(
    request: EvaluationRequest, thresholds: tuple[float, ...] | None
) -> tuple[str, ...]:
    if not request.model.is_calibrated:
        return ()
    what = "Only its decision thresholds are applied here"
    if thresholds is None:
        what = "It is not applied here"
    return (
        f"{request.model} has a calibration, which `temper predict` applies. {what}: the scores "
        "are those of the model's uncalibrated predictions.",
    )
