"""Check that a perspective meets its contract, and that reports show it."""

from __future__ import annotations

import csv
import json
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from temper.evaluation.folder import read, write
from temper.evaluation.measurement import EvaluationData
from temper.evaluation.perspectives import Perspective, registered_for_a_while
from temper.evaluation.rows import Block, to_blocks
from temper.evaluation.run import Evaluation, evaluate, score
from temper.evaluation.settings import EvaluationSettings
from temper.report.card import CardSources, card
from temper.report.derived import RANK, view_of
from temper.report.markdown import markdown
from temper.report.page import build
from temper.report.table import comparison
from temper.report.view import overview
from temper.testing.predictors import differences, snapshot
from temper.testing.tiny import tiny_classifier, tiny_data

COLUMNS = ("one", "two", "three")
"""Names of the compared models; a report has mean ranks from three models on."""
TOLERANCE = 1e-4
"""Allowed difference of numbers that must be equal, relative to the largest."""


def check_perspective(
    perspective: Perspective, *, settings: Mapping[str, Any] | None = None
) -> None:
    """Check a perspective on tiny random models and generated texts (`tiny_data`).

    It is measured on three models. One of them is measured again, row by row and in a different
    order, which must give the same. Then a report must show the perspective.

    Args:
        perspective: The perspective.
        settings: Settings of the perspective that differ from the defaults.

    Raises:
        AssertionError: If it breaks its contract; the message lists every fault.

    Example:
        >>> from temper.evaluation.perspectives import perspective
        >>> check_perspective(perspective("shift"))
    """
    data = tiny_data()
    with registered_for_a_while(perspective):
        sections = {perspective.name: dict(settings)} if settings else {}
        asked = EvaluationSettings(perspectives=(perspective.name,), bootstrap=20, **sections)
        predictor = tiny_classifier()
        before = snapshot(predictor)
        measured = evaluate(predictor, data, asked)
        changed = differences(before, snapshot(predictor))
        faults = [
            *_of_declaration(perspective),
            *(f"Measuring changes the {what}." for what in changed),
            *_of_measurement(perspective, data, asked, measured),
            *_of_report(perspective, data, asked, measured),
        ]
    if faults:
        raise AssertionError(
            f"{perspective.name} breaks the contract of perspectives:\n"
            + "\n".join(f"- {fault}" for fault in faults)
        )


def _of_declaration(perspective: Perspective) -> Iterator[str]:
    for name in ("title", "summary"):
        if not getattr(perspective, name).strip():
            yield f"`{name}` says nothing."
    if len(set(perspective.score_names)) < len(perspective.score_names):
        yield f"`scores` names one twice: {perspective.score_names}."
    if not perspective.score_names:
        yield "It has no `scores`."


def _of_measurement(
    perspective: Perspective,
    data: EvaluationData,
    asked: EvaluationSettings,
    found: Evaluation,
) -> Iterator[str]:
    """Check the scores and rows, also of a second measurement, row by row in a different order."""
    if found.skipped:
        yield f"It was not measured: {' '.join(found.skipped.values())}"
        return
    if not any(entry["perspective"] == perspective.name for entry in found.scores):
        yield "It gave no score under its own name."
    for entry in found.scores:
        if entry["name"] not in perspective.score_names:
            yield f"The score {entry['name']!r} is not in its `scores`."
    with tempfile.TemporaryDirectory() as folder:
        back = read(write(found, Path(folder) / "evaluation"))
    for first, second in zip(
        found.scores, score(back.rows, data.metric, settings=asked), strict=True
    ):
        if not _alike(first["value"], second["value"], 1e-9):
            yield f"The score {first['name']!r} does not follow from the rows that were written."
    if not perspective.repeats:
        return
    order = list(range(len(data.dev)))[::-1]
    turned = replace(data, dev=data.dev.select(order))
    again = evaluate(tiny_classifier(), turned, asked.model_copy(update={"batch_size": 1}))
    yield from _differing(found, again)


