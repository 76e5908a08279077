"""Read and write a calibration in a checkpoint's folder: ``calibration.json`` and arrays."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, Field, ValidationError
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from temper.calibration.calibration import (
    Calibration,
    Detector,
    DetectorName,
    HeldOut,
    SetRule,
)
from temper.calibration.settings import Backend, OpenFraction
from temper.checkpoints.checkpoint import Checkpoint
from temper.checkpoints.folder import read_json
from temper.checkpoints.identity import CALIBRATION as FILE
from temper.checkpoints.identity import CALIBRATION_ARRAYS, model_identity, versions
from temper.errors import CheckpointError, faults
from temper.evaluation.prediction import Prediction
from temper.files import replaced, sha256, write_json, writing
from temper.functional.detectors import Mahalanobis
from temper.locks import locked
from temper.models.int8 import FOLDER as INT8
from temper.types import Windows

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class AnomalyRecord(BaseModel):
    """``anomaly`` in ``calibration.json``: the OOD detector and its false alarm rate."""

    detector: DetectorName
    false_alarms: OpenFraction


class ArraysRecord(BaseModel):
    """``arrays`` in ``calibration.json``: the file with the arrays."""

    file: str = Field(pattern=r"^calibration-[0-9a-f]+\.safetensors$")
    sha256: str


class DecisionRecord(BaseModel):
    """``decision``: the calibrated probabilities above which labels are predicted."""

    rule: str
    thresholds: tuple[OpenFraction, ...] = Field(min_length=1)


class CalibrationRecord(BaseModel):
    """The fields of ``calibration.json`` that Temper reads; others are for people."""

    temperature: Positive | tuple[Positive, ...] | None = None
    decision: DecisionRecord | None = None
    max_length: int | None
    windows: Windows | None = None
    model: str
    sets: SetRule | None = None
    anomaly: AnomalyRecord | None = None
    arrays: ArraysRecord | None = None


def write_calibration(
    folder: Path, calibration: Calibration, fields: Mapping[str, Any]
) -> dict[str, Any]:
    """Write a calibration into a checkpoint's folder; return the content of the JSON file.

    The caller holds the folder's lock. ``fields`` are further fields: how it was fitted.
    """
    record: dict[str, Any] = {**fields, "max_length": calibration.max_length}
    if calibration.windows is not None:
        record["windows"] = asdict(calibration.windows)
    if calibration.rule is not None:
        scaled = calibration.held_out_predictions
        thresholds: dict[str, Any] = {}
        for coverage in calibration.rule.coverage:
            entry: dict[str, Any] = {"threshold": calibration.threshold(coverage).tolist()}
            if not scaled.regression:
                sets = calibration.in_sets(scaled, coverage=coverage)
                entry["mean_size"] = float(sets.sum(axis=1).mean())
            thresholds[f"{coverage:g}"] = entry
        record["sets"] = {**asdict(calibration.rule), "thresholds": thresholds}
    if calibration.detector is not None:
        record["anomaly"] = {
            **fields.get("anomaly", {}),
            "detector": calibration.detector.name,
            "false_alarms": calibration.false_alarms,
            "threshold": calibration.alarm,
        }
    # The arrays' file has their hash in its name and is written first. So the JSON file never names
    # other arrays, and an earlier calibration stays complete until it is replaced.
    arrays = _arrays(calibration)
    name = None
    if arrays:
        content = save(arrays)
        digest = hashlib.sha256(content).hexdigest()
        name = f"calibration-{digest[:12]}.safetensors"
        with replaced(folder / name) as temporary:
            temporary.write_bytes(content)
        record["arrays"] = {"file": name, "sha256": digest}
    record |= {"model": model_identity(str(folder)), "versions": versions()}
    CalibrationRecord.model_validate(record)
    written = write_json(folder / FILE, record)
    _sweep(folder, name)
    return written


def remove_calibration(model: Checkpoint, backend: Backend = "torch") -> Path:
    """Remove a model's calibration, or for ``int8`` its 8-bit copy; return the removed path.

    Raises:
        CheckpointError: There is nothing to remove.
        LockedError: Another process is writing to the folder.
    """
    folder = model.folder
    if backend == "int8":
        if not (folder / INT8).is_dir():
            raise CheckpointError(f"{model} has no 8-bit copy to remove. Leave --backend int8 out.")
        with writing(folder / INT8), locked(folder):
            shutil.rmtree(folder / INT8)
        return folder / INT8
    file = folder / FILE
    if not model.is_calibrated:
        raise CheckpointError(f"{model} has no calibration to remove: there is no {FILE}.")
    with writing(file), locked(folder):
        file.unlink()
        _sweep(folder, None)
    return file


def _sweep(folder: Path, kept: str | None) -> None:
    for left in folder.glob(CALIBRATION_ARRAYS):
        if left.name != kept:
            left.unlink()


def read_calibration(model: Checkpoint, backend: Backend = "torch") -> Calibration | None:
    """Read the calibration of a model, or of its 8-bit copy; None if none is stored.

    Raises:
        CheckpointError: A file is damaged, or the weights have changed since.
    """
    folder = model.folder / INT8 if backend == "int8" else model.folder
    file = folder / FILE
    if model.in_memory is not None or not file.is_file():
        return None
    content = read_json(file)
    fix = (
        f"Fit it again with `temper calibrate`, or remove it with `temper calibrate {model} "
        f"--remove{' --backend int8' if backend == 'int8' else ''}`."
    )
    try:
        record = CalibrationRecord.model_validate(content)
        if "schema" not in content:
            raise ValueError("`schema` is missing")
        whole = _of_record(record, file.parent)
    except (ValidationError, ValueError, KeyError, OSError, SafetensorError) as error:
        result = faults(error, CalibrationRecord, "") if isinstance(error, ValidationError) else []
        message = "; ".join(result) or str(error) or type(error).__name__
        raise CheckpointError(f"{file} is damaged: {message} {fix}") from error
    if record.model != model_identity(str(file.parent)):
        raise CheckpointError(
            f"The calibration in {file} was fitted for weights that differ from the folder's. {fix}"
        )
    return whole


def copy_calibration(model: Checkpoint, folder: Path) -> None:
    """Copy a model's calibration, if any, to a folder with the same weights in another format."""
    source = model.folder
    for name in calibration_files(source):
        if name != FILE:
            shutil.copyfile(source / name, folder / name)
    if model.is_calibrated:
        content = read_json(source / FILE)
        write_json(folder / FILE, {**content, "model": model_identity(str(folder))})


