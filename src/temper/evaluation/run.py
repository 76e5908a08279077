"""Evaluate a predictor: perspectives make rows, and scores are computed only from rows."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence

from temper.data.encode import WARNED
from temper.data.examples import LABELS_OF, Examples, Kind
from temper.data.windows import NOT_IN_WINDOWS
from temper.errors import DataError, SettingError, TemperError, unknown
from temper.evaluation import perspectives
from temper.evaluation.folder import Evaluation as Evaluation
from temper.evaluation.folder import read as read
from temper.evaluation.folder import write as write
from temper.evaluation.measurement import Aligned, Measurement, Progress, align
from temper.evaluation.measurement import EvaluationData as EvaluationData
from temper.evaluation.predictor import KINDS, Predictor
from temper.evaluation.rows import Block, to_blocks, to_table
from temper.evaluation.scoring import (
    METRICS_OF,
    ScoreEntry,
    Scoring,
)
from temper.evaluation.settings import EvaluationSettings as EvaluationSettings
from temper.lazy import pyarrow as pa

_LOG = logging.getLogger(__name__)


ONE_LABEL = "This needs one label per text."


def evaluate(
    predictor: Predictor,
    data: EvaluationData,
    settings: EvaluationSettings | None = None,
    *,
    model: str = "",
    thresholds: tuple[float, ...] | None = None,
    progress: Progress | None = None,
) -> Evaluation:
    """Measure a predictor.

    Clean validation rows are always predicted, because other perspectives are compared with them.
    The model is unchanged afterwards. Every draw is keyed by seed and row, so the results do not
    depend on the order or the batch size.

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
        DataError: A set does not fit the task; all faults at once.
        ModelError: The model's predictions are broken.
    """
    settings = EvaluationSettings() if settings is None else settings
    skipped = _check(predictor, data, settings)
    measurement = _measurement(predictor, data, settings, progress)
    measurement.thresholds = thresholds
    reasons = [reason for reason in skipped.values() if reason != ONE_LABEL]
    if without := [name for name, reason in skipped.items() if reason == ONE_LABEL]:
        reasons.append(f"{', '.join(without)}. {ONE_LABEL}")
    measurement.notices += [f"Not measured: {reason}" for reason in reasons]
    settings = settings.without(skipped)
    result = _rows(measurement, settings)
    blocks = [block for name in perspectives.names() for block in result.get(name, ())]
    measurement.forget()
    # Scored before they are written: blocks that are read from a table would be a second copy.
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
        "(--set predictor.stride=TOKENS)."
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
        measurement.phase = number, len(chosen), entry.name.replace("_", " ")
        result[entry.name] = list(entry.rows(measurement))
    measurement.report(len(chosen), len(chosen), "all perspectives")
    return result


def _check(
    predictor: Predictor, data: EvaluationData, settings: EvaluationSettings
) -> dict[str, str]:
    """Check predictor, data and settings before any work, all faults at once.

    Return the perspectives that cannot be measured on this predictor, with the reasons.
    """
    faults: list[str] = []
    skipped: dict[str, str] = {}
    chosen = [perspectives.perspective(name) for name in settings.perspectives]
    for entry in chosen:
        if KINDS[predictor.gives] not in entry.kinds:
            skipped[entry.name] = ONE_LABEL
            continue
        contract, words = perspectives.NEEDS[entry.needs]
        if not isinstance(predictor, contract):
            # The same perspectives evaluate models and bare functions.
            got = type(predictor).__name__
            skipped[entry.name] = f"{entry.name} needs {words}, got {got}."
            continue
        faults += entry.faults(predictor, data, settings)
        if reason := entry.lacking(predictor, data):
            skipped[entry.name] = reason
    if skipped and len(skipped) == len(chosen):
        faults.append(" ".join(skipped.values()) + " Choose other `perspectives`.")
    _refuse_misfits(
        data,
        settings,
        predictor.label_names,
        kind=KINDS[predictor.gives],
        skipped=skipped,
        faults=faults,
    )
    return skipped


def _measurement(
    predictor: Predictor,
    data: EvaluationData,
    settings: EvaluationSettings,
    progress: Progress | None,
) -> Measurement:
    result = _aligned(data, predictor.label_names)
    return Measurement(
        predictor,
        result["dev"]["dev"].examples,
        result["shift"],
        data.anomaly,
        settings,
        progress,
        adversarial=result["adversarial"],
        fit=next((aligned.examples for aligned in result["fit"].values()), None),
        held_out=next((aligned.examples for aligned in result["held-out"].values()), None),
        reference=data.reference,
    )


def _labels(measurement: Measurement, found: Mapping[str, Iterable[Block]]) -> list[str]:
    """Return the classes' names, or their indices if they have no names."""
    if measurement.regression:
        return []
    named = measurement.predictor.label_names or measurement.dev.label_names
    classes = next(iter(found["task"])).probabilities.shape[1]
    return list(named) if named else [str(index) for index in range(classes)]


