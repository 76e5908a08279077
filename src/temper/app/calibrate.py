"""Fit a temperature for a checkpoint on held-out rows, and keep it in the checkpoint's folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from temper.app.evaluate import EvaluationRequest
from temper.app.measure import load_evaluated
from temper.app.predictors import load_predictor, longest_row
from temper.app.seen import seen_among
from temper.app.temperature import FILE, store_temperature
from temper.data.examples import Examples
from temper.display.wording import plural
from temper.errors import CheckpointError, DataError, SettingError
from temper.evaluation.measurement import align, block_of, labels_of
from temper.evaluation.perspectives.calibration import with_temperature
from temper.evaluation.predictor import Prediction
from temper.evaluation.rows import Condition
from temper.evaluation.scoring import statistic_of
from temper.functional.calibration import fit_temperature
from temper.functional.intervals import LEAST_ROWS
from temper.models.names import checkpoint_folder
from temper.training.checkpoint_folder import read_json
from temper.training.progress import Progress


def calibrate(
    request: EvaluationRequest,
    *,
    fit_rows: int | None = None,
    with_dev: bool = False,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Fit a temperature on held-out rows and write ``calibration.json`` (docs/formats.md).

    Rows that the run, or a run of the soup, was trained on are left out: a model is too sure of
    them. So are its dev rows, on which scores are reported.

    Args:
        request: The model's folder and the held-out rows; an earlier temperature is replaced.
        fit_rows: Fit on that many of them, drawn by hash and label; None takes all.
        with_dev: Whether dev rows are taken all the same.
        progress: Hears what there is to say.

    Returns:
        The content of the file.

    Raises:
        TemperError: The folder holds no classifier, the model has seen all of the rows, or no
            temperature is best for them.
    """
    progress = progress or Progress()
    folder = checkpoint_folder(request.model, what="A temperature")
    predictor = load_predictor(
        request.model,
        max_length=request.max_length,
        batch_size=request.evaluate.batch_size,
        device=request.predictor.device,
    )
    if predictor.gives != "logits":
        raise SettingError(
            f"{request.model} is a regression, whose values a temperature has no meaning for."
        )
    rows = replace(
        load_evaluated(request.model, request.data, predictor=predictor), name="held_out"
    )
    rows, left_out, notices = _unseen(request.model, rows, request.data.source, with_dev=with_dev)
    if fit_rows is not None:
        rows = rows.sample(fit_rows, seed=request.data.seed)
    aligned = align(rows, predictor.label_names)
    if aligned.entailment is not None:
        raise DataError(
            f"The rows of {request.data.source} tell entailment from all else, but the model has "
            "three classes. Give rows with three labels."
        )
    notices = [*rows.notices, *notices]
    progress.notice_all(notices)
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
            f"No temperature can be fitted: of the {len(rows)} rows of {request.data.source} "
            f"{error}. Give more rows, or others, with --data."
        ) from error
    after = _measures(rows, with_temperature(prediction, fitted.value))
    doubted = doubts(len(rows), before, after)
    if (folder / FILE).is_file() and (earlier := _earlier(folder)) != (fitted.value, rows.hash):
        held = "" if earlier is None else f" ({earlier[0]:.4f})"
        doubted.append(f"The temperature that {folder / FILE} held{held} is replaced.")
    progress.notice_all(doubted)
    return store_temperature(
        folder,
        fitted.value,
        before=before,
        after=after,
        held_out={
            "rows": len(rows),
            "hash": rows.hash,
            "source": rows.source,
            "left_out": left_out,
        },
        max_length=longest_row(predictor),
        notices=[*notices, *doubted],
    )


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


def _unseen(
    model: str, rows: Examples, source: str, *, with_dev: bool
) -> tuple[Examples, dict[str, int], list[str]]:
    """Leave out the rows that a model has seen.

    Returns:
        The others, how many were trained on and how many are dev rows, and what there is to say.
    """
    seen = seen_among(model, rows)
    notices = list(seen.notices)
    whom = model if (Path(model).expanduser() / "run.json").exists() else f"a run of {model}"
    if seen.trained:
        notices.append(
            f"{len(seen.trained)} of {len(rows)} rows, the first row {seen.trained[0] + 1}, are "
            f"left out: {whom} was trained on them, and a model is too sure of such."
        )
    if seen.judged and with_dev:
        notices.append(
            f"{len(seen.judged)} of {len(rows)} rows are dev rows of {whom}: calibration that is "
            "measured on them with the temperature would look too good."
        )
    elif seen.judged:
        notices.append(
            f"{len(seen.judged)} of {len(rows)} rows, the first row {seen.judged[0] + 1}, are left "
            f"out: they are dev rows of {whom}, and calibration that is measured on them with the "
            "temperature would look too good. --with-dev takes them."
        )
    gone = {*seen.trained, *(() if with_dev else seen.judged)}
    kept = [place for place in range(len(rows)) if place not in gone]
    if not kept:
        dev = f", and {len(seen.judged)} are dev rows of it" if seen.judged else ""
        advice = ", or take its dev rows with --with-dev" if seen.judged else ""
        raise DataError(
            f"None of the {len(rows)} rows of {source} is left to fit a temperature on: {whom} was "
            f"trained on {len(seen.trained)} of them{dev}. Give rows with --data that it has not "
            f"seen{advice}."
        )
    counts = {"trained": len(seen.trained), "dev": 0 if with_dev else len(seen.judged)}
    return (rows.select(kept) if gone else rows), counts, notices


def doubts(rows: int, before: Mapping[str, float], after: Mapping[str, float]) -> list[str]:
    """Say why a temperature may do no good on other rows.

    Args:
        rows: How many it was fitted on.
        before: NLL and ECE of these without it.
        after: The same with it.
    """
    reasons = []
    if rows < LEAST_ROWS:
        reasons.append(
            f"The temperature is fitted on {plural(rows, 'row')}, fewer than the {LEAST_ROWS} from "
            "which on differences have a verdict: other rows may give quite another one. Give more "
            "with --data, or take it away with --remove."
        )
    reasons += [
        f"{name} of these rows got worse by the temperature, {before[key]:.4f} -> {after[key]:.4f}:"
        " check it on other rows before using it; `temper calibrate` with --remove takes it away."
        for key, name in (("nll", "NLL"), ("ece_15", "ECE"))
        if round(after[key], 4) > round(before[key], 4)
    ]
    return reasons


def _earlier(folder: Path) -> tuple[float, str | None] | None:
    """Return the temperature that a folder keeps and its rows' hash; None where none is read."""
    try:
        content = read_json(folder / FILE)
    except CheckpointError:
        return None
    value, rows = content.get("temperature"), content.get("held_out")
    found = rows.get("hash") if isinstance(rows, dict) else None
    return (float(value), found) if isinstance(value, int | float) else None


def _measures(rows: Examples, prediction: Prediction) -> dict[str, float]:
    """Return NLL and ECE of labelled rows."""
    block = block_of(Condition("calibration", "held_out"), rows, prediction)
    counts = np.ones((1, len(block)))
    return {name: float(statistic_of(name, block)(counts)[0]) for name in ("nll", "ece_15")}
