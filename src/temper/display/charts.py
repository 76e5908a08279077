"""The kinds of figures that perspectives draw: bars, heat maps, curves over sizes and layers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from temper.display.cells import NAMED, Cell, Comparison, Row, ScoreKey
from temper.display.drawing import (
    INK_LIGHT,
    LIGHT,
    SHARES_LIGHT,
    Figure,
    Numbers,
    empty,
    line_of_cells,
    plain,
    style,
)
from temper.display.wording import plural, title, unit
from temper.functional.units import ABSENT, Unit

if TYPE_CHECKING:
    import plotly.graph_objects as go


def ends(cell: Cell) -> tuple[float, float] | None:
    """Return the ends of a cell's line as stored, None where nothing is known.

    Args:
        cell: A score of a column.

    Returns:
        The interval of one seed over examples, else a standard deviation over seeds to either side.
    """
    if cell.mean is None:
        return None
    if cell.low is not None and cell.high is not None:
        return cell.low, cell.high
    if cell.standard_deviation is not None:
        return cell.mean - cell.standard_deviation, cell.mean + cell.standard_deviation
    return None


def doubt(cell: Cell, unit: Unit) -> str:
    """Write a cell's interval, else its standard deviation over seeds, else a dash.

    Args:
        cell: A score of a column.
        unit: How it is shown.
    """
    if cell.low is not None and cell.high is not None:
        return f"[{unit.text(cell.low)}, {unit.text(cell.high)}]"
    if cell.standard_deviation is None:
        return ABSENT
    return f"\u00b1 {unit.text(cell.standard_deviation)}"


def count(cell: Cell) -> str:
    """Write how many seeds and examples are behind a cell."""
    examples = " or ".join(str(number) for number in cell.examples) or "not recorded"
    return f"{plural(len(cell.seeds), 'seed')}, {examples}"


def lines_are(cells: Iterable[Cell]) -> str:
    """Say what the lines of a figure's cells are, as a sentence; empty without any.

    Args:
        cells: Everything that is drawn.
    """
    drawn = [cell for cell in cells if ends(cell) is not None]
    alone = any(cell.low is not None for cell in drawn)
    several = any(cell.low is None for cell in drawn)
    if several and alone:
        return (
            "Lines are one standard deviation over seeds, of a column with one seed its 95 % "
            "interval over examples."
        )
    if several:
        return "Lines are one standard deviation over seeds."
    return "Lines are 95 % intervals over examples." if alone else ""


_HEAT_LINE = 30  # pixels of a score


@dataclass(frozen=True)
class Shade:
    """Hold one cell of a heat map.

    Args:
        value: The number that is drawn.
        interval: Its interval or spread in words.
        count: What it is over, in words.
    """

    value: float
    interval: str
    count: str


def heat_map(
    columns: Sequence[str],
    labels: Sequence[str],
    shades: Mapping[tuple[str, str], Shade],
    *,
    reach: float | None = None,
) -> go.Figure:
    """Return a figure with a line a score and a place a column.

    Args:
        columns: Names, from left to right.
        labels: Scores, from top to bottom.
        shades: What is known, by column and label; the others stay empty.
        reach: Size from which on a number has the full colour, green above 0 and orange below;
            None shades from the least to the greatest.
    """
    import plotly.graph_objects as go

    figure = empty("", "", showlegend=False)
    figure.update_layout(height=190 + _HEAT_LINE * len(labels))
    figure.update_xaxes(type="category", tickangle=-50)
    figure.update_yaxes(type="category", autorange="reversed")
    cells = [[shades.get((name, label)) for name in columns] for label in labels]
    bare, full = SHARES_LIGHT
    scale: dict[str, Any] = {"colorscale": [[0, bare], [1, full]]}
    if reach is not None:
        scale = {"colorscale": [[0, LIGHT[2]], [0.5, bare], [1, LIGHT[3]]]}
        scale |= {"zmin": -reach, "zmax": reach}
    figure.add_trace(
        go.Heatmap(
            x=[plain(name) for name in columns],
            y=[plain(label) for label in labels],
            z=[[None if one is None else one.value for one in line] for line in cells],
            customdata=[
                [["", ""] if one is None else [one.interval, one.count] for one in line]
                for line in cells
            ],
            texttemplate="%{z:.0f}",
            textfont={"size": 10},
            xgap=1,
            ygap=1,
            hovertemplate=(
                "<b>%{x}</b><br>%{y}<br>%{z:.2f} (%{customdata[0]})<br>"
                "n = %{customdata[1]}<extra></extra>"
            ),
            colorbar={"thickness": 12, "outlinewidth": 0},
            **scale,
        )
    )
    return figure


# Label, drawn value, ends of its line as stored, and n in words.
Bar = tuple[str, float, Sequence[float] | None, str]
# Column, label and cell, whose mean is known.
Known = tuple[str, str, Cell]

_BAR_LINE = 26  # pixels of a bar with the space around it


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
        height=130 + _BAR_LINE * max(number, 2),
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
