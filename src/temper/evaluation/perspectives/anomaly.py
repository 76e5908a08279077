"""Anomaly detection: does the model notice texts that do not belong to its task?

Dev rows are the ordinary ones, anomalies are positive. The condition ``clean`` is the score
``-max softmax``, read from the answers; every other detector is a condition of its own, whose rows
hold its score of each text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from temper.data.examples import Examples
from temper.display.cells import Comparison
from temper.display.charts import condition_bars
from temper.display.drawing import LIGHT, Figure, Numbers, diagonal, empty, plain, stroke, style
from temper.display.folders import Run, Source
from temper.display.views import mean_or_first
from temper.display.wording import listed
from temper.errors import ModelError
from temper.evaluation.alignment import Aligned
from temper.evaluation.measurement import Measurement, PerspectiveSettings
from temper.evaluation.perspectives.contract import Perspective
from temper.evaluation.predictor import StatePredictor
from temper.evaluation.rows import Block, Condition
from temper.evaluation.scoring import ScoreEntry, Scoring
from temper.functional import detectors
from temper.functional.detection import aupr, auroc, fpr95
from temper.functional.intervals import Statistic
from temper.functional.proportions import OfKinds
from temper.functional.resampling import FloatArray
from temper.functional.scores import ScoreFacts
from temper.functional.units import ABSENT

Detector = Literal["max_softmax", "max_logit", "energy", "mahalanobis", "knn"]
ONE_KIND = "it needs ordinary rows and anomalies, and one kind is missing"
MEASURES = {"auroc": auroc, "aupr": aupr, "fpr95": fpr95}
OF_LOGITS: dict[str, Callable[[FloatArray], FloatArray]] = {
    "max_logit": detectors.max_logit,
    "energy": detectors.energy,
}
OF_STATES = ("mahalanobis", "knn")
CLEAN = "clean"
CORNERS = 400
"""Points of a drawn curve at most; a screen shows no more, and a page stays small."""
_DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
_STROKES = ("solid", "dashed", "dotted", "dash-dotted", "long-dashed", "long-dash-dotted")

Judge = Callable[[str, Examples], FloatArray]
"""From a set's name and rows to a score of anomaly each, [n]."""


class AnomalySettings(PerspectiveSettings):
    """How anomalies are detected.

    Args:
        detectors: ``max_softmax``, ``max_logit``, ``energy`` of the answers, ``mahalanobis`` and
            ``knn`` of the last hidden states; those that the predictor or the data do not allow are
            left out with a notice.
        rows: At most so many ordinary rows teach the detectors of hidden states, >= 1, drawn by
            hash and class.
        neighbours: Which nearest ordinary row ``knn`` measures the distance to, >= 1.
    """

    detectors: tuple[Detector, ...] = ("max_softmax", "max_logit", "energy", "mahalanobis", "knn")
    rows: int = Field(default=2000, ge=1)
    neighbours: int = Field(default=10, ge=1)

    @model_validator(mode="after")
    def _are_read(self) -> Self:
        readers = {"rows": OF_STATES, "neighbours": ("knn",)}
        for name, which in readers.items():
            changed = getattr(self, name) != type(self).model_fields[name].default
            if changed and not set(which) & set(self.detectors):
                raise ValueError(f"`{name}` is read only by {' or '.join(which)} of `detectors`")
        return self


def settings_of(measurement: Measurement) -> AnomalySettings:
    """Return this perspective's settings."""
    return measurement.settings.section("anomaly", AnomalySettings)


def rows(measurement: Measurement) -> Iterable[Block]:
    """Predict every anomaly set, and let each detector score dev and these sets.

    The sets' labels, if they have any, belong to another task.
    """
    if not measurement.anomaly:
        return
    if "max_softmax" in settings_of(measurement).detectors:
        for name, examples in measurement.anomaly.items():
            yield measurement.clean_block("anomaly", name, Aligned(examples), labelled=False)
    sets = {"dev": measurement.dev, **measurement.anomaly}
    for detector, judge in _judges(measurement).items():
        for name, examples in sets.items():
            yield Block.of_values(
                Condition("anomaly", name, detector),
                examples.rows,
                np.arange(len(examples)),
                judge(name, examples),
            )


def score(scoring: Scoring) -> list[ScoreEntry]:
    """Score each detector on each anomaly set against the dev rows."""
    blocks = scoring.of("anomaly")
    ordinary = {b.condition.name: b for b in blocks if b.condition.set == "dev"}
    entries = []
    for block in blocks:
        if block.condition.set == "dev":
            continue
        dev = ordinary.get(block.condition.name, scoring.clean)
        total = len(dev) + len(block)
        if block.value is None and not block.classifies:
            reason = "a regression gives no probabilities"
            entries += [
                scoring.undefined(block.condition, name, reason=reason, rows=total)
                for name in MEASURES
            ]
            continue
        entries += [
            scoring.entry(block.condition, name, statistic=_statistic(name, dev, block), rows=total)
            for name in MEASURES
        ]
    return entries