def _differing(found: Evaluation, again: Evaluation) -> Iterator[str]:
    """Yield a fault for results that depend on a row's batch or position."""
    others = {block.condition: block for block in to_blocks(again.rows)}
    blocks = {block.condition: block for block in to_blocks(found.rows)}
    if others.keys() != blocks.keys():
        yield "Its conditions depend on the batch size or on the order of the rows."
        return
    for condition, block in blocks.items():
        one, two = _by_row(block), _by_row(others[condition])
        for name in one:
            if one[name].keys() != two[name].keys() or not all(
                _alike(value, two[name][row], TOLERANCE) for row, value in one[name].items()
            ):
                yield (
                    f"`{name}` of {condition.name} on {condition.set} depends on the batch size or "
                    "on the order of the rows. Key every draw by seed and row."
                )


def _by_row(block: Block) -> dict[str, dict[str, Any]]:
    columns: dict[str, Any] = {"probabilities": block.probabilities, **block.measured}
    if block.value is not None:
        columns["value"] = block.value
    return {name: dict(zip(block.row, values, strict=True)) for name, values in columns.items()}


def _alike(one: Any, two: Any, tolerance: float) -> bool:
    if one is None or two is None:
        return one is two
    first, second = np.asarray(one, dtype=np.float64), np.asarray(two, dtype=np.float64)
    scale = max(1.0, float(np.abs(first[np.isfinite(first)]).max(initial=0.0)))
    return bool(np.allclose(first, second, rtol=0, atol=tolerance * scale, equal_nan=True))


def _of_report(
    perspective: Perspective,
    data: EvaluationData,
    asked: EvaluationSettings,
    measured: Evaluation,
) -> Iterator[str]:
    """Compare three models, and yield a fault for each report without the perspective."""
    with tempfile.TemporaryDirectory() as index:
        folder = Path(index)
        _write_study(folder, data, asked, measured)
        result = comparison(folder)
        rows = result.of(perspective.name)
        if not rows:
            yield "The comparison has no row of it."
            return
        labels = [row.label for row in rows]
        if len(set(labels)) < len(labels):
            yield f"Two scores have the same label: {max(labels, key=labels.count)!r}."
        text = build(folder).read_text(encoding="utf-8")
        report = (folder / "report.md").read_text(encoding="utf-8")
        for where, written in (("page", text), ("report.md", report)):
            if perspective.title not in written:
                yield f"The {where} does not show {perspective.title!r}."
        with (folder / "scores.csv").open(encoding="utf-8", newline="") as lines:
            if perspective.name not in {line["perspective"] for line in csv.DictReader(lines)}:
                yield "scores.csv has no line of it."
        if "| score |" not in markdown(result, (perspective.name,)):
            yield "The Markdown table does not show it."
        shown = [row.label for row in rows if not row.minor]
        if not shown or shown[0] not in card(CardSources(folder / "runs" / COLUMNS[0])):
            yield "A model card does not show it."
        view = view_of(perspective.name)
        if view.leads and not any(view.is_lead(row.key, result.metric) for row in rows):
            yield f"No row is of the score that leads, {view.lead(result.metric)!r}."
        if view.leads and len(overview(result).header) == 1:
            yield "The overview does not show it."
        if view.leads and view.judged and view.ranked and not result.of(RANK.name):
            yield "It has no vote in the mean ranks."


def _write_study(
    folder: Path, data: EvaluationData, asked: EvaluationSettings, first: Evaluation
) -> None:
    columns = []
    for number, name in enumerate(COLUMNS):
        result = evaluate(tiny_classifier(seed=number), data, asked) if number else first
        run = folder / "runs" / name
        run.mkdir(parents=True)
        write(result, run / "evaluation")
        record = {"status": "finished", "key": name, "model": "tiny", "method": name, "seed": 0}
        (run / "run.json").write_text(json.dumps(record), encoding="utf-8")
        columns.append({"name": name, "method": name})
    study = {
        "model": "tiny",
        "seeds": [0],
        "reference": COLUMNS[0],
        "columns": columns,
        "runs": {name: {"0": f"runs/{name}"} for name in COLUMNS},
    }
    (folder / "study.json").write_text(json.dumps(study), encoding="utf-8")
