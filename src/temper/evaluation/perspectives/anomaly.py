"""OOD detection (`anomaly`): does the model notice texts that do not belong to its task?

Validation rows are the negatives, and OOD texts the positives. The condition ``clean`` is the
detector ``-max softmax``, computed from the predictions. Each other detector is a condition whose
rows have its OOD score of each text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from temper.data.examples import Examples
from temper.display.cells import Comparison
from temper.display.charts import (
    COLORS,
    DASHES,
    Axis,
    Curve,
    Figure,
    Lines,
    Look,
    Point,
    condition_bars,
    diagonal,
    style,
)
from temper.display.folders import Run, Source
from temper.display.views import Heading, mean_or_first
from temper.errors import ModelError
from temper.evaluation.common_settings import CommonSettings, PerspectiveSettings
from temper.evaluation.measurement import EvaluationData, Measurement
from temper.evaluation.perspectives.registry import ALL_KINDS, ONE_PREDICTION, Perspective
from temper.evaluation.prediction import Prediction, joined
from temper.evaluation.predictor import StateReader
from temper.evaluation.rows import Block, Condition
from temper.evaluation.scoring import ScoreEntry, Scoring
from temper.functional import detectors
from temper.functional.detectors import Mahalanobis, aupr, auroc, fpr95
from temper.functional.proportions import OfKinds
from temper.functional.resampling import FloatArray
from temper.functional.scores import ScoreFacts

Detector = Literal["max_softmax", "max_logit", "energy", "mahalanobis"]
ONE_KIND = "it needs in-distribution and OOD rows, and one kind is missing"
SCORES = (
    ScoreFacts("auroc", "AUROC", True, 1.0, ONE_KIND, guessing=0.5, measure=auroc),
    ScoreFacts("aupr", "AUPR", True, 1.0, ONE_KIND, measure=aupr),
    ScoreFacts("fpr95", "FPR at 95% TPR", False, 0.0, ONE_KIND, measure=fpr95),
)
OF_LOGITS: dict[str, Callable[[FloatArray], FloatArray]] = {
    "max_logit": detectors.max_logit,
    "energy": detectors.energy,
}
OF_STATES = "mahalanobis"
"""The OOD detector that reads hidden states; the others read logits or probabilities."""
CLEAN = "clean"
PART = 1024
"""Number of rows whose states are in memory at a time."""
CORNERS = 400
"""Maximum number of points of a drawn curve, to keep the page small."""


class AnomalySettings(PerspectiveSettings):
    """Settings of OOD detection."""

    detectors: tuple[Detector, ...] = Field(
        default=("max_softmax", "max_logit", "energy", "mahalanobis"),
        description="Detectors: `max_softmax`, `max_logit` and `energy` read the logits, "
        "`mahalanobis` the hidden states of all layers. Unsupported detectors are "
        "skipped with a notice.",
    )
    rows: int = Field(
        default=2000,
        ge=4,
        description="Maximum number of in-distribution rows to fit `mahalanobis` on, chosen by "
        "hash and class.",
    )

    @model_validator(mode="after")
    def _are_read(self) -> Self:
        changed = self.rows != type(self).model_fields["rows"].default
        if changed and OF_STATES not in self.detectors:
            raise ValueError(f"`rows` is read only by {OF_STATES} of `detectors`")
        return self


def rows(measurement: Measurement) -> Iterable[Block]:
    """Predict every OOD set, and compute each detector's OOD scores of dev and these sets.

    Labels of OOD sets are ignored, because they belong to another task.
    """
    if not measurement.anomaly:
        return
    settings = measurement.settings.section("anomaly", AnomalySettings)
    sets = {"dev": measurement.dev, **measurement.anomaly}
    scores: dict[Detector, dict[str, FloatArray]] = {}
    faults: dict[Detector, ValueError] = {}
    # States come first, because the passes that read them also give the predictions.
    for detector in sorted(settings.detectors, key=lambda name: name != OF_STATES):
        try:
            if detector == OF_STATES:
                scores[detector] = _of_states(measurement, settings, sets)
            elif detector != "max_softmax":
                scores[detector] = _of_logits(measurement, OF_LOGITS[detector], sets)
        except ValueError as error:
            faults[detector] = error
    if "max_softmax" in settings.detectors and measurement.dev.kind in ONE_PREDICTION:
        for name, examples in measurement.anomaly.items():
            yield measurement.clean_block("anomaly", name, examples, labeled=False)
    for detector in settings.detectors:
        if detector in faults:
            measurement.notices.append(
                f"The anomaly detector {detector!r} is left out: {faults[detector]}."
            )
        for name, values in scores.get(detector, {}).items():
            condition = Condition("anomaly", name, detector)
            rows_of = sets[name].rows
            yield Block.of_values(condition, rows_of, np.arange(len(rows_of)), values)


def score(scoring: Scoring) -> list[ScoreEntry]:
    """Compute AUROC and other scores of each detector on each OOD set against dev."""
    blocks = scoring.of("anomaly")
    ordinary = {b.condition.name: b for b in blocks if b.condition.set == "dev"}
    entries = []
    for block in blocks:
        if block.condition.set == "dev":
            continue
        dev, condition = ordinary.get(block.condition.name, scoring.clean), block.condition
        total = len(dev) + len(block)
        if block.value is None and not block.classifies:
            reason = "a regression has no probabilities"
            entries += [
                scoring.undefined(condition, facts.name, reason=reason, rows=total)
                for facts in SCORES
            ]
        else:
            flags = np.concatenate([np.zeros(len(dev)), np.ones(len(block))])
            values = np.concatenate([values_of(dev), values_of(block)])
            statistics = {
                facts.name: OfKinds(facts.statistic(flags, values), flags) for facts in SCORES
            }
            entries += scoring.entries_of(condition, statistics, rows=total)
    return entries


def _misfits(
    data: EvaluationData, settings: CommonSettings, label_names: Sequence[str] | None
) -> list[str]:
    """Return errors about OOD sets without the contexts that a model of questions needs."""
    if data.dev.kind != "spans":
        return []
    return [
        f"OOD set {name!r} must have questions and contexts, as dev has; it has one text per row."
        for name, examples in data.anomaly.items()
        if examples.text_pair is None
    ]


def values_of(block: Block) -> FloatArray:
    """Return each row's OOD score."""
    return detectors.max_softmax(block.probabilities) if block.value is None else block.value