OF_TWO = "has two labels (entailment or not), but the model has three classes."


def check_before_training(
    data: EvaluationData, settings: EvaluationSettings, train: Examples
) -> None:
    """Check sets and settings for a model that is to be trained on ``train``."""
    numbers = [str(index) for index in range(train.classes)]
    names = None if train.kind == "regression" else train.label_names or numbers
    # The rows are the same, whether an encoder reads the prompts or not.
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
    """Raise if settings or sets do not fit, with all faults at once.

    ``skipped`` perspectives will not be measured; ``faults`` are further faults to report.
    """
    if kind not in METRICS_OF:
        raise SettingError(
            f"The labels are {LABELS_OF[kind]}, which `temper train` and `temper predict` support; "
            "an evaluation does not score them."
        )
    metrics = METRICS_OF[kind]
    result = list(faults)
    if data.metric not in metrics:
        result.append(unknown("metric", data.metric, metrics))
    for name in settings.perspectives:
        if name not in skipped:
            result += perspectives.perspective(name).misfits(data, settings, label_names)
    sets = ["dev", *data.shift, *data.adversarial, *data.anomaly]
    twice = sorted({name for name in sets if sets.count(name) > 1})
    if twice:
        result.append(
            f"Names of sets must be distinct and not 'dev', got {twice} twice. Rename one."
        )
    if result:
        raise SettingError("\n".join(result))
    labeled = {"dev": data.dev, **data.shift, **data.adversarial}
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
) -> dict[str, dict[str, Aligned]]:
    """Bring the labels of all sets into the model's order, or name every set that does not fit.

    Return every labeled set, and the rows to fit on, by name, by kind (``dev``, ``shift``,
    ``adversarial``, ``fit``, ``held-out``).
    """
    dev = align(data.dev, label_names)
    if dev.entailment is not None:
        raise DataError(
            f"The dev set {OF_TWO} Give such a set as a shift set, and one with three labels as "
            "dev."
        )
    sets = {"shift": data.shift, "adversarial": data.adversarial}
    for kind, examples in (("fit", data.fit), ("held-out", data.held_out)):
        sets[kind] = {} if examples is None else {examples.name: examples}
    result = {"dev": {"dev": dev}}
    faults: list[str] = []
    for kind, named in sets.items():
        aligned = result.setdefault(kind, {})
        for name, examples in named.items():
            try:
                aligned[name] = align(examples, label_names)
            except TemperError as error:
                faults.append(f"{kind.capitalize()} set {name!r}: {error}")
                continue
            if kind == "held-out" and aligned[name].entailment is not None:
                faults.append(
                    f"Held-out set {name!r} {OF_TWO} A temperature is fitted on labels of all "
                    "three: give rows with three labels."
                )
    if faults:
        raise DataError("\n".join(faults))
    return result
