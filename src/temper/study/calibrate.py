"""Fit a temperature for a checkpoint on held-out rows, and keep it in the checkpoint's folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from temper.data.examples import Examples
from temper.errors import CheckpointError, DataError, SettingError
from temper.evaluation.alignment import align
from temper.evaluation.measurement import block_of, labels_of
from temper.evaluation.perspectives.calibration import with_temperature
from temper.evaluation.prediction import Prediction
from temper.evaluation.rows import Condition
from temper.evaluation.scoring import statistic_of
from temper.functional.temperature import fit_temperature
from temper.study.evaluation import Judging
from temper.study.judge import load_evaluated
from temper.study.predictors import load_predictor, longest_row
from temper.study.sets import trained_rows
from temper.study.temperature import FILE, SCHEMA
from temper.training.checkpoint_folder import read_json, write_json
from temper.training.progress import Progress
from temper.training.run import model_identity, versions

CONFIGS = ("config.json", "adapter_config.json")


def calibrate(
    asked: Judging, *, fit_rows: int | None = None, progress: Progress | None = None
) -> dict[str, Any]:
    """Fit a temperature on held-out rows and write ``calibration.json`` (docs/formats.md).

    Args:
        asked: The model's folder and the held-out rows; an earlier temperature is replaced.
        fit_rows: Fit on that many of them, drawn by hash and label; None takes all.
        progress: Hears what there is to say.

    Returns:
        The content of the file.

    Raises:
        TemperError: The folder holds no classifier, the run trained on the rows, or no temperature
            is best for them.
    """
    progress = progress or Progress()
    folder = _folder(asked.model)
    predictor = load_predictor(
        asked.model,
        max_length=asked.max_length,
        batch_size=asked.evaluate.batch_size,
        device=asked.device,
    )
    if predictor.gives != "logits":
        raise SettingError(
            f"{asked.model} is a regression, whose values a temperature has no meaning for."
        )
    rows = replace(load_evaluated(asked.model, asked.data, predictor=predictor), name="held_out")
    notices = _check_unseen(asked.model, rows)
    if fit_rows is not None:
        rows = rows.sample(fit_rows, seed=asked.data.seed)
    aligned = align(rows, predictor.label_names)
    if aligned.entailment is not None:
        raise DataError(
            f"The rows of {asked.data.source} tell entailment from all else, but the model has "
            "three classes. Give rows with three labels."
        )
    for text in notices:
        progress.notice(text)
    rows = aligned.examples
    prediction = predictor.predict(rows)
    logits = prediction.logits
    # It `gives` logits.
    assert logits is not None
    before = _measures(rows, prediction)
    try:
        fitted = fit_temperature(labels_of(rows), logits)
    except ValueError as error:
        raise DataError(
            f"No temperature can be fitted: of the {len(rows)} rows of {asked.data.source} {error}."
            " Give more rows, or others, with --data."
        ) from error
    after = _measures(rows, with_temperature(prediction, fitted.value))
    record = {
        "schema": SCHEMA,
        "temperature": fitted.value,
        **{name: {"before": before[name], "after": after[name]} for name in before},
        "held_out": {"rows": len(rows), "hash": rows.hash, "source": rows.source},
        "max_length": longest_row(predictor),
        "model": model_identity(asked.model),
        "notices": notices,
        "versions": versions(),
    }
    write_json(folder / FILE, record)
    return record


def remove_temperature(model: str) -> Path:
    """Remove a stored temperature.

    Args:
        model: Folder of a checkpoint.

    Returns:
        The file that was removed.

    Raises:
        CheckpointError: There is none.
    """
    file = Path(model).expanduser() / FILE
    if not file.is_file():
        raise CheckpointError(f"{model} holds no {FILE}, so there is no temperature to remove.")
    file.unlink()
    return file


def _folder(model: str) -> Path:
    """Return the folder that a temperature can be kept in."""
    folder = Path(model).expanduser()
    if not any((folder / name).is_file() for name in CONFIGS):
        raise SettingError(
            f"A temperature is kept in the folder of a checkpoint, and {model} is none (no "
            f"{' or '.join(CONFIGS)}). Give the folder of a run or of a saved model."
        )
    return folder


def _check_unseen(model: str, rows: Examples) -> list[str]:
    """Refuse rows that a run trained on.

    Returns:
        What there is to say of the rows.
    """
    file = Path(model).expanduser() / "run.json"
    if not file.exists():
        return []
    sets = read_json(file).get("data", {})
    if rows.hash == sets.get("dev", {}).get("hash"):
        return [
            "The temperature is fitted on the run's own dev rows: calibration that is measured on "
            "them with it would look too good."
        ]
    train, _ = trained_rows(model)
    if train is None:
        if rows.hash != sets.get("train", {}).get("hash"):
            return [
                f"Whether {model} was trained on rows among these could not be checked: its "
                "training rows cannot be read, or have changed."
            ]
        seen = list(range(len(rows)))
    else:
        seen = rows.overlap(train)
    if seen:
        raise DataError(
            f"{model} was trained on {len(seen)} of these {len(rows)} rows, the first at row "
            f"{seen[0] + 1}, and a model is too sure of such. Give rows that it was not trained "
            "on; its own dev rows will do."
        )
    return []


def _measures(rows: Examples, prediction: Prediction) -> dict[str, float]:
    """Return NLL and ECE of labelled rows."""
    block = block_of(Condition("calibration", "held_out"), rows, prediction)
    counts = np.ones((1, len(block)))
    return {name: float(statistic_of(name, block)(counts)[0]) for name in ("nll", "ece_15")}
