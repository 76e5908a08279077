"""All figures of a report; reliability, training and cost are drawn here, curves elsewhere."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import mean
from typing import Any

import numpy as np
import plotly.graph_objects as go

from temper.functional.calibration import reliability
from temper.report.cells import Comparison
from temper.report.curves import corruptions, noise, robustness
from temper.report.drawing import LIGHT, Figure, empty, line, plain, style
from temper.report.folders import Run, Source
from temper.report.layers import smoothness
from temper.report.wording import plural

BINS = 10


def figures(source: Source, comparison: Comparison) -> list[Figure]:
    """Draw everything that a folder has data for.

    Args:
        source: The folder.
        comparison: Its scores.

    Returns:
        The figures in the order of the page; a folder without, say, attacks has no attack figure.

    Raises:
        CheckpointError: Rows or metrics are damaged.
    """
    drawn = [*robustness(comparison), *noise(comparison), *corruptions(comparison)]
    drawn += smoothness(comparison)
    drawn += [*reliability_diagrams(source), *training(source)]
    if (figure := cost(source)) is not None:
        drawn.append(figure)
    return drawn


def reliability_diagrams(source: Source) -> list[Figure]:
    """Draw accuracy over confidence in ten bins, one figure a labelled clean set.

    The rows of all seeds of a column are pooled: a bin of one seed is often too small to read.

    Args:
        source: The folder; its ``rows.parquet`` files are read.
    """
    pooled: dict[str, dict[str, list[tuple[Any, Any]]]] = {}
    for run in source.runs:
        for perspective in ("task", "shift"):
            for name, hits, confidences in _confidences(run, perspective):
                pooled.setdefault(name, {}).setdefault(run.column, []).append((hits, confidences))
    looks = style([column.name for column in source.columns], source.reference)
    drawn = []
    for name, columns in pooled.items():
        figure = empty("confidence", "share of right answers")
        figure.update_xaxes(range=[0, 1.02])
        figure.update_yaxes(range=[0, 1.02])
        figure.add_trace(
            go.Scatter(
                name="perfect",
                x=[0, 1],
                y=[0, 1],
                mode="lines",
                line={"color": LIGHT[0], "width": 1, "dash": "dot"},
                hoverinfo="skip",
            )
        )
        for column, parts in columns.items():
            figure.add_trace(_diagram(column, parts, looks[column]))
        drawn.append(
            Figure(
                "calibration",
                f"Reliability, {name}",
                f"Below the dotted line a model is too sure of itself. {BINS} bins of equal width, "
                "rows of all seeds together; a bin's size is in its label.",
                figure,
            )
        )
    return drawn


def _confidences(run: Run, perspective: str) -> Iterable[tuple[str, Any, Any]]:
    """Yield set, hits and confidences of a run's labelled classification rows."""
    rows = run.rows(["set", "condition", "label", "prediction", "probabilities"], perspective)
    rows = rows[(rows["condition"] == "clean") & rows["label"].notna()]
    rows = rows[rows["probabilities"].map(len) > 0] if len(rows) else rows
    for name, part in rows.groupby("set", sort=False):
        hits = (part["label"] == part["prediction"]).to_numpy()
        # Not the largest one: under `merge="argmax"` the class was chosen among more.
        chosen = zip(part["probabilities"], part["prediction"], strict=True)
        yield str(name), hits, np.asarray([row[int(label)] for row, label in chosen])


def _diagram(column: str, parts: list[tuple[Any, Any]], look: dict[str, Any]) -> go.Scatter:
    hits = np.concatenate([part[0] for part in parts])
    confidences = np.concatenate([part[1] for part in parts])
    bins = reliability(hits, confidences, bins=BINS)
    filled = bins.rows > 0
    return line(
        column,
        look,
        x=bins.confidence[filled].tolist(),
        y=bins.accuracy[filled].tolist(),
        customdata=bins.rows[filled].tolist(),
        hovertemplate=(
            f"<b>{plain(column)}</b><br>confidence %{{x:.3f}}<br>right %{{y:.3f}}<br>"
            "%{customdata} rows<extra></extra>"
        ),
    )


