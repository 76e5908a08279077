"""Curves of the metric over the strength of an attack, of noise or of token corruption."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import plotly.graph_objects as go

from temper.report.cells import Comparison, Row
from temper.report.drawing import Figure, empty, line_of_cells, style
from temper.report.spread import ends, lines_are
from temper.report.wording import corruption, plural, title, unit


def _curve(comparison: Comparison, rows: Sequence[Row], clean: Row | None, x: str) -> go.Figure:
    """Draw the metric over the radius, one line a column, with the spread over seeds."""
    shown = unit(comparison.metric, comparison.metric)
    label = title(comparison.metric)
    figure = empty(x, f"{label} ({shown.sign})" if shown.sign else label)
    looks = style(comparison.columns, comparison.reference)
    for name in comparison.columns:
        points = [(0.0, clean.cells[name])] if clean is not None else []
        points += [(_size(row), row.cells[name]) for row in rows]
        known = sorted(
            ((size, cell) for size, cell in points if cell.mean is not None),
            key=lambda point: point[0],
        )
        if not known:
            continue
        figure.add_trace(
            line_of_cells(
                name,
                looks[name],
                known,
                spread=[ends(cell) for _, cell in known],
                scale=shown.scale,
                along=x,
                digits=f".{shown.decimals}f",
            )
        )
    return figure


def _size(row: Row) -> float:
    size = row.key.radius if row.key.radius is not None else row.key.radius_relative
    return float("nan") if size is None else size


def _curves(comparison: Comparison, perspective: str) -> Iterable[tuple[str, str, list[Row]]]:
    """Group the rows of a perspective into curves: attack, norm, effort and set are constant."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in comparison.rows:
        key = row.key
        if key.perspective != perspective or key.name != comparison.metric:
            continue
        if math.isnan(_size(row)):
            continue
        relative = key.radius is None
        group = (key.condition, key.norm, key.steps, key.restarts, relative, key.set)
        groups.setdefault(group, []).append(row)
    for (condition, norm, steps, restarts, relative, name), rows in groups.items():
        name_of_curve = ", ".join(
            part
            for part in (
                condition.upper() if perspective == "embedding_attack" else "",
                {"l2": "\u2113\u2082", "linf": "\u2113\u221e"}.get(norm, norm or ""),
                plural(steps, "step") if steps and steps > 1 else "",
                plural(restarts, "restart") if restarts and restarts > 1 else "",
                name,
            )
            if part
        )
        own = "RMS" if perspective == "embedding_noise" else "norm"
        yield name_of_curve, f" over the embedding's {own}" if relative else "", rows


def _clean(comparison: Comparison, rows: Sequence[Row]) -> Row | None:
    """Return the score without attack, where it was measured on the very same examples."""
    name = rows[0].key.set
    if any(_size(row) == 0 for row in rows):
        return None
    for row in comparison.rows:
        key = row.key
        if key.perspective not in ("task", "shift") or (key.set, key.name) != (
            name,
            comparison.metric,
        ):
            continue
        # An attack on a part of the set must not start at the score of all of it.
        same = all(
            row.cells[column].examples == rows[0].cells[column].examples
            for column in comparison.columns
        )
        return row if same else None
    return None


def _start(comparison: Comparison, rows: Sequence[Row], name: str) -> str:
    return "" if _clean(comparison, rows) is None else f"; {name} 0 is the clean set"


def _lines(rows: Sequence[Row]) -> str:
    return lines_are(cell for row in rows for cell in row.cells.values())


def robustness(comparison: Comparison) -> list[Figure]:
    """Draw the metric over the attack's radius, one figure an attack, norm and set."""
    return [
        Figure(
            "robustness",
            attack,
            f"The metric under attack{_start(comparison, rows, 'radius')}. {_lines(rows)}",
            _curve(comparison, rows, _clean(comparison, rows), f"radius{scale}"),
        )
        for attack, scale, rows in _curves(comparison, "embedding_attack")
    ]


def noise(comparison: Comparison) -> list[Figure]:
    """Draw the metric over the size of Gaussian noise on the embeddings, one figure a set."""
    return [
        Figure(
            "robustness",
            f"Gaussian noise, {rows[0].key.set}",
            "The metric when normal noise is added to every embedding"
            f"{_start(comparison, rows, 'sigma')}. {_lines(rows)}",
            _curve(comparison, rows, _clean(comparison, rows), f"sigma{scale}"),
        )
        for _, scale, rows in _curves(comparison, "embedding_noise")
    ]


def corruptions(comparison: Comparison) -> list[Figure]:
    """Draw the metric over the rate of corrupted tokens, one figure a kind and set."""
    return [
        Figure(
            "robustness",
            f"{corruption(rows[0].key.condition, None).capitalize()}, {rows[0].key.set}",
            "The metric when each token that is not special is corrupted with that probability"
            f"{_start(comparison, rows, 'rate')}. {_lines(rows)}",
            _curve(comparison, rows, _clean(comparison, rows), "rate of corrupted tokens"),
        )
        for _, _, rows in _curves(comparison, "token_corruption")
    ]
