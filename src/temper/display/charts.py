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
    line,
    plain,
    style,
)
from temper.display.records import Parameters
from temper.display.wording import plural, title, unit
from temper.functional.units import ABSENT, Unit

if TYPE_CHECKING:
    import plotly.graph_objects as go

_BAR_LINE, _HEAT_LINE = 26, 30  # pixels of a bar with the space around it, and of a line of cells


@dataclass(frozen=True)
class Mark:
    """One drawn number, as a bar or as a cell of a heat map.

    Args:
        value: The number as it is drawn.
        text: The same in words.
        interval: Its interval or spread in words.
        count: What it is over, in words.
        ends: Ends of its line as drawn, None where there is none.
    """

    value: float
    text: str
    interval: str
    count: str
    ends: Sequence[float] | None = None

    @classmethod
    def of(cls, cell: Cell, unit: Unit, counts: str = "") -> Mark:
        """Return what is drawn of a cell whose mean is known.

        Args:
            cell: A score of a column.
            unit: How it is shown.
            counts: What n counts, where that is no examples.
        """
        reach, interval = ends(cell), ABSENT
        if cell.low is not None and cell.high is not None:
            interval = f"[{unit.text(cell.low)}, {unit.text(cell.high)}]"
        elif cell.standard_deviation is not None:
            interval = f"\u00b1 {unit.text(cell.standard_deviation)}"
        examples = " or ".join(str(number) for number in cell.examples) or "not recorded"
        return cls(
            (cell.mean or 0.0) * unit.scale,
            unit.text(cell.mean),
            interval,
            f"{plural(len(cell.seeds), 'seed')}, {examples} {counts}".rstrip(),
            None if reach is None else [end * unit.scale for end in reach],
        )


Marks = Mapping[tuple[str, str], Mark]
"""What is drawn, by column and label."""


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


def error_bars(values: Sequence[float], reach: Sequence[Sequence[float] | None]) -> dict[str, Any]:
    """Return Plotly's error bars.

    Args:
        values: The drawn numbers.
        reach: Ends of the line of each as drawn, None where there is none.
    """
    tips = [found or (value, value) for value, found in zip(values, reach, strict=True)]
    return {
        "type": "data",
        # A line of no length would look like an interval of nothing.
        "visible": any(reach),
        "symmetric": False,
        "array": [tip[1] - value for tip, value in zip(tips, values, strict=True)],
        "arrayminus": [value - tip[0] for tip, value in zip(tips, values, strict=True)],
        "thickness": 1,
        "width": 3,
    }


def many_columns(comparison: Comparison) -> bool:
    """Tell whether there are more columns than bars can tell apart."""
    return len(comparison.columns) > NAMED + 1


def heat_map(
    columns: Sequence[str],
    labels: Sequence[str],
    marks: Marks,
    *,
    limits: tuple[float, float] | None = None,
    digits: int = 0,
) -> go.Figure:
    """Return a figure with a line a label and a place a column.

    Args:
        columns: Names, from left to right.
        labels: Names, from top to bottom.
        marks: What is known, by column and label; the others stay empty.
        limits: Numbers of the full colours, green above 0 and orange below where the lower one is
            below 0; None shades from the least to the greatest.
        digits: Digits after the point of the numbers in the cells.
    """
    import plotly.graph_objects as go

    figure = empty("", "", showlegend=False)
    figure.update_layout(height=190 + _HEAT_LINE * len(labels))
    figure.update_xaxes(type="category", tickangle=-50)
    figure.update_yaxes(type="category", autorange="reversed")
    cells = [[marks.get((name, label)) for name in columns] for label in labels]
    bare, full = SHARES_LIGHT
    scale: dict[str, Any] = {"colorscale": [[0, bare], [1, full]]}
    if limits is not None:
        scale |= {"zmin": limits[0], "zmax": limits[1]}
        if limits[0] < 0:
            scale["colorscale"] = [[0, LIGHT[2]], [0.5, bare], [1, LIGHT[3]]]
    figure.add_trace(
        go.Heatmap(
            x=[plain(name) for name in columns],
            y=[plain(label) for label in labels],
            z=[[None if one is None else one.value for one in line] for line in cells],
            customdata=[
                [["", ""] if one is None else [one.interval, one.count] for one in line]
                for line in cells
            ],
            texttemplate=f"%{{z:.{digits}f}}",
            textfont={"size": 10},
            xgap=1,
            ygap=1,
            hovertemplate=(
                f"<b>%{{x}}</b><br>%{{y}}<br>%{{z:.{digits + 2}f}} (%{{customdata[0]}})<br>"
                "n = %{customdata[1]}<extra></extra>"
            ),
            colorbar={"thickness": 12, "outlinewidth": 0},
            **scale,
        )
    )
    return figure