def _of_logits(
    measurement: Measurement,
    measure: Callable[[FloatArray], FloatArray],
    sets: Mapping[str, Examples],
) -> dict[str, FloatArray]:
    """Return set -> OOD scores ``measure(logits)``; raise a `ValueError` if there are no logits."""
    if measurement.predictor.gives not in ("logits", "choices"):
        raise ValueError(
            f"it needs logits, but the predictor returns {measurement.predictor.gives}"
        )
    scores = {}
    for name, examples in sets.items():
        logits = measurement.clean(name, examples).logits
        assert logits is not None
        scores[name] = measure(logits)
    return scores


def _of_states(
    measurement: Measurement, settings: AnomalySettings, sets: Mapping[str, Examples]
) -> dict[str, FloatArray]:
    """Return set -> Mahalanobis distances over all layers, and cache the sets' predictions."""
    detector = _fitted(measurement, settings)
    scores = {}
    for name, examples in sets.items():
        predictions, scores[name] = _read(measurement, examples, detector.score)
        measurement.keep(name, predictions)
    return scores


def _fitted(measurement: Measurement, settings: AnomalySettings) -> Mahalanobis:
    predictor = measurement.predictor
    if not isinstance(predictor, StateReader):
        raise ValueError(f"hidden states of a {type(predictor).__name__} cannot be read")
    if measurement.fit is None:
        raise ValueError("there are no in-distribution rows to fit it on; pass them as `sets.fit`")
    chosen = measurement.fit.apart([measurement.dev])
    if not chosen:
        raise ValueError("all rows of `sets.fit` to fit it on are evaluated too; choose other rows")
    seed = measurement.settings.seed
    examples = measurement.fit.select(chosen).sample(settings.rows, seed=seed)
    try:
        _, states = _read(measurement, examples, lambda states: states)
    except ModelError as error:
        message = str(error).rstrip(".")
        raise ValueError(f"the hidden states cannot be read ({message})") from error
    try:
        return Mahalanobis.of(states)
    except ValueError as error:
        raise ValueError(f"it cannot be fitted on the in-distribution rows: {error}") from error


def _read(
    measurement: Measurement,
    examples: Examples,
    reduce: Callable[[NDArray[np.float32]], NDArray[Any]],
) -> tuple[Prediction, NDArray[Any]]:
    """Predict a set; return the predictions, and ``reduce(states)`` of its hidden states.

    Few rows are read at a time, because states of all layers are large.
    """
    predictor, size = measurement.predictor, measurement.settings.batch_size
    assert isinstance(predictor, StateReader)
    parts, reduced = [], []
    for start in range(0, len(examples), PART):
        stop = min(start + PART, len(examples))
        part = examples.select(range(start, stop))
        predictions, states = predictor.predict_with_states(part, batch_size=size)
        parts.append(predictions)
        reduced.append(reduce(states))
        measurement.report(stop, len(examples), f"hidden states ({examples.name})")
    return joined(range(len(examples)), parts), np.concatenate(reduced)


CONDITIONS = {
    "clean": "by max softmax",
    "max_logit": "by the largest logit",
    "energy": "by the energy",
    "mahalanobis": "by the Mahalanobis distance",
    # No longer measured, but older results have its scores.
    "knn": "by the nearest neighbors",
}


def figures(source: Source, comparison: Comparison) -> list[Figure]:
    """Draw the AUROC of each detector if there are several, and the ROC curves."""
    rows = comparison.of("anomaly", "auroc")
    bars: list[Figure] = []
    if len({row.key.condition for row in rows if not row.key.over_sets}) > 1:
        caption = "AUROC of each detector, OOD rows positive; right is better, and 50% is chance."
        bars = condition_bars(comparison, rows, "AUROC", caption, names=CONDITIONS)
    return [*bars, *roc_curves(source)]