def calibration_files(folder: Path) -> list[str]:
    if not (folder / FILE).is_file():
        return []
    return [FILE, *(file.name for file in folder.glob(CALIBRATION_ARRAYS))]


def _arrays(calibration: Calibration) -> dict[str, Any]:
    arrays: dict[str, Any] = {}
    if (held := calibration.held_out) is not None:
        prediction = held.prediction
        arrays["held_out.predictions"] = (
            prediction.prediction if prediction.regression else prediction.logits
        )
        if prediction.words is not None:
            arrays["held_out.words"] = prediction.words
        arrays["held_out.labels"] = held.labels
        arrays["held_out.anomaly"] = held.anomaly
        if held.repeats is not None:
            arrays["held_out.repeats"] = held.repeats
    fitted = None if calibration.detector is None else calibration.detector.fitted
    if fitted is not None:
        arrays |= {f"mahalanobis.{name}": array for name, array in vars(fitted).items()}
        arrays["mahalanobis.whitening"] = fitted.whitening.astype(np.float32)
    if calibration.reference is not None:
        arrays["shift.states"] = calibration.reference
    if held is not None and calibration.confidences is not None:
        arrays["risk.confidences"] = calibration.confidences
        # Stored for programs without Temper, because computing it takes statistical tests.
        arrays["risk.limits"] = calibration.shown_risks
    return {name: np.ascontiguousarray(array) for name, array in arrays.items()}


def _of_record(record: CalibrationRecord, folder: Path) -> Calibration:
    """Build a calibration from ``calibration.json`` and the arrays in its folder.

    Damaged files raise a `ValueError`, `KeyError`, `OSError` or `SafetensorError`.
    """
    calibration = Calibration(
        record.max_length,
        record.temperature,
        windows=record.windows,
        thresholds=None if record.decision is None else record.decision.thresholds,
    )
    arrays: dict[str, Any] = {}
    if record.arrays is not None:
        file = folder / record.arrays.file
        if sha256(file) != record.arrays.sha256:
            raise ValueError(f"The hash of {file} differs from the one in `arrays`.")
        arrays = load_file(file)
    if not arrays:
        if record.temperature is None:
            raise ValueError("`temperature` is missing.")
        return calibration
    outputs = arrays["held_out.predictions"]
    if "held_out.words" in arrays:
        words = np.split(outputs, np.cumsum(arrays["held_out.words"])[:-1])
        prediction = Prediction.of_tags(words)
    elif arrays["held_out.labels"].ndim == 2:
        prediction = Prediction.of_labels(outputs)
    elif outputs.ndim == 2:
        prediction = Prediction.of_logits(outputs)
    else:
        prediction = Prediction.of_values(outputs)
    calibration = replace(
        calibration,
        held_out=HeldOut(
            prediction,
            arrays["held_out.labels"],
            arrays["held_out.anomaly"],
            arrays.get("held_out.repeats"),
        ),
        rule=record.sets,
        reference=arrays.get("shift.states"),
        confidences=arrays.get("risk.confidences"),
    )
    if record.anomaly is None:
        if record.sets is not None:
            raise ValueError("`anomaly` is missing.")
        return calibration
    fitted = None
    if record.anomaly.detector == "mahalanobis":
        names = [field.name for field in fields(Mahalanobis)]
        fitted = Mahalanobis(*(arrays[f"mahalanobis.{n}"].astype(np.float64) for n in names))
    detector = Detector(record.anomaly.detector, fitted)
    return replace(calibration, detector=detector, false_alarms=record.anomaly.false_alarms)
