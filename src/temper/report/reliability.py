"""Reliability diagrams: accuracy over confidence, before and after temperature scaling."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import plotly.graph_objects as go

from temper.functional.calibration import reliability
from temper.report.drawing import Figure, diagonal, empty, line, plain, style
from temper.report.folders import Run, Source

BINS = 10
AFTER = ", after temperature scaling"
SOURCES = (
    ("task", "clean"),
    ("shift", "clean"),
    ("adversarial", "clean"),
    ("calibration", "temperature"),
)
"""Perspective and condition of the rows that are drawn."""


def reliability_diagrams(source: Source) -> list[Figure]:
    """Draw accuracy over confidence in ten bins, one figure a labelled set, raw and scaled.

    The rows of all seeds of a column are pooled: a bin of one seed is often too small to read.
    Where rows after temperature scaling were written, the set has a second figure.

    Args:
        source: The folder; its ``rows.parquet`` files are read.
    """
    pooled: dict[str, dict[str, list[tuple[Any, Any]]]] = {}
    for run in source.runs:
        for perspective, condition in SOURCES:
            for name, hits, confidences in _confidences(run, perspective, condition):
                after = AFTER if perspective == "calibration" else ""
                columns = pooled.setdefault(name + after, {})
                columns.setdefault(run.column, []).append((hits, confidences))
    looks = style([column.name for column in source.columns], source.reference)
    drawn = []
    # A set's figure after scaling stands beside the one before.
    for name in sorted(pooled, key=lambda name: _place(name, pooled)):
        columns = pooled[name]
        figure = empty("confidence", "share of right answers")
        figure.update_xaxes(range=[0, 1.02])
        figure.update_yaxes(range=[0, 1.02])
        figure.add_trace(diagonal("perfect"))
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


def _place(name: str, pooled: dict[str, Any]) -> int:
    return list(pooled).index(name.removesuffix(AFTER))


def _confidences(run: Run, perspective: str, condition: str) -> Iterable[tuple[str, Any, Any]]:
    """Yield set, hits and confidences of a run's labelled classification rows."""
    rows = run.rows(["set", "condition", "label", "prediction", "probabilities"], perspective)
    rows = rows[(rows["condition"] == condition) & rows["label"].notna()]
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