def training(source: Source) -> list[Figure]:
    """Draw every loss term over the steps: the mean over seeds, and each seed faintly.

    Args:
        source: The folder; its ``metrics.jsonl`` files are read.
    """
    terms: dict[str, dict[str, dict[int, list[tuple[int, float]]]]] = {}
    for run in source.runs:
        for log in run.metrics():
            for name, value in log.items():
                wanted = name == "loss" or name.startswith("loss/")
                if wanted and isinstance(value, int | float) and isinstance(log.get("step"), int):
                    seeds = terms.setdefault(name, {}).setdefault(run.column, {})
                    seeds.setdefault(run.seed, []).append((log["step"], float(value)))
    looks = style([column.name for column in source.columns], source.reference)
    drawn = []
    for name in sorted(terms, key=lambda term: (term != "loss", term)):
        figure = empty("step", "loss" if name == "loss" else "mean a row")
        for column, seeds in terms[name].items():
            for trace in _losses(column, seeds, looks[column]):
                figure.add_trace(trace)
        drawn.append(
            Figure(
                "training",
                "Total loss" if name == "loss" else f"Term: {name.removeprefix('loss/')}",
                "As logged while training; the thick line is the mean over seeds."
                if name == "loss"
                else "Mean a row before its weight; the thick line is the mean over seeds.",
                figure,
            )
        )
    return drawn


def _losses(
    column: str, seeds: dict[int, list[tuple[int, float]]], look: dict[str, Any]
) -> list[go.Scatter]:
    stroke = {"color": look["color"], "dash": look["dash"]}
    traces = []
    if len(seeds) > 1:
        traces = [
            go.Scatter(
                x=[step for step, _ in points],
                y=[value for _, value in points],
                mode="lines",
                line={**stroke, "width": 1},
                opacity=0.3,
                legendgroup=plain(column),
                showlegend=False,
                hoverinfo="skip",
            )
            for points in seeds.values()
        ]
    # Only steps that every seed logged: a mean over fewer would jump where one run ended earlier.
    by_seed = [dict(points) for points in seeds.values()]
    steps = sorted(set(by_seed[0]).intersection(*by_seed[1:]))
    traces.append(
        go.Scatter(
            name=plain(column),
            x=steps,
            y=[mean(values[step] for values in by_seed) for step in steps],
            mode="lines+markers" if len(steps) < 2 else "lines",
            line={**stroke, "width": 2.5},
            legendgroup=plain(column),
            hovertemplate=(
                f"<b>{plain(column)}</b>, {plural(len(seeds), 'seed')}<br>step %{{x}}<br>"
                "%{y:.4g}<extra></extra>"
            ),
        )
    )
    return traces


def cost(source: Source) -> Figure | None:
    """Draw what a training step costs over the reference's, None where nothing was measured.

    Args:
        source: The folder; ``cost`` of its ``study.json`` is read.
    """
    known = [
        (column.name, column.cost.over_reference, column.cost.step_seconds)
        for column in source.columns
        if column.cost is not None and column.cost.over_reference is not None
    ]
    if not known:
        return None
    looks = style([column.name for column in source.columns], source.reference)
    figure = empty("step time over the reference's", "", showlegend=False)
    figure.update_layout(height=110 + 38 * len(known))
    figure.update_xaxes(rangemode="tozero")
    figure.update_yaxes(autorange="reversed", type="category")
    figure.add_trace(
        go.Bar(
            orientation="h",
            y=[plain(name) for name, _, _ in known],
            x=[ratio for _, ratio, _ in known],
            marker={"color": [looks[name]["color"] for name, _, _ in known]},
            text=[f"{ratio:.2f} \u00d7" for _, ratio, _ in known],
            textposition="auto",
            customdata=[
                "" if seconds is None else f"{seconds:.4g} s a step" for *_, seconds in known
            ],
            hovertemplate="<b>%{y}</b><br>%{text}<br>%{customdata}<extra></extra>",
        )
    )
    return Figure(
        "cost",
        "Cost of a step",
        f"Median time of an optimiser step over that of {source.reference}.",
        figure,
    )