def roc(ordinary: FloatArray, anomalies: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the ROC curve of OOD scores: false and true positive rates, [m] each.

    Example:
        >>> false, true = roc(np.array([0.1, 0.4]), np.array([0.35, 0.8]))
        >>> false.tolist(), true.tolist()
        ([0.0, 0.0, 0.5, 0.5, 1.0], [0.0, 0.5, 0.5, 1.0, 1.0])
    """
    thresholds = np.unique(np.concatenate([ordinary, anomalies]))[::-1]
    false, true = (
        np.concatenate([[0.0], 1 - np.searchsorted(np.sort(scores), thresholds) / len(scores)])
        for scores in (ordinary, anomalies)
    )
    return false, true


def roc_curves(source: Source) -> list[Figure]:
    """Draw ROC curves, one figure per OOD set.

    For one method all detectors are drawn, for several the one with the highest mean AUROC.
    """
    looks = style([column.name for column in source.columns], source.reference)
    curves: dict[str, dict[tuple[str, str], tuple[FloatArray, FloatArray]]] = {}
    for column_name, run in source.first_runs.items():
        # Max softmax is computed from the predictions; validation rows are those of the task.
        result = {**_scores(run, "task"), **_scores(run, "anomaly")}
        for (name, detector), scores in result.items():
            if name != "dev" and ("dev", detector) in result:
                curve = roc(result["dev", detector], scores)
                curves.setdefault(name, {})[column_name, detector] = curve
    drawn = []
    for name, of_set in curves.items():
        detectors = list(dict.fromkeys(detector for _, detector in of_set))
        several = len({column for column, _ in of_set}) > 1
        caption = "ROC of every detector"
        if several:
            areas: dict[str, list[float]] = {}
            for (_, detector), (false, true) in of_set.items():
                areas.setdefault(detector, []).append(float(np.trapezoid(true, false)))
            best = max(areas, key=lambda detector: fmean(areas[detector]))
            of_set = {key: curve for key, curve in of_set.items() if key[1] == best}
            named = CONDITIONS.get(best, best)
            caption = f"ROC of the detector with the highest mean AUROC, {named}"
        drawn_curves = [diagonal("chance")]
        for (column_name, detector), (false, true) in of_set.items():
            index = detectors.index(detector)
            label = CONDITIONS.get(detector, detector)
            corners = np.linspace(0, len(false) - 1, min(len(false), CORNERS)).round().astype(int)
            look = Look(1 + index % (COLORS - 1), dash=DASHES[index % len(DASHES)])
            drawn_curves.append(
                Curve(
                    column_name if several else label,
                    tuple(map(Point, false[corners].tolist(), true[corners].tolist())),
                    looks[column_name] if several else look,
                    column=column_name if several else None,
                    marked=False,
                )
            )
        chart = Lines(
            Axis("fraction of in-distribution rows flagged", (-0.02, 1.02)),
            Axis("fraction of OOD rows flagged", (-0.02, 1.02)),
            tuple(drawn_curves),
            height=340,
        )
        caption += (
            ", OOD rows positive; further to the upper left is better, and the thin dotted line is "
            f"chance. {source.drawn_seeds}"
        )
        drawn.append(Figure(f"OOD texts: {name}", caption.rstrip(), chart))
    return drawn


def _scores(run: Run, perspective: str) -> dict[tuple[str, str], FloatArray]:
    rows = run.rows(["set", "condition", "probabilities"], perspective, optional=["value"])
    result = {}
    for (name, detector), part in rows.groupby(["set", "condition"], sort=False):
        if detector == CLEAN:
            filled = part[part["probabilities"].map(len) > 0]
            values = np.asarray([-max(row) for row in filled["probabilities"]], dtype=np.float64)
        elif "value" in part:
            values = part["value"].dropna().to_numpy(dtype=np.float64)
        else:
            continue
        if len(values):
            result[str(name), str(detector)] = values
    return result


ANOMALY = Perspective(
    name="anomaly",
    title="OOD detection",
    order=120,
    heading=Heading.CALIBRATION,
    explained="AUROC is the chance that an OOD text gets a higher OOD score than an "
    "in-distribution one: 50% is guessing, 100% perfect.",
    gain="is {better} at OOD detection (AUROC {ours}, {compared})",
    leads="auroc",
    sums_up=mean_or_first,
    conditions=CONDITIONS,
    figures=figures,
    improves=True,
    without_training="mahalanobis",
    averaged=True,
    own_rows=False,
    summary="AUROC, AUPR and FPR at 95% TPR of four OOD detectors (--anomaly, --suite); only of "
    "the one on hidden states if a text does not have exactly one class",
    scores=SCORES,
    rows=rows,
    score=score,
    settings=AnomalySettings,
    misfits=_misfits,
    kinds=ALL_KINDS,
)
