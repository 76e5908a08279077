"""Bars of scores side by side, by condition; of many columns a heat map."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from temper.display.cells import NAMED, Cell, Comparison, Row
from temper.display.drawing import INK_LIGHT, Figure, Numbers, empty, plain, style
from temper.display.heat import Shade, heat_map
from temper.display.spread import count, doubt, ends, lines_are
from temper.display.wording import title
from temper.functional.units import Unit

if TYPE_CHECKING:
    import plotly.graph_objects as go

# Label, drawn value, ends of its line as stored, and n in words.
Bar = tuple[str, float, Sequence[float] | None, str]
# Column, label and cell, whose mean is known.
Known = tuple[str, str, Cell]

_LINE = 26  # pixels of a bar with the space around it


def condition_bars(
    comparison: Comparison,
    rows: Sequence[Row],
    heading: str,
    caption: str,
    *,
    label: Callable[[Row], str],
) -> list[Figure]:
    """Draw a figure a set: a bar for each condition and column, of many columns a heat map.

    Args:
        comparison: All scores.
        rows: Those to draw; means over sets are left out.
        heading: Title of the figures, before the set's name.
        caption: What is drawn, a sentence.
        label: From a row to the name of its bars.
    """
    drawn = []
    rows = [row for row in rows if not row.key.over_sets]
    for chosen in dict.fromkeys(row.key.set for row in rows):
        own = [row for row in rows if row.key.set == chosen]
        unit = own[0].unit
        axis = title(own[0].key.name) + (f" ({unit.sign})" if unit.sign else "")
        known = [
            (name, label(row), row.cells[name])
            for name in comparison.columns
            for row in own
            if row.cells[name].mean is not None
        ]
        if not known:
            continue
        said = tuple(
            (name, label, unit.text(cell.mean), doubt(cell, unit), count(cell))
            for name, label, cell in known
        )
        many = len(comparison.columns) > NAMED + 1
        told = f"{caption} {axis}, the darker the higher." if many else caption
        if not many:
            told = f"{caption} {lines_are(cell for _, _, cell in known)}"
        draw = _shaded if many else _side_by_side
        figure = draw(comparison, known, unit, axis)
        numbers = Numbers(("column", "condition", axis, "spread or interval", "n"), said)
        drawn.append(Figure(f"{heading}, {chosen}", told, figure, numbers))
    return drawn


def _side_by_side(
    comparison: Comparison, known: Sequence[Known], unit: Unit, axis: str
) -> go.Figure:
    looks = style(comparison.columns, comparison.reference)
    labels = {label for _, label, _ in known}
    figure = lying_bars(len(labels) * len(comparison.columns), axis)
    for name in comparison.columns:
        drawn: list[Bar] = [
            (label, (cell.mean or 0.0) * unit.scale, ends(cell), count(cell))
            for column, label, cell in known
            if column == name
        ]
        if drawn:
            figure.add_trace(bars(name, looks[name]["color"], drawn, unit=unit))
    return figure


def _shaded(comparison: Comparison, known: Sequence[Known], unit: Unit, axis: str) -> go.Figure:
    shades = {
        (name, label): Shade((cell.mean or 0.0) * unit.scale, doubt(cell, unit), count(cell))
        for name, label, cell in known
    }
    labels = list(dict.fromkeys(label for _, label, _ in known))
    return heat_map(comparison.columns, labels, shades)


def lying_bars(number: int, axis: str) -> go.Figure:
    """Return a figure for lying bars.

    Args:
        number: How many there will be.
        axis: Title of the horizontal axis.
    """
    figure = empty(axis, "", barmode="group", bargap=0.25)
    figure.update_layout(
        height=130 + _LINE * max(number, 2),
        margin={"b": 84},
        legend={"yref": "container", "y": 0, "yanchor": "bottom"},
    )
    # The first on top, as in the table.
    figure.update_yaxes(autorange="reversed", type="category")
    return figure


def bars(
    name: str,
    colour: str,
    drawn: Sequence[Bar],
    *,
    unit: Unit | None = None,
) -> go.Bar:
    """Return a column's bars: label, drawn value, ends of its line as stored, and n in words."""
    import plotly.graph_objects as go

    scale = 100.0 if unit is None else unit.scale
    values = [value for _, value, _, _ in drawn]
    tips = [
        (value, value) if line is None else (scale * line[0], scale * line[1])
        for _, value, line, _ in drawn
    ]
    said = [
        "no interval" if line is None else f"{low:.2f} to {high:.2f}"
        for (low, high), (_, _, line, _) in zip(tips, drawn, strict=True)
    ]
    return go.Bar(
        orientation="h",
        name=plain(name),
        legendgroup=plain(name),
        y=[plain(label) for label, *_ in drawn],
        x=values,
        marker={"color": colour},
        error_x={
            "type": "data",
            # A line of no length would look like an interval of nothing.
            "visible": any(line is not None for _, _, line, _ in drawn),
            "symmetric": False,
            "array": [
                high - value for (_, high), (_, value, _, _) in zip(tips, drawn, strict=True)
            ],
            "arrayminus": [
                value - low for (low, _), (_, value, _, _) in zip(tips, drawn, strict=True)
            ],
            "color": INK_LIGHT,
            "thickness": 1,
            "width": 3,
        },
        customdata=[[said_here, seen] for said_here, (*_, seen) in zip(said, drawn, strict=True)],
        hovertemplate=(
            f"<b>{plain(name)}</b><br>%{{y}}<br>%{{x:.2f}} (%{{customdata[0]}})<br>"
            "n = %{customdata[1]}<extra></extra>"
        ),
    )
