"""ROC curves of anomaly detection, one figure an anomaly set, from rows alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import plotly.graph_objects as go

from temper.functional.detection import auroc
from temper.functional.resampling import FloatArray
from temper.report.drawing import LIGHT, Figure, Numbers, diagonal, empty, plain, style
from temper.report.folders import Run, Source
from temper.report.wording import ABSENT, condition, listed

CLEAN = "clean"
CORNERS = 400
"""Points of a drawn curve at most; a screen shows no more, and a page stays small."""
_DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
_STROKES = ("solid", "dashed", "dotted", "dash-dotted", "long-dashed", "long-dash-dotted")


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


def anomaly_curves(source: Source) -> list[Figure]:
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
        said = condition("anomaly", detector)
        count = f"{curve.ordinary} ordinary, {curve.anomalies} anomalies"
        # One column's detectors differ in colour, several columns' in the stroke.
        colour = looks[column]["color"] if several else LIGHT[1 + place % (len(LIGHT) - 1)]
        figure.add_trace(
            go.Scatter(
                name=plain(f"{column}, {said}" if several else said),
                legendgroup=plain(column) if several else None,
                x=_thinned(curve.false),
                y=_thinned(curve.true),
                mode="lines",
                line={"color": colour, "dash": _DASHES[place % len(_DASHES)], "width": 2},
                hovertemplate=(
                    f"<b>{plain(column)}</b>, {plain(said)}<br>AUROC {curve.area:.4f} "
                    f"{curve.interval}<br>"
                    f"ordinary %{{x:.3f}}, anomalies %{{y:.3f}}<br>n = {count}<extra></extra>"
                ),
            )
        )
        lines.append((column, said, f"{curve.area:.4f}", curve.interval or ABSENT, count))
    seeds = source.kind == "study" and any(len(column.runs) > 1 for column in source.columns)
    return Figure(
        "anomaly",
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
        f"{_STROKES[place % len(_STROKES)]} {condition('anomaly', name)}"
        for place, name in enumerate(detectors)
    ]
    return f" Lines are {listed(said)}."


def _thinned(values: FloatArray) -> list[float]:
    """Keep at most so many points, the first and the last among them."""
    if len(values) <= CORNERS:
        return [float(value) for value in values]
    places = np.linspace(0, len(values) - 1, CORNERS).round().astype(int)
    return [float(value) for value in values[places]]