def bars(comparison: Comparison, marks: Marks, axis: str) -> go.Figure:
    """Return a figure of lying bars, side by side by label.

    Args:
        comparison: Whose columns they are.
        marks: What is known, by column and label.
        axis: Title of the horizontal axis.
    """
    import plotly.graph_objects as go

    figure = empty(axis, "", barmode="group", bargap=0.25)
    figure.update_layout(
        height=130 + _BAR_LINE * max(len(marks), 2),
        margin={"b": 84},
        legend={"yref": "container", "y": 0, "yanchor": "bottom"},
    )
    # The first on top, as in the table.
    figure.update_yaxes(autorange="reversed", type="category")
    looks = style(comparison.columns, comparison.reference)
    for name in dict.fromkeys(column for column, _ in marks):
        own = {label: mark for (column, label), mark in marks.items() if column == name}
        values = [mark.value for mark in own.values()]
        figure.add_trace(
            go.Bar(
                orientation="h",
                name=plain(name),
                legendgroup=plain(name),
                y=[plain(label) for label in own],
                x=values,
                marker={"color": looks[name]["color"]},
                error_x={
                    **error_bars(values, [mark.ends for mark in own.values()]),
                    "color": INK_LIGHT,
                },
                customdata=[[mark.interval, mark.count] for mark in own.values()],
                hovertemplate=(
                    f"<b>{plain(name)}</b><br>%{{y}}<br>%{{x:.2f}} (%{{customdata[0]}})<br>"
                    "n = %{customdata[1]}<extra></extra>"
                ),
            )
        )
    return figure


def numbers_of(marks: Marks, *header: str) -> Numbers:
    """Write what a figure draws as a table.

    Args:
        marks: What it draws, by column and label.
        header: What labels, numbers and intervals are.
    """
    lines = tuple((*key, mark.text, mark.interval, mark.count) for key, mark in marks.items())
    return Numbers(("column", *header, "n"), lines)


def condition_bars(
    comparison: Comparison,
    rows: Sequence[Row],
    heading: str,
    caption: str,
    *,
    names: Mapping[str, str] | None = None,
    label: Callable[[Row], str] | None = None,
) -> list[Figure]:
    """Draw a figure a set: a bar for each condition and column, of many columns a heat map.

    Args:
        comparison: All scores.
        rows: Those to draw; means over sets are left out.
        heading: Title of the figures, before the set's name.
        caption: What is drawn, a sentence.
        names: Conditions in words; one without is written as it is.
        label: From a row to the name of its bars; None for its condition.
    """
    in_words = names or {}
    label = label or (lambda row: in_words.get(row.key.condition, row.key.condition))
    drawn = []
    for chosen, own in _by_set(row for row in rows if not row.key.over_sets):
        shown = own[0].unit
        axis = title(own[0].key.name) + (f" ({shown.sign})" if shown.sign else "")
        cells = {
            (name, label(row)): row.cells[name]
            for name in comparison.columns
            for row in own
            if row.cells[name].mean is not None
        }
        marks = {key: Mark.of(cell, shown) for key, cell in cells.items()}
        if not marks:
            continue
        if many_columns(comparison):
            said = f"{axis}, the darker the higher."
            labels = list(dict.fromkeys(name for _, name in marks))
            figure = heat_map(comparison.columns, labels, marks)
        else:
            said, figure = lines_are(cells.values()), bars(comparison, marks, axis)
        drawn.append(Figure(f"{heading}, {chosen}", f"{caption} {said}", figure))
    return drawn


def _by_set(rows: Iterable[Row]) -> list[tuple[str, list[Row]]]:
    """Return the rows of each set, in the order in which the sets come."""
    sets: dict[str, list[Row]] = {}
    for row in rows:
        sets.setdefault(row.key.set, []).append(row)
    return list(sets.items())


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
    curves: dict[tuple[str, Parameters, str, str], list[tuple[float, Row]]] = {}
    for row in comparison.of(perspective, comparison.metric):
        key = row.key
        for name, along in (
            (size, axis or size),
            (f"{size}_relative", f"{axis or size} over the embedding's {relative_to}"),
        ):
            at = key.parameters.number(name)
            if at is not None:
                kind = (key.condition, key.parameters.without(name), along, key.set)
                curves.setdefault(kind, []).append((at, row))
                break
    shown = unit(comparison.metric, comparison.metric)
    label = title(comparison.metric)
    drawn = []
    for (_, _, along, _), points in curves.items():
        rows = [row for _, row in points]
        clean = None if any(at == 0 for at, _ in points) else _clean(comparison, rows[0])
        start = "" if clean is None else f"; {size} 0 is the clean set"
        lines = lines_are(cell for row in rows for cell in row.cells.values())
        if clean is not None:
            points = [(0.0, clean), *points]
        figure = empty(along, f"{label} ({shown.sign})" if shown.sign else label)
        points = sorted(points, key=lambda point: point[0])
        digits = f".{shown.decimals}f"
        _add_lines(figure, comparison, points, along, digits, scale=shown.scale)
        drawn.append(Figure(heading(rows[0].key), f"{caption}{start}. {lines}", figure))
    return drawn


