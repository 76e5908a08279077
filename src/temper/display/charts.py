"""Figures as data: bars, heat maps, and curves over perturbation sizes or layers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from temper.display.cells import Cell, Comparison, Row, ScoreKey, grouped
from temper.display.records import Parameters
from temper.display.wording import plural, title, unit
from temper.functional.units import ABSENT, Unit

COLORS = 7
"""Number of colors of assets/figure.css: grey for the reference, then those of Okabe and Ito."""
SYMBOLS = ("circle", "square", "diamond", "triangle", "cross", "x", "star")
DASHES = ("", "7 4", "2 3", "7 3 2 3", "12 4", "12 3 2 3", "")


@dataclass(frozen=True)
class Look:
    """Color (an index below `COLORS`), symbol and dash pattern of a method or curve."""

    color: int = 0
    symbol: str = SYMBOLS[0]
    dash: str = ""


@dataclass(frozen=True)
class Mark:
    """A number drawn as a bar or a cell of a heat map; ``count`` describes seeds and rows."""

    value: float
    text: str
    interval: str
    count: str
    ends: tuple[float, float] | None = None

    @property
    def detail(self) -> str:
        return f"{self.text} ({self.interval}); n = {self.count}"


Marks = Mapping[tuple[str, str], Mark]
"""(method, label) -> mark."""


@dataclass(frozen=True)
class Axis:
    """An axis; without limits it has the range of the data. A log scale needs numbers > 0."""

    title: str
    limits: tuple[float, float] | None = None
    log: bool = False


@dataclass(frozen=True)
class Point:
    """One point of a curve; ``x`` is a number, or for an axis of categories a name."""

    x: float | str
    y: float
    detail: str = ""
    ends: tuple[float, float] | None = None


@dataclass(frozen=True)
class Curve:
    """A curve through points.

    Args:
        column: The method of the curve, if it belongs to one.
        marked: Whether points have markers.
        faint: Whether the curve is drawn behind the others, and not in the legend.
    """

    name: str
    points: tuple[Point, ...]
    look: Look
    column: str | None = None
    marked: bool = True
    faint: bool = False


@dataclass(frozen=True)
class Lines:
    """A line chart; the first curve is at the back. The height is for a width of 420 pixels."""

    x: Axis
    y: Axis
    curves: tuple[Curve, ...]
    height: int = 280

    @property
    def drawn(self) -> frozenset[str]:
        return frozenset(curve.column for curve in self.curves if curve.column is not None)


@dataclass(frozen=True)
class Bars:
    """A chart of horizontal bars, grouped by label in the order of ``marks``."""

    axis: str
    marks: Marks
    looks: Mapping[str, Look]

    @property
    def drawn(self) -> frozenset[str]:
        return frozenset(column for column, _ in self.marks)


@dataclass(frozen=True)
class HeatMap:
    """A heat map with a row per label and a column per method.

    Args:
        marks: The known values; other cells stay empty.
        limits: Values with the strongest color; None uses the range of the data. If the lower limit
            is negative, values above 0 are green and others orange.
    """

    columns: tuple[str, ...]
    labels: tuple[str, ...]
    marks: Marks
    limits: tuple[float, float] | None = None
    digits: int = 0
    axis: str = ""


@dataclass(frozen=True)
class Numbers:
    """The numbers of a figure as a table, for screen readers and for exact values."""

    header: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Figure:
    """A figure of the report; ``numbers`` is None if a table of the report has the same numbers."""

    title: str
    caption: str
    chart: Lines | Bars | HeatMap
    numbers: Numbers | None = None


def style(names: Sequence[str], reference: str | None) -> dict[str, Look]:
    """Return method -> look; the reference is grey."""
    others = [name for name in names if name != reference]
    looks = {}
    for name in names:
        index = 0 if name == reference else 1 + others.index(name) % (COLORS - 1)
        # After one round of colors the dash pattern changes, so that all columns look different.
        turn = 0 if name == reference else others.index(name) // (COLORS - 1)
        shape = (index + turn) % len(SYMBOLS)
        looks[name] = Look(index, SYMBOLS[shape], DASHES[shape])
    return looks


def diagonal(name: str) -> Curve:
    """Return the dotted reference line from (0, 0) to (1, 1)."""
    ends = (Point(0.0, 0.0), Point(1.0, 1.0))
    return Curve(name, ends, Look(dash=DASHES[2]), marked=False, faint=True)


def mark_of_cell(cell: Cell, unit: Unit, counts: str = "") -> Mark:
    """Return the mark of a cell with a mean; ``counts`` is the unit of n, such as examples."""
    reach, interval = cell.interval, ABSENT
    if reach is not None:
        interval = f"[{unit.text(reach[0])}, {unit.text(reach[1])}]"
    examples = " or ".join(str(number) for number in cell.examples) or "not recorded"
    return Mark(
        (cell.mean or 0.0) * unit.scale,
        unit.text(cell.mean),
        interval,
        f"{plural(len(cell.seeds), 'seed')}, {examples} {counts}".rstrip(),
        None if reach is None else (reach[0] * unit.scale, reach[1] * unit.scale),
    )


def lines_are(cells: Iterable[Cell]) -> str:
    """Return a sentence on what the error bars are; empty if there are none."""
    drawn = [cell for cell in cells if cell.interval is not None]
    alone = any(cell.low is not None for cell in drawn)
    several = any(cell.low is None for cell in drawn)
    if several and alone:
        return "Lines are 95% intervals over seeds, or over examples for a method with one seed."
    if several:
        return "Lines are 95% intervals over seeds."
    return "Lines are 95% intervals over examples." if alone else ""


MOST_SERIES = 4
"""Maximum number of methods in a bar chart or a line chart."""


def many_columns(comparison: Comparison) -> bool:
    return len(comparison.columns) > MOST_SERIES


def numbers_of(marks: Marks, *header: str) -> Numbers:
    """Return marks as a table; ``header`` names the columns of labels, numbers and intervals."""
    lines = tuple((*key, mark.text, mark.interval, mark.count) for key, mark in marks.items())
    return Numbers(("method", *header, "n"), lines)


def condition_bars(
    comparison: Comparison,
    rows: Sequence[Row],
    heading: str,
    caption: str,
    *,
    names: Mapping[str, str] | None = None,
    label: Callable[[Row], str] | None = None,
) -> list[Figure]:
    """Draw one figure per set, with a bar for each condition and method (if many: a heat map).

    Means over sets are left out. ``heading`` precedes the set's name. ``names`` maps conditions to
    display names; ``label`` returns the label of a bar, by default the condition.
    """
    in_words = names or {}
    label = label or (lambda row: in_words.get(row.key.condition, row.key.condition))
    drawn = []
    for chosen, set_rows in _by_set(row for row in rows if not row.key.over_sets):
        named = {label(row): row for row in set_rows}
        drawn += labeled_bars(comparison, named, f"{heading}, {chosen}", caption)
    return drawn


def labeled_bars(
    comparison: Comparison, rows: Mapping[str, Row], heading: str, caption: str
) -> list[Figure]:
    """Draw a bar for each row and method (if many: a heat map); nothing without values.

    ``rows`` maps the label of a bar to its row; all have the same score.
    """
    cells = {
        (name, label): row.cells[name]
        for name in comparison.columns
        for label, row in rows.items()
        if row.cells[name].mean is not None
    }
    if not cells:
        return []
    first = next(iter(rows.values()))
    shown = first.unit
    axis = title(first.key.name) + (f" ({shown.sign})" if shown.sign else "")
    marks = {key: mark_of_cell(cell, shown) for key, cell in cells.items()}
    if many_columns(comparison):
        message = f"{axis}, the darker the higher."
        labels = tuple(dict.fromkeys(name for _, name in marks))
        chart: HeatMap | Bars = HeatMap(comparison.columns, labels, marks)
    else:
        looks = style(comparison.columns, comparison.reference)
        message, chart = lines_are(cells.values()), Bars(axis, marks, looks)
    return [Figure(heading, f"{caption} {message}", chart)]


def _by_set(rows: Iterable[Row]) -> Iterable[tuple[str, list[Row]]]:
    return grouped(rows, lambda row: row.key.set).items()


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
    """Draw the metric against the perturbation size, one figure per kind and set.

    ``size`` is the parameter on the horizontal axis. Rows with SIZE_relative instead are fractions
    of the embedding's ``relative_to``. ``caption`` has no final period.
    """
    curves: dict[tuple[str, Parameters, str, str], list[tuple[float, Row]]] = {}
    for row in comparison.of(perspective, comparison.metric):
        key = row.key
        for name, along in (
            (size, axis or size),
            (f"{size}_relative", f"{axis or size} over the embedding's {relative_to}"),
        ):
            strength = key.parameters.number(name)
            if strength is not None:
                kind = (key.condition, key.parameters.without(name), along, key.set)
                curves.setdefault(kind, []).append((strength, row))
                break
    shown = unit(comparison.metric, comparison.metric)
    label = title(comparison.metric)
    drawn = []
    for (_, _, along, _), points in curves.items():
        rows = [row for _, row in points]
        clean = (
            None if any(strength == 0 for strength, _ in points) else _clean(comparison, rows[0])
        )
        start = "" if clean is None else f"; {size} 0 is the clean set"
        lines = lines_are(cell for row in rows for cell in row.cells.values())
        if clean is not None:
            points = [(0.0, clean), *points]
        points = sorted(points, key=lambda point: point[0])
        digits = f".{shown.decimals}f"
        chart = Lines(
            Axis(along),
            Axis(f"{label} ({shown.sign})" if shown.sign else label),
            _curves(comparison, points, along, digits, scale=shown.scale),
        )
        drawn.append(Figure(heading(rows[0].key), f"{caption}{start}. {lines}", chart))
    return drawn


def _clean(comparison: Comparison, perturbed: Row) -> Row | None:
    """Return the row of the unperturbed score, if it was measured on the same examples."""
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


def _curves(
    comparison: Comparison,
    points: Sequence[tuple[float | str, Row]],
    along: str,
    digits: str,
    *,
    scale: float = 1.0,
) -> tuple[Curve, ...]:
    """Return a curve for each method through its means, with intervals.

    ``along`` is the name of x and ``digits`` the number format of means in tooltips. Drawn numbers
    are ``scale`` times the stored ones.
    """
    looks = style(comparison.columns, comparison.reference)
    curves = []
    for name in comparison.columns:
        drawn = []
        for strength, row in points:
            cell = row.cells[name]
            if cell.mean is None:
                continue
            mean, tips = cell.mean * scale, cell.interval
            reach = None if tips is None else (tips[0] * scale, tips[1] * scale)
            interval = (
                "no interval" if reach is None else f"{reach[0]:{digits}} to {reach[1]:{digits}}"
            )
            position = f"{strength:g}" if isinstance(strength, float) else strength
            detail = (
                f"{name}; {along} {position}: {mean:{digits}}; {interval}; "
                f"{plural(len(cell.seeds), 'seed')}, "
                f"n = {', '.join(map(str, cell.examples)) or 'not recorded'}"
            )
            drawn.append(Point(strength, mean, detail, reach))
        if drawn:
            curves.append(Curve(name, tuple(drawn), looks[name], column=name))
    return tuple(curves)


def inner_layers(keys: Sequence[ScoreKey]) -> list[ScoreKey]:
    """Choose the scores of all layers but the last, which are too many for tables."""
    # Tables keep the last layer, which the head reads, and scores without a layer (logits).
    last = max((key.parameters.number("layer") or 0.0 for key in keys), default=0.0)
    return [key for key in keys if key.parameters.number("layer") not in (None, last)]


def layer_label(key: ScoreKey, *, otherwise: str = "") -> str:
    """Return the title of a score with its layer, or with ``otherwise`` if it has no layer."""
    layer = key.parameters.get("layer")
    position = otherwise if layer is None else f"layer {layer}"
    return ", ".join(part for part in (title(key.name), position, key.set) if part)


def _by_layer(rows: Iterable[Row], last: str = "") -> list[tuple[float | str, Row]]:
    ordered = sorted(rows, key=lambda row: row.key.parameters.number("layer") or math.inf)
    return [(str(row.key.parameters.get("layer", last)), row) for row in ordered]


def layer_map(
    comparison: Comparison, rows: Sequence[Row], heading: str, caption: str, name: str, counts: str
) -> list[Figure]:
    """Draw a score in [0, 1] as a heat map of layers by methods, one figure per set.

    ``rows`` has a row for each parameter ``layer``, in any order. ``counts`` is the unit of n.
    """
    drawn = []
    for chosen, set_rows in _by_set(rows):
        marks = {
            (column, str(layer)): mark_of_cell(row.cells[column], row.unit, counts)
            for column in comparison.columns
            for layer, row in _by_layer(set_rows)
            if row.cells[column].mean is not None
        }
        turned = {(layer, column): mark for (column, layer), mark in marks.items()}
        layers = tuple(str(layer) for layer, _ in _by_layer(set_rows))
        chart = HeatMap(layers, comparison.columns, turned, (0.0, 1.0), digits=2, axis="layer")
        numbers = numbers_of(marks, "layer", name, "spread or interval")
        drawn.append(Figure(f"{heading}, {chosen}", caption, chart, numbers))
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
    """Draw a score at every layer, one line per method and one figure per set.

    ``rows`` has a row for each parameter ``layer``, and one without for the output, which gets the
    name ``last``. ``label`` is the title of the vertical axis.
    """
    drawn = []
    for chosen, set_rows in _by_set(rows):
        points = _by_layer(set_rows, last)
        # The axis is logarithmic, so 0 cannot be drawn.
        curves = _curves(comparison, points, "layer", ".3g")
        chart = Lines(Axis("layer"), Axis(label, log=True), curves)
        lines = lines_are(cell for row in set_rows for cell in row.cells.values())
        drawn.append(Figure(f"{heading}, {chosen}", f"{caption} {lines}", chart))
    return drawn