def _statistic(name: str, ordinary: Block, anomalies: Block) -> Statistic:
    """Return a score of two blocks as a function of resample counts."""
    measure = MEASURES[name]
    flags = np.concatenate([np.zeros(len(ordinary)), np.ones(len(anomalies))])
    values = np.concatenate([_values(ordinary), _values(anomalies)])
    return OfKinds(lambda counts: measure(flags, values, counts=counts), flags)


def _values(block: Block) -> FloatArray:
    """Return each row's score of anomaly."""
    return detectors.max_softmax(block.probabilities) if block.value is None else block.value


def _judges(measurement: Measurement) -> dict[Detector, Judge]:
    """Return what scores texts for each detector but ``max_softmax``; leave out what cannot be."""
    wanted = [name for name in settings_of(measurement).detectors if name != "max_softmax"]
    found: dict[Detector, Judge] = {}
    states: _States | str | None = None
    for detector in wanted:
        if detector in OF_STATES:
            states = _ordinary_states(measurement) if states is None else states
            judge = states if isinstance(states, str) else states.judge(detector)
        else:
            judge = _of_logits(measurement, detector)
        if isinstance(judge, str):
            measurement.notices.append(f"The anomaly detector {detector!r} is left out: {judge}.")
        else:
            found[detector] = judge
    return found


def _of_logits(measurement: Measurement, detector: Detector) -> Judge | str:
    """Return a detector that reads logits, or why there is none."""
    if measurement.predictor.gives != "logits":
        return f"it needs logits, and the predictor gives {measurement.predictor.gives}"

    def judge(name: str, examples: Examples) -> FloatArray:
        logits = measurement.clean(name, examples).logits
        assert logits is not None
        return OF_LOGITS[detector](logits)

    return judge


@dataclass
class _States:
    """The last hidden states of ordinary rows and, as they are asked for, of the scored sets."""

    measurement: Measurement
    ordinary: FloatArray
    classes: FloatArray
    read: dict[str, FloatArray]

    def judge(self, detector: Detector) -> Judge | str:
        """Return a detector that has learnt from the ordinary rows, or why there is none."""
        fitted: detectors.Mahalanobis | detectors.Neighbours
        try:
            if detector == "mahalanobis":
                fitted = detectors.Mahalanobis.of(self.ordinary, self.classes)
            else:
                k = settings_of(self.measurement).neighbours
                fitted = detectors.Neighbours.of(self.ordinary, k=k)
        except ValueError as error:
            return f"of the ordinary rows that it learns from {error}"

        def judge(name: str, examples: Examples) -> FloatArray:
            if name not in self.read:
                self.read[name] = last_states(self.measurement, examples)
            return fitted.score(self.read[name])

        return judge


def _ordinary_states(measurement: Measurement) -> _States | str:
    """Read the states of the rows that detectors learn from, or say why there are none."""
    if not isinstance(measurement.predictor, StatePredictor):
        return f"hidden states of a {type(measurement.predictor).__name__} cannot be read"
    if measurement.fit is None:
        return "there are no ordinary rows for it to learn from, such as training rows"
    chosen = measurement.fit.apart([measurement.dev])
    if not chosen:
        return "all rows that it could learn from are scored too"
    settings = measurement.settings
    limit = settings_of(measurement).rows
    examples = measurement.fit.select(chosen).sample(limit, seed=settings.seed)
    try:
        ordinary = last_states(measurement, examples)
    except ModelError as error:
        return f"the hidden states cannot be read ({str(error).rstrip('.')})"
    return _States(measurement, ordinary, _classes(measurement, examples), {})


def _classes(measurement: Measurement, examples: Examples) -> FloatArray:
    """Return the class of each ordinary row: its label, else what is predicted; one of values."""
    if measurement.regression:
        return np.zeros(len(examples))
    if examples.kind == "classification" and examples.labels is not None:
        return np.asarray(examples.labels, dtype=np.float64)
    size = measurement.settings.batch_size
    return measurement.predictor.predict(examples, batch_size=size).prediction


