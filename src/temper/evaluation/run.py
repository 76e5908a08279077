"""Evaluate a predictor: perspectives write rows, and scores are computed from rows alone."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from temper.data.encode import WARNED
from temper.data.examples import LABELS_OF, Examples, Kind
from temper.data.windows import NOT_IN_WINDOWS
from temper.errors import DataError, SettingError, TemperError, unknown
from temper.evaluation import perspectives
from temper.evaluation.alignment import align
from temper.evaluation.folder import Evaluation as Evaluation
from temper.evaluation.folder import read as read
from temper.evaluation.folder import write as write
from temper.evaluation.measurement import EvaluationData as EvaluationData
from temper.evaluation.measurement import Measurement, Progress
from temper.evaluation.predictor import KINDS, Predictor
from temper.evaluation.rows import Block, to_blocks, to_table
from temper.evaluation.scoring import ScoreEntry, Scoring
from temper.evaluation.settings import EvaluationSettings as EvaluationSettings
from temper.functional.scores import metrics_of
from temper.lazy import pyarrow as pa

_LOG = logging.getLogger(__name__)


def evaluate(
    predictor: Predictor,
    data: EvaluationData,
    settings: EvaluationSettings | None = None,
    *,
    model: str = "",
    thresholds: tuple[float, ...] | None = None,
    progress: Progress | None = None,
) -> Evaluation:
    """Measure all requested perspectives of a predictor.

    Clean validation rows are always predicted, because other perspectives are compared with them.
    The model is unchanged afterwards. Random draws depend on seed and row, not on the order of the
    rows or the batch size.

    Args:
        predictor: The predictor.
        data: The sets.
        settings: Settings of the evaluation; None for the defaults.
        model: Name or folder of the model, for ``scores.json``.
        thresholds: Probability above which each label, or class 1 of two, is predicted, [L]; None
            for 0.5.
        progress: Called with the finished rows, all rows, and the name of the measurement.

    Returns:
        Rows, scores and notices.

    Raises:
        SettingError: The settings do not fit the predictor or the data.
        DataError: A set does not fit the task; the message lists all faults.
        ModelError: A prediction is not finite or has the wrong shape.
    """
    settings = EvaluationSettings() if settings is None else settings
    skipped = _check(predictor, data, settings)
    aligned, entailment = _aligned(data, predictor.label_names)
    measurement = Measurement(
        **vars(aligned),
        predictor=predictor,
        settings=settings,
        progress=progress,
        entailment=entailment,
        thresholds=thresholds,
        notices=[f"Not measured: {reason}" for reason in dict.fromkeys(skipped.values())],
    )
    settings = settings.without(skipped)
    result = _rows(measurement, settings)
    blocks = [block for name in perspectives.names() for block in result.get(name, ())]
    measurement.forget()
    # Scored before they are written: blocks that are read from a table would be a second copy.
    scores = _score(blocks, data.metric, settings)
    notices = [notice for rows in measurement.sets.values() for notice in rows.notices]
    notices += measurement.notices
    notices += [
        f"{fraction:.1%} of the rows of set {name!r} are cut to the model's length."
        + (f" {_longer(predictor)}" if fraction >= WARNED else "")
        for name, fraction in measurement.truncated.items()
        if fraction > 0
    ]
    for notice in notices:
        _LOG.info(notice)
    return Evaluation(
        rows=to_table(blocks),
        scores=scores,
        model=model,
        task={
            "kind": KINDS[predictor.gives],
            "metric": data.metric,
            "labels": _labels(measurement, result),
        },
        truncated=measurement.truncated,
        notices=tuple(dict.fromkeys(notices)),
        skipped=skipped,
        texts=measurement.texts.table(),
    )


def _longer(predictor: Predictor) -> str:
    if KINDS[predictor.gives] in NOT_IN_WINDOWS:
        return "Raise --max-length if the model takes longer texts."
    return (
        "Raise --max-length if the model takes longer texts, or read them in windows "
        "(--set predictor.stride=TOKENS; in `compare` data.stride)."
    )


def score(rows: pa.Table, metric: str, *, settings: EvaluationSettings) -> list[ScoreEntry]:
    """Compute all scores from rows alone, in the order of the perspectives."""
    return _score(to_blocks(rows), metric, settings)


def _score(blocks: Sequence[Block], metric: str, settings: EvaluationSettings) -> list[ScoreEntry]:
    scoring = Scoring(blocks, metric, settings.bootstrap, settings.seed)
    return [
        entry
        for name in perspectives.names()
        if name in settings.perspectives
        for entry in perspectives.perspective(name).score(scoring)
    ]


def _rows(measurement: Measurement, settings: EvaluationSettings) -> dict[str, list[Block]]:
    known = perspectives.perspectives()
    wanted = {"task", *settings.perspectives}
    wanted |= {name for asked in settings.perspectives for name in known[asked].rescores}
    chosen = [entry for entry in known.values() if entry.name in wanted]
    # The attack runs first, because its first pass also gives the clean predictions.
    chosen.sort(key=lambda entry: entry.needs != "embeddings")
    result = {}
    for number, entry in enumerate(chosen):
        measurement.report(number, len(chosen), entry.name.replace("_", " "))
        result[entry.name] = list(entry.rows(measurement))
    measurement.report(len(chosen), len(chosen), "all perspectives")
    return result


def _check(
    predictor: Predictor, data: EvaluationData, settings: EvaluationSettings
) -> dict[str, str]:
    """Check predictor, data and settings before any work; raise with all faults at once.

    Return perspective -> reason for those that cannot be measured on this predictor.
    """
    faults: list[str] = []
    chosen = [perspectives.perspective(name) for name in settings.perspectives]
    kind = KINDS[predictor.gives]
    unfit = [entry.name for entry in chosen if kind not in entry.kinds]
    skipped = dict.fromkeys(unfit, f"{', '.join(unfit)} (not for {LABELS_OF[kind]}).")
    for entry in chosen:
        if entry.name in skipped:
            continue
        contract, words = perspectives.NEEDS[entry.needs]
        if not isinstance(predictor, contract):
            # Not a fault: the same settings evaluate models and functions of texts.
            got = type(predictor).__name__
            skipped[entry.name] = f"{entry.name} needs {words}, got {got}."
            continue
        faults += entry.faults(predictor, data, settings)
        if reason := entry.lacking(predictor, data):
            skipped[entry.name] = reason
    if skipped and len(skipped) == len(chosen):
        faults.append(" ".join(dict.fromkeys(skipped.values())) + " Choose other `perspectives`.")
    names = predictor.label_names
    _refuse_misfits(data, settings, names, kind=kind, skipped=skipped, faults=faults)
    return skipped


def _labels(measurement: Measurement, found: Mapping[str, Iterable[Block]]) -> list[str]:
    if measurement.regression:
        return []
    named = measurement.predictor.label_names or measurement.dev.label_names
    classes = next(iter(found["task"])).probabilities.shape[1]
    return list(named) if named else [str(index) for index in range(classes)]


OF_TWO = "has two labels (entailment or not), but the model has three classes."


def check_before_training(
    data: EvaluationData, settings: EvaluationSettings, train: Examples
) -> None:
    """Check sets and settings of an evaluation, before a model is trained on ``train``."""
    numbers = [str(index) for index in range(train.classes)]
    names = None if train.kind == "regression" else train.label_names or numbers
    # Rows for encoder-decoder models have the same form as rows for causal models.
    kind: Kind = "completions" if train.kind == "seq2seq" else train.kind
    _refuse_misfits(data, settings, names, kind=kind)
    _aligned(data, names)


def _refuse_misfits(
    data: EvaluationData,
    settings: EvaluationSettings,
    label_names: Sequence[str] | None,
    *,
    kind: Kind,
    skipped: Collection[str] = (),
    faults: Iterable[str] = (),
) -> None:
    """Raise if settings or sets do not fit the model, with all faults at once.

    ``skipped`` are perspectives that will not be measured, ``faults`` further faults to report.
    """
    metrics = metrics_of(kind)
    if not metrics:
        raise SettingError(
            f"An evaluation does not support {LABELS_OF[kind]}; `temper train` and "
            "`temper predict` do."
        )
    result = list(faults)
    if data.metric not in metrics:
        result.append(unknown("metric", data.metric, metrics))
    for name in settings.perspectives:
        perspective = perspectives.perspective(name)
        if name not in skipped and kind in perspective.kinds:
            result += perspective.misfits(data, settings, label_names)
    sets = ["dev", *data.shift, *data.adversarial, *data.anomaly]
    twice = sorted({name for name in sets if sets.count(name) > 1})
    if twice:
        result.append(
            f"Names of sets must be distinct and not 'dev', got {twice} twice. Rename these sets."
        )
    if result:
        raise SettingError("\n".join(result))
    labeled = data.labeled
    if data.held_out is not None:
        labeled[data.held_out.name] = data.held_out
    broken = [
        f"Set {name!r} must have labels for {kind}, as the model has; they are for {examples.kind}."
        for name, examples in labeled.items()
        if examples.kind != kind
    ]
    broken += [
        f"Set {name!r} has no rows." for name, examples in data.sets.items() if not len(examples)
    ]
    if broken:
        raise DataError("\n".join(broken))


def _aligned(
    data: EvaluationData, label_names: Sequence[str] | None
) -> tuple[EvaluationData, dict[str, int]]:
    """Align the labels of all sets with the model's classes; raise with all faults at once.

    Return the sets, and set with two NLI labels -> index of the model's class entailment.
    """
    dev, index = align(data.dev, label_names)
    if index is not None:
        raise DataError(
            f"The validation set {OF_TWO} Pass one with three labels (--data), and this one as a "
            "shift set (--shift)."
        )
    sets = {
        "Shift": data.shift,
        "Adversarial": data.adversarial,
        "Fit": {} if data.fit is None else {data.fit.name: data.fit},
        "Held-out": {} if data.held_out is None else {data.held_out.name: data.held_out},
    }
    aligned: dict[str, dict[str, Examples]] = {kind: {} for kind in sets}
    entailment: dict[str, int] = {}
    faults: list[str] = []
    for kind, named in sets.items():
        for name, examples in named.items():
            try:
                aligned[kind][name], index = align(examples, label_names)
            except TemperError as error:
                faults.append(f"{kind} set {name!r}: {error}")
                continue
            if index is not None and kind == "Held-out":
                faults.append(
                    f"Held-out set {name!r} {OF_TWO} A temperature is fitted on labels of all "
                    "three: pass rows with three labels."
                )
            elif index is not None and kind != "Fit":
                entailment[name] = index
    if faults:
        raise DataError("\n".join(faults))
    result = replace(
        data,
        dev=dev,
        shift=aligned["Shift"],
        adversarial=aligned["Adversarial"],
        fit=next(iter(aligned["Fit"].values()), None),
        held_out=next(iter(aligned["Held-out"].values()), None),
    )
    return result, entailment
