"""Figures by layer: lines on a log axis, and heat maps of layers by columns."""

from __future__ import annotations

import math
from collections.abc import Sequence

from temper.display.cells import Cell, Comparison, Row, ScoreKey
from temper.display.drawing import (
    SHARES_LIGHT,
    Figure,
    Numbers,
    empty,
    line_of_cells,
    plain,
    style,
)
from temper.display.wording import plural, title
from temper.functional.units import ABSENT


def inner_layers(keys: Sequence[ScoreKey]) -> list[ScoreKey]:
    """Return the scores of all layers but the last: one by one they would outweigh all others.

    The last layer is what the head reads. A score without a layer, such as the logits', stays too.

    Args:
        keys: All scores of a perspective.
    """
    last = max((key.parameters.number("layer") or 0.0 for key in keys), default=0.0)
    return [key for key in keys if key.parameters.number("layer") not in (None, last)]


def layer_label(key: ScoreKey, *, otherwise: str = "") -> str:
    """Write a score and its layer.

    Args:
        key: The score.
        otherwise: Name of the place of a score without a layer.
    """
    layer = key.parameters.get("layer")
    place = otherwise if layer is None else f"layer {layer}"
    return ", ".join(part for part in (title(key.name), place, key.set) if part)


def layer_map(
    comparison: Comparison,
    rows: Sequence[Row],
    heading: str,
    caption: str,
    name: str,
    *,
    counts: str,
) -> Figure:
    """Draw a score from 0 to 1 as a heat map of layers by columns.

    Args:
        comparison: All scores.
        rows: A score for each ``layer``, in any order.
        heading: Title of the figure.
        caption: What is drawn, in a sentence.
        name: The score's name.
        counts: What n counts.
    """
    import plotly.graph_objects as go

    rows = sorted(rows, key=lambda row: row.key.parameters.number("layer") or 0.0)
    figure = empty("layer", "", showlegend=False)
    figure.update_layout(height=110 + 36 * len(comparison.columns))
    figure.update_xaxes(type="category")
    figure.update_yaxes(type="category", autorange="reversed")
    lines = []
    for column in comparison.columns:
        for row in rows:
            cell = row.cells[column]
            if cell.mean is not None:
                lines.append((column, _layer(row), f"{cell.mean:.4f}", *_doubt(cell, counts)))
    said = {(column, layer): (ends, count) for column, layer, _, ends, count in lines}
    places = [_layer(row) for row in rows]
    figure.add_trace(
        go.Heatmap(
            x=places,
            y=[plain(column) for column in comparison.columns],
            z=[[row.cells[column].mean for row in rows] for column in comparison.columns],
            zmin=0,
            zmax=1,
            colorscale=[[0, SHARES_LIGHT[0]], [1, SHARES_LIGHT[1]]],
            xgap=2,
            ygap=2,
            texttemplate="%{z:.2f}",
            customdata=[
                [list(said.get((column, place), ("", ""))) for place in places]
                for column in comparison.columns
            ],
            hovertemplate=(
                f"<b>%{{y}}</b><br>layer %{{x}}<br>{name} %{{z:.4f}} %{{customdata[0]}}<br>"
                "n = %{customdata[1]}<extra></extra>"
            ),
            colorbar={"thickness": 12, "outlinewidth": 0},
        )
    )
    numbers = Numbers(("column", "layer", name, "spread or interval", "n"), tuple(lines))
    return Figure(heading, caption, figure, numbers)


def layer_lines(
    comparison: Comparison,
    rows: Sequence[Row],
    heading: str,
    caption: str,
    label: str,
    *,
    last: str,
) -> Figure:
    """Draw a score of any size at every layer, one line a column.

    Args:
        comparison: All scores.
        rows: A score for each ``layer``, and one without for what lies behind them.
        heading: Title of the figure.
        caption: What is drawn, in a sentence.
        label: Title of the vertical axis.
        last: Name of the place of a score without a layer.
    """
    figure = empty("layer", label)
    ordered = sorted(rows, key=lambda row: row.key.parameters.number("layer") or math.inf)
    places = [_layer(row, last) for row in ordered]
    figure.update_xaxes(type="category", categoryorder="array", categoryarray=places)
    figure.update_yaxes(type="log")
    looks = style(comparison.columns, comparison.reference)
    for name in comparison.columns:
        points = [(place, row.cells[name]) for place, row in zip(places, ordered, strict=True)]
        known = [(place, cell) for place, cell in points if cell.mean]
        if known:
            spread = [_ends(cell) for _, cell in known]
            figure.add_trace(
                line_of_cells(name, looks[name], known, spread=spread, along="layer", digits=".3g")
            )
    cells = [cell for row in rows for cell in row.cells.values()]
    several = any(len(cell.seeds) > 1 for cell in cells)
    bars = "one standard deviation over seeds" if several else "the standard error over examples"
    zero = any(cell.mean == 0 for cell in cells)
    return Figure(
        heading,
        f"{caption} Bars are {bars}."
        + (" A norm of 0 has no place on a log axis." if zero else ""),
        figure,
    )


def _layer(row: Row, last: str = "") -> str:
    layer = row.key.parameters.get("layer")
    return last if layer is None else str(layer)


def _doubt(cell: Cell, counts: str) -> tuple[str, str]:
    """Write a cell's interval or spread, and what it is over."""
    number = " or ".join(str(count) for count in cell.examples) or "unknown number of"
    count = f"{plural(len(cell.seeds), 'seed')}, {number} {counts}"
    if cell.low is not None and cell.high is not None:
        return f"[{cell.low:.4f}, {cell.high:.4f}]", count
    if cell.standard_deviation is None:
        return ABSENT, count
    return f"\u00b1 {cell.standard_deviation:.4f}", count


def _ends(cell: Cell) -> tuple[float, float] | None:
    """Return a standard deviation over seeds to either side, else one seed's standard error."""
    spread = cell.standard_deviation
    if spread is None:
        spread = next(iter(cell.standard_errors.values()), None)
    if spread is None or cell.mean is None:
        return None
    return cell.mean - spread, cell.mean + spread