def last_states(measurement: Measurement, examples: Examples) -> FloatArray:
    """Return the state that the head classifies for each row, [n, D].

    Args:
        measurement: Whose predictor lets its states be read.
        examples: n rows.

    Raises:
        ModelError: The model has no layers, its logits do not depend on the last one, or a state
            is not finite.
    """
    found: FloatArray | None = None
    size, done = measurement.settings.batch_size, 0
    for part in measurement.stateful.states(examples, batch_size=size):
        last = part.layers[-1].double().numpy()
        if found is None:
            found = np.empty((len(examples), last.shape[1]))
        found[part.indices] = last
        done += len(part.indices)
        measurement.tell(done, len(examples), f"hidden states ({examples.name})")
    assert found is not None
    if not bool(np.isfinite(found).all()):
        raise ModelError(
            f"A hidden state of set {examples.name!r} is not finite. The model is broken, or its "
            "precision too low."
        )
    return found


CONDITIONS = {
    "clean": "by max softmax",
    "max_logit": "by the largest logit",
    "energy": "by the energy",
    "mahalanobis": "by the Mahalanobis distance",
    "knn": "by the nearest neighbours",
}


def figures(source: Source, comparison: Comparison) -> list[Figure]:
    """Draw the AUROC of each detector, where there are several, and the ROC curves."""
    return [*detector_bars(comparison), *roc_curves(source)]


def detector_bars(comparison: Comparison) -> list[Figure]:
    """Draw the AUROC of each detector of anomalies, where there are several."""
    rows = comparison.of("anomaly", "auroc")
    if len({row.key.condition for row in rows if not row.key.over_sets}) < 2:
        return []
    caption = "AUROC of each detector, anomalies positive; right is better, and 50 % is chance."
    return condition_bars(
        comparison,
        rows,
        "AUROC",
        caption,
        label=lambda row: CONDITIONS.get(row.key.condition, row.key.condition),
    )


@dataclass(frozen=True)
class Curve:
    """Hold a ROC curve, anomalies positive.

    Args:
        false: Share of ordinary rows flagged at each threshold, [m], from 0 to 1.
        true: Share of anomalies flagged, [m], from 0 to 1.
        area: The area under it.
        interval: Its 95 % interval in words, empty where none was recorded.
        ordinary: Number of ordinary rows.
        anomalies: Number of anomalies.
    """

    false: FloatArray
    true: FloatArray
    area: float
    ordinary: int
    anomalies: int
    interval: str = ""


def roc(ordinary: FloatArray, anomalies: FloatArray) -> Curve:
    """Return the ROC curve of scores of anomaly.

    Args:
        ordinary: Scores of ordinary rows, [n], n >= 1; higher means more anomalous.
        anomalies: Scores of anomalies, [k], k >= 1.

    Returns:
        The curve through the origin and every threshold that occurs.

    Example:
        >>> curve = roc(np.array([0.1, 0.4]), np.array([0.35, 0.8]))
        >>> curve.false.tolist(), curve.true.tolist(), curve.area
        ([0.0, 0.0, 0.5, 0.5, 1.0], [0.0, 0.5, 0.5, 1.0, 1.0], 0.75)
    """
    thresholds = np.unique(np.concatenate([ordinary, anomalies]))[::-1]
    rates = [
        np.concatenate([[0.0], 1 - np.searchsorted(np.sort(scores), thresholds) / len(scores)])
        for scores in (ordinary, anomalies)
    ]
    flags = np.concatenate([np.zeros(len(ordinary)), np.ones(len(anomalies))])
    area = float(auroc(flags, np.concatenate([ordinary, anomalies])))
    return Curve(rates[0], rates[1], area, len(ordinary), len(anomalies))


def roc_curves(source: Source) -> list[Figure]:
    """Draw a ROC curve for each column and detector, one figure an anomaly set.

    Of a column with several seeds the first is drawn: scores of two models have no common scale, so
    their rows cannot be pooled.

    Args:
        source: The folder; its ``rows.parquet`` files are read.
    """
    found: dict[str, list[tuple[str, str, Curve]]] = {}
    for column in source.columns:
        run = next((run for run in column.runs.values() if run.scores is not None), None)
        if run is None:
            continue
        for (name, detector), curve in _curves(run).items():
            found.setdefault(name, []).append((column.name, detector, curve))
    looks = style([column.name for column in source.columns], source.reference)
    return [_figure(name, curves, looks, source) for name, curves in found.items()]


def _curves(run: Run) -> dict[tuple[str, str], Curve]:
    """Return the curve of each anomaly set and detector."""
    ordinary = _scores(run, "task")
    rows = _scores(run, "anomaly")
    found = {}
    for (name, detector), scores in rows.items():
        if name == "dev":
            continue
        # Max softmax is read from the answers, of dev rows those of the task.
        dev = ordinary if detector == CLEAN else rows
        against = dev.get(("dev", detector))
        if against is not None and len(against) and len(scores):
            curve = roc(against, scores)
            found[name, detector] = replace(curve, interval=_interval(run, name, detector))
    return found