def _clean(comparison: Comparison, perturbed: Row) -> Row | None:
    """Return the score without perturbation, where it was measured on the very same examples."""
    wanted = (perturbed.key.set, "clean", comparison.metric)
    for row in comparison.rows:
        if (row.key.set, row.key.condition, row.key.name) == wanted and not row.key.parameters:
            # An attack on a part of the set must not start at the score of all of it.
            same = all(
                row.cells[column].examples == perturbed.cells[column].examples
                for column in comparison.columns
            )
            return row if same else None
    return None


def _add_lines(
    figure: go.Figure,
    comparison: Comparison,
    points: Sequence[tuple[float | str, Row]],
    along: str,
    digits: str,
    *,
    scale: float = 1.0,
) -> None:
    """Add a line through the means of each column, with the spread over seeds.

    Args:
        figure: Where to.
        comparison: Whose columns they are.
        points: Where each row stands, and the row.
        along: What the places are, for the hover text.
        digits: How a mean is written there, as a format.
        scale: Factor from the stored to the drawn numbers.
    """
    looks = style(comparison.columns, comparison.reference)
    for name in comparison.columns:
        cells = {at: row.cells[name] for at, row in points if row.cells[name].mean is not None}
        if not cells:
            continue
        means = [(cell.mean or 0.0) * scale for cell in cells.values()]
        found = [ends(cell) for cell in cells.values()]
        reach = [None if tip is None else (tip[0] * scale, tip[1] * scale) for tip in found]
        said = [
            "no interval" if tip is None else f"{tip[0]:{digits}} to {tip[1]:{digits}}"
            for tip in reach
        ]
        figure.add_trace(
            line(
                name,
                looks[name],
                x=list(cells),
                y=means,
                error_y=error_bars(means, reach),
                customdata=[
                    f"{plural(len(cell.seeds), 'seed')}, "
                    f"n = {', '.join(map(str, cell.examples)) or 'not recorded'}<br>{interval}"
                    for cell, interval in zip(cells.values(), said, strict=True)
                ],
                hovertemplate=(
                    f"<b>{plain(name)}</b><br>{plain(along)} %{{x}}<br>%{{y:{digits}}}<br>"
                    "%{customdata}<extra></extra>"
                ),
            )
        )


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


def _by_layer(rows: Iterable[Row], last: str = "") -> list[tuple[float | str, Row]]:
    """Return the rows in the order of the layers, each with its layer's name."""
    ordered = sorted(rows, key=lambda row: row.key.parameters.number("layer") or math.inf)
    return [(str(row.key.parameters.get("layer", last)), row) for row in ordered]


def layer_map(
    comparison: Comparison, rows: Sequence[Row], heading: str, caption: str, name: str, counts: str
) -> list[Figure]:
    """Draw a score from 0 to 1 as a heat map of layers by columns, a figure a set.

    Args:
        comparison: All scores.
        rows: A score for each ``layer``, in any order.
        heading: Title of the figures, before the set's name.
        caption: What is drawn, in a sentence.
        name: The score's name.
        counts: What n counts.
    """
    drawn = []
    for chosen, own in _by_set(rows):
        marks = {
            (column, str(layer)): Mark.of(row.cells[column], row.unit, counts)
            for column in comparison.columns
            for layer, row in _by_layer(own)
            if row.cells[column].mean is not None
        }
        turned = {(layer, column): mark for (column, layer), mark in marks.items()}
        layers = [str(layer) for layer, _ in _by_layer(own)]
        figure = heat_map(layers, comparison.columns, turned, limits=(0.0, 1.0), digits=2)
        figure.update_xaxes(title="layer", tickangle=0)
        numbers = numbers_of(marks, "layer", name, "spread or interval")
        drawn.append(Figure(f"{heading}, {chosen}", caption, figure, numbers))
    return drawn


def layer_lines(
    comparison: Comparison,
    rows: Sequence[Row],
    heading: str,
    caption: str,
    label: str,
    *,
    last: str,
) -> list[Figure]:
    """Draw a score of any size at every layer, one line a column and a figure a set.

    Args:
        comparison: All scores.
        rows: A score for each ``layer``, and one without for what lies behind them.
        heading: Title of the figures, before the set's name.
        caption: What is drawn, in a sentence.
        label: Title of the vertical axis.
        last: Name of the place of a score without a layer.
    """
    drawn = []
    for chosen, own in _by_set(rows):
        points = _by_layer(own, last)
        figure = empty("layer", label)
        places = [place for place, _ in points]
        figure.update_xaxes(type="category", categoryorder="array", categoryarray=places)
        # A 0 has no place there.
        figure.update_yaxes(type="log")
        _add_lines(figure, comparison, points, "layer", ".3g")
        lines = lines_are(cell for row in own for cell in row.cells.values())
        drawn.append(Figure(f"{heading}, {chosen}", f"{caption} {lines}", figure))
    return drawn
