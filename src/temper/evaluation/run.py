"""Evaluate a predictor: perspectives make rows, and rows alone make scores."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence

import pyarrow as pa

from temper.errors import DataError, SettingError
from temper.evaluation import perspectives
from temper.evaluation.alignment import Aligned
from temper.evaluation.checks import aligned_sets, data_faults, setting_faults
from temper.evaluation.folder import Evaluation as Evaluation
from temper.evaluation.folder import read as read
from temper.evaluation.folder import write as write
from temper.evaluation.measurement import EvaluationData as EvaluationData
from temper.evaluation.measurement import Measurement, Progress
from temper.evaluation.predictor import Predictor
from temper.evaluation.rows import Block, to_blocks, to_table
from temper.evaluation.scoring import ScoreEntry, Scoring
from temper.evaluation.settings import EvaluationSettings as EvaluationSettings

_LOG = logging.getLogger(__name__)


def evaluate(
    predictor: Predictor,
    data: EvaluationData,
    settings: EvaluationSettings | None = None,
    *,
    model: str = "",
    progress: Progress | None = None,
) -> Evaluation:
    """Measure a predictor.

    Clean dev rows are always predicted, as the other perspectives are compared with them. The
    model is the same afterwards. Every draw is keyed by seed and row, so order and batch size
    change nothing.

    Args:
        predictor: Who answers.
        data: On what.
        settings: What is measured; None for the defaults.
        model: Name or folder of the model, for ``scores.json``.
        progress: Called with rows done, rows in all, and what is being measured.

    Returns:
        Rows, scores and notices.

    Raises:
        SettingError: The settings do not fit the predictor or the data.
        DataError: A set does not fit the task; all faults at once.
        ModelError: The model's answers are broken.
    """
    settings = EvaluationSettings() if settings is None else settings
    skipped = _check(predictor, data, settings)
    measurement = _measurement(predictor, data, settings, progress)
    measurement.notices += [f"Not measured: {reason}" for reason in skipped.values()]
    settings = settings.without(skipped)
    found = _rows(measurement, settings)
    blocks = [block for name in perspectives.names() for block in found.get(name, ())]
    measurement.forget()
    # Scored before they are written, as blocks read from a table would stand in memory twice.
    scores = _score(blocks, data.metric, settings)
    notices = [
        notice
        for examples in (
            measurement.dev,
            *(aligned.examples for aligned in measurement.shift.values()),
            *(aligned.examples for aligned in measurement.adversarial.values()),
            *measurement.anomaly.values(),
        )
        for notice in examples.notices
    ]
    notices += measurement.notices
    notices += [
        f"{share:.1%} of the rows of set {name!r} are cut to the model's length."
        for name, share in measurement.truncated.items()
        if share > 0
    ]
    for notice in notices:
        _LOG.info(notice)
    return Evaluation(
        rows=to_table(blocks),
        scores=scores,
        model=model,
        task={
            "kind": "regression" if measurement.regression else "classification",
            "metric": data.metric,
            "labels": _labels(measurement, found),
        },
        truncated=measurement.truncated,
        notices=tuple(dict.fromkeys(notices)),
        skipped=skipped,
        texts=measurement.texts.table(),
    )


def score(rows: pa.Table, metric: str, *, settings: EvaluationSettings) -> list[ScoreEntry]:
    """Compute all scores from rows alone.

    Args:
        rows: What `evaluate` made or `read` read.
        metric: The task's leading score.
        settings: Which perspectives, how many resamples, which seed.

    Returns:
        Entries as ``scores.json`` holds them, in the order of the perspectives.
    """
    return _score(to_blocks(rows), metric, settings)


def _score(blocks: Sequence[Block], metric: str, settings: EvaluationSettings) -> list[ScoreEntry]:
    """Compute all scores from blocks."""
    scoring = Scoring(blocks, metric, settings.bootstrap, settings.seed)
    return [
        entry
        for name in perspectives.names()
        if name in settings.perspectives
        for entry in perspectives.perspective(name).score(scoring)
    ]


def _rows(measurement: Measurement, settings: EvaluationSettings) -> dict[str, list[Block]]:
    """Let each perspective make its rows."""
    known = perspectives.perspectives()
    wanted = {"task", *settings.perspectives}
    wanted |= {name for asked in settings.perspectives for name in known[asked].rescores}
    chosen = [entry for entry in known.values() if entry.name in wanted]
    # The attack goes first: its first pass gives the clean answers, which are then not computed
    # again.
    chosen.sort(key=lambda entry: entry.needs != "embeddings")
    found = {}
    for number, entry in enumerate(chosen):
        measurement.tell(number, len(chosen), entry.name)
        found[entry.name] = list(entry.rows(measurement))
    measurement.tell(len(chosen), len(chosen), "all perspectives")
    return found


def _check(
    predictor: Predictor, data: EvaluationData, settings: EvaluationSettings
) -> dict[str, str]:
    """Check what must fit before any work, all faults at once.

    Returns:
        The perspectives that cannot be measured on this predictor, and why.
    """
    faults: list[str] = []
    skipped: dict[str, str] = {}
    regression = predictor.gives == "values"
    chosen = [perspectives.perspective(name) for name in settings.perspectives]
    for need, (contract, words) in perspectives.NEEDS.items():
        asking = [entry for entry in chosen if entry.needs == need]
        if isinstance(predictor, contract):
            faults += [
                fault for entry in asking for fault in entry.faults(predictor, data, settings)
            ]
            reasons = {entry.name: entry.lacking(predictor, data) for entry in asking}
            skipped |= {name: reason for name, reason in reasons.items() if reason}
        else:
            # One suite of perspectives judges models and bare functions alike.
            skipped |= {
                entry.name: f"{entry.name} needs {words}, got {type(predictor).__name__}."
                for entry in asking
            }
    if skipped and len(skipped) == len(chosen):
        faults.append(" ".join(skipped.values()) + " Choose other `perspectives`.")
    faults += setting_faults(
        data, settings, predictor.label_names, regression=regression, skipped=skipped
    )
    if faults:
        raise SettingError("\n".join(faults))
    broken = data_faults(data, regression=regression)
    if broken:
        raise DataError("\n".join(broken))
    return skipped


def _measurement(
    predictor: Predictor,
    data: EvaluationData,
    settings: EvaluationSettings,
    progress: Progress | None,
) -> Measurement:
    """Bring all labels into the predictor's order, or dev's where it names no classes."""
    found = aligned_sets(data, predictor.label_names)

    def of(wanted: str) -> dict[str, Aligned]:
        return {name: aligned for (kind, name), aligned in found.items() if kind == wanted}

    fit, held_out = (next(iter(of(kind).values()), None) for kind in ("fit", "held-out"))
    return Measurement(
        predictor,
        found["dev", "dev"].examples,
        of("shift"),
        data.anomaly,
        settings,
        progress,
        adversarial=of("adversarial"),
        fit=None if fit is None else fit.examples,
        held_out=None if held_out is None else held_out.examples,
        reference=data.reference,
    )


def _labels(measurement: Measurement, found: Mapping[str, Iterable[Block]]) -> list[str]:
    """Return the classes' names, or their indices where nobody named them."""
    if measurement.regression:
        return []
    named = measurement.predictor.label_names or measurement.dev.label_names
    classes = next(iter(found["task"])).probabilities.shape[1]
    return list(named) if named else [str(index) for index in range(classes)]