def _interval(run: Run, name: str, detector: str) -> str:
    """Return the interval that was recorded with the score, in words."""
    for score in run.scores.scores if run.scores is not None else ():
        key = (score.perspective, score.set, score.condition, score.name)
        if key == ("anomaly", name, detector, "auroc") and score.low is not None:
            return f"[{score.low:.4f}, {score.high:.4f}]"
    return ""


def _scores(run: Run, perspective: str) -> dict[tuple[str, str], FloatArray]:
    """Return the scores of anomaly by set and detector; NaN are left out."""
    rows = run.rows(["set", "condition", "probabilities"], perspective, optional=["value"])
    found = {}
    for (name, detector), part in rows.groupby(["set", "condition"], sort=False):
        if detector == CLEAN:
            filled = part[part["probabilities"].map(len) > 0]
            values = np.asarray([-max(row) for row in filled["probabilities"]], dtype=np.float64)
        elif "value" in part:
            values = part["value"].dropna().to_numpy(dtype=np.float64)
        else:
            continue
        if len(values):
            found[str(name), str(detector)] = values
    return found


def _figure(
    name: str, curves: list[tuple[str, str, Curve]], looks: dict[str, Any], source: Source
) -> Figure:
    figure = empty("share of ordinary rows flagged", "share of anomalies flagged")
    figure.update_layout(height=420)
    figure.update_xaxes(range=[-0.02, 1.02])
    figure.update_yaxes(range=[-0.02, 1.02])
    figure.add_trace(diagonal("chance"))
    detectors = list(dict.fromkeys(detector for _, detector, _ in curves))
    several = len({column for column, _, _ in curves}) > 1
    lines = []
    for column, detector, curve in curves:
        place = detectors.index(detector)
        said = CONDITIONS.get(detector, detector)
        count = f"{curve.ordinary} ordinary, {curve.anomalies} anomalies"
        # One column's detectors differ in colour, several columns' in the stroke.
        colour = looks[column]["color"] if several else LIGHT[1 + place % (len(LIGHT) - 1)]
        figure.add_trace(
            stroke(
                f"{column}, {said}" if several else said,
                _thinned(curve.false),
                _thinned(curve.true),
                colour=colour,
                dash=_DASHES[place % len(_DASHES)],
                group=column if several else None,
                hover=(
                    f"<b>{plain(column)}</b>, {plain(said)}<br>AUROC {curve.area:.4f} "
                    f"{curve.interval}<br>"
                    f"ordinary %{{x:.3f}}, anomalies %{{y:.3f}}<br>n = {count}<extra></extra>"
                ),
            )
        )
        lines.append((column, said, f"{curve.area:.4f}", curve.interval or ABSENT, count))
    seeds = source.kind == "study" and any(len(column.runs) > 1 for column in source.columns)
    return Figure(
        f"Anomalies: {name}",
        "ROC of every detector, anomalies positive; further to the upper left is better, and the "
        "thin dotted line is chance."
        + (_strokes(detectors) if several and len(detectors) > 1 else "")
        + (" Of each column the first seed is drawn." if seeds else ""),
        figure,
        Numbers(("column", "detector", "AUROC", "95 % interval", "n"), tuple(lines)),
    )


def _strokes(detectors: Sequence[str]) -> str:
    """Say which stroke is which detector's, a sentence."""
    said = [
        f"{_STROKES[place % len(_STROKES)]} {CONDITIONS.get(name, name)}"
        for place, name in enumerate(detectors)
    ]
    return f" Lines are {listed(said)}."


def _thinned(values: FloatArray) -> list[float]:
    """Keep at most so many points, the first and the last among them."""
    if len(values) <= CORNERS:
        return [float(value) for value in values]
    places = np.linspace(0, len(values) - 1, CORNERS).round().astype(int)
    return [float(value) for value in values[places]]


ANOMALY = Perspective(
    name="anomaly",
    title="Anomaly detection",
    place=120,
    leads="auroc",
    leads_clean=True,
    sums_up=mean_or_first,
    conditions=CONDITIONS,
    unsaid=(),
    heading="Anomaly detection",
    figures=figures,
    improves=True,
    averaged=True,
    summary="AUROC, AUPR and FPR at 95 % TPR of five detectors on texts of other tasks "
    "(--anomaly, --suite)",
    scores=(
        ScoreFacts("auroc", "AUROC", True, 1.0, ONE_KIND),
        ScoreFacts("aupr", "AUPR", True, 1.0, ONE_KIND),
        ScoreFacts("fpr95", "FPR at 95 % TPR", False, 0.0, ONE_KIND),
    ),
    rows=rows,
    score=score,
    settings=AnomalySettings,
)
