"""Curves of the metric over the strength of an attack, of noise or of a corruption."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from temper.display.cells import Comparison, Row, ScoreKey
from temper.display.drawing import Figure, empty, line_of_cells, style
from temper.display.spread import ends, lines_are
from temper.display.wording import title, unit

if TYPE_CHECKING:
    import plotly.graph_objects as go


def strength_curves(
    comparison: Comparison,
    perspective: str,
    size: str,
    *,
    heading: Callable[[ScoreKey], str],
    caption: str,
    axis: str = "",
    relative_to: str = "norm",
) -> list[Figure]:
    """Draw the metric over the size of a perturbation, a figure for each kind of it and set.

    Args:
        comparison: All scores.
        perspective: Whose rows are drawn.
        size: Parameter that is the horizontal axis; with ``_relative`` behind it, the same over the
            example's own size.
        heading: From a key of the curve to its title.
        caption: What is drawn, in a sentence without its full stop.
        axis: Name of the axis; the parameter's where left out.
        relative_to: What relative sizes are measured against.
    """
    curves: dict[tuple[object, ...], list[Row]] = {}
    for row in comparison.of(perspective, comparison.metric):
        key = row.key
        if _size(row, size) is not None:
            kind = key.parameters.without(size, f"{size}_relative")
            relative = f"{size}_relative" in key.parameters
            curves.setdefault((key.condition, kind, relative, key.set), []).append(row)
    drawn = []
    for rows in curves.values():
        relative = f"{size}_relative" in rows[0].key.parameters
        clean = _clean(comparison, rows, size)
        start = "" if clean is None else f"; {size} 0 is the clean set"
        lines = lines_are(cell for row in rows for cell in row.cells.values())
        along = (axis or size) + (f" over the embedding's {relative_to}" if relative else "")
        points = [] if clean is None else [(0.0, clean)]
        points += [(_size(row, size) or 0.0, row) for row in rows]
        drawn.append(
            Figure(
                heading(rows[0].key),
                f"{caption}{start}. {lines}",
                _curve(comparison, points, along),
            )
        )
    return drawn


def _size(row: Row, size: str) -> float | None:
    absolute = row.key.parameters.number(size)
    return row.key.parameters.number(f"{size}_relative") if absolute is None else absolute


def _clean(comparison: Comparison, rows: Sequence[Row], size: str) -> Row | None:
    """Return the score without perturbation, where it was measured on the very same examples."""
    if any(_size(row, size) == 0 for row in rows):
        return None
    wanted = (rows[0].key.set, "clean", comparison.metric)
    for row in comparison.rows:
        if (row.key.set, row.key.condition, row.key.name) == wanted and not row.key.parameters:
            # An attack on a part of the set must not start at the score of all of it.
            same = all(
                row.cells[column].examples == rows[0].cells[column].examples
                for column in comparison.columns
            )
            return row if same else None
    return None


def _curve(comparison: Comparison, points: Sequence[tuple[float, Row]], along: str) -> go.Figure:
    """Draw the metric over the size, one line a column, with the spread over seeds."""
    shown = unit(comparison.metric, comparison.metric)
    label = title(comparison.metric)
    figure = empty(along, f"{label} ({shown.sign})" if shown.sign else label)
    looks = style(comparison.columns, comparison.reference)
    for name in comparison.columns:
        cells = [(size, row.cells[name]) for size, row in points]
        known = sorted(
            ((size, cell) for size, cell in cells if cell.mean is not None),
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
                along=along,
                digits=f".{shown.decimals}f",
            )
        )
    return figure
