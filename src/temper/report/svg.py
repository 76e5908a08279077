"""Draw a figure as SVG, for the page or as a separate file.

Lengths are pixels of a figure `WIDTH` wide; the page scales it.
"""

from __future__ import annotations

import math
import re
import textwrap
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterable, Mapping, Sequence

from temper.display.charts import Axis, Bars, Curve, Figure, HeatMap, Lines, Look
from temper.files import asset

WIDTH = 420
_CHARACTER, _LINE = 6.8, 15.0  # of text of 12 pixels: about the width of a letter, and a line
_SHAPES = {
    "circle": "M-4 0a4 4 0 1 1 8 0a4 4 0 1 1 -8 0z",
    "square": "M-3.6 -3.6h7.2v7.2h-7.2z",
    "diamond": "M0 -5l5 5l-5 5l-5 -5z",
    "triangle": "M0 -5l5 9h-10z",
    "cross": "M-1.5 -5h3v3.5h3.5v3h-3.5v3.5h-3v-3.5h-3.5v-3h3.5z",
    "x": "M-5 -3.5l1.5 -1.5l3.5 3.5l3.5 -3.5l1.5 1.5l-3.5 3.5l3.5 3.5l-1.5 1.5l-3.5 -3.5l-3.5 3.5"
    "l-1.5 -1.5l3.5 -3.5z",
    "star": "M0 -6l1.6 4h4.2l-3.4 2.6l1.3 4.2l-3.7 -2.5l-3.7 2.5l1.3 -4.2l-3.4 -2.6h4.2z",
}

Element = ElementTree.Element


def svg(figure: Figure, *, alone: bool = False) -> str:
    """Return a figure as an ``svg`` element, with escaped text.

    ``alone``: whether it is for a separate file, with title, legend and colors.
    """
    root = Element("svg", {"class": "figure"})
    top = 0.0
    if alone:
        root.set("xmlns", "http://www.w3.org/2000/svg")
        _add(root, "style").text = _colors()
        _add(root, "rect", class_="paper", width="100%", height="100%")
        top = 8 + _text(root, figure.title, 12, 20, class_="title", wrap=52) + 4
    body = _add(root, "g", transform=f"translate(0 {top:g})" if top else None)
    chart = figure.chart
    if isinstance(chart, Lines):
        width, height = _lines(body, chart, alone)
    elif isinstance(chart, Bars):
        width, height = _bars(body, chart, alone)
    else:
        width, height = _heat_map(body, chart)
    height += top
    root.set("viewBox", f"0 0 {width:g} {height:g}")
    if alone or width > WIDTH:
        root.set("width", f"{width:g}")
        root.set("height", f"{height:g}")
    for element in root.iter():
        element.text = _clean(element.text) if element.text else None
        element.attrib.update({name: _clean(value) for name, value in element.attrib.items()})
    return ElementTree.tostring(root, encoding="unicode")


def sample(look: Look, *, bar: bool) -> str:
    root = Element("svg", {"class": "figure sample", "viewBox": "0 0 30 12", "aria-hidden": "true"})
    _sample(root, look, bar=bar)
    return ElementTree.tostring(root, encoding="unicode")


def _sample(parent: Element, look: Look, *, bar: bool, marked: bool = True) -> None:
    if bar:
        _add(parent, "path", class_=f"fill c{look.color}", d="M9 0h12v12h-12z")
        return
    _add(parent, "path", class_=f"line c{look.color}", d="M0 6h30", stroke_dasharray=look.dash)
    if marked:
        shape = _SHAPES[look.symbol]
        _add(parent, "path", class_=f"fill c{look.color}", d=shape, transform="translate(15 6)")


def _lines(root: Element, chart: Lines, alone: bool) -> tuple[float, float]:
    points = [point for curve in chart.curves for point in curve.points]
    names = list(dict.fromkeys(point.x for point in points if isinstance(point.x, str)))
    if names:
        indices: dict[float | str, float] = {name: index for index, name in enumerate(names)}
        low, high = -0.3, len(names) - 0.7
        stops = [(float(index), str(name)) for name, index in indices.items()]
    else:
        indices = {}
        low, high = _limits(chart.x, [float(point.x) for point in points])
        stops = [(stop, _number(stop)) for stop in ticks(low, high, most=6)]
    heights = [end for point in points for end in (point.y, *(point.ends or ()))]
    bottom_value, top_value = _limits(chart.y, heights)
    levels = (
        _powers(bottom_value, top_value) if chart.y.log else ticks(bottom_value, top_value, most=5)
    )
    marks = [(level, _number(level)) for level in levels]
    left = 27 + _CHARACTER * max((len(text) for _, text in marks), default=1)
    right, top, bottom = WIDTH - 8.0, 8.0, chart.height - 40.0

    def across(x: float | str) -> float:
        value = indices[x] if x in indices else float(x)
        return left + (value - low) / (high - low) * (right - left)

    def up(y: float) -> float:
        scale = math.log if chart.y.log else float
        first, last = scale(bottom_value), scale(top_value)
        return bottom - (scale(y) - first) / (last - first) * (bottom - top)

    for level, text in marks:
        _add(root, "path", class_="grid", d=f"M{left:.1f} {up(level):.1f}H{right:.1f}")
        _text(root, text, left - 5, up(level) + 4, anchor="end")
    for stop, text in stops:
        _add(root, "path", class_="grid", d=f"M{across(stop):.1f} {bottom:.1f}v4")
        _text(root, text, across(stop), bottom + 16, anchor="middle")
    _text(root, chart.x.title, (left + right) / 2, bottom + 33, anchor="middle", class_="axis")
    title = _add(root, "text", class_="axis", text_anchor="middle",
                 transform=f"translate(11 {(top + bottom) / 2:.1f}) rotate(-90)")  # fmt: skip
    title.text = chart.y.title
    clip = (left, top, right, bottom)
    for curve in chart.curves:
        _curve(root, curve, across, up, clip, positive=chart.y.log)
    return WIDTH, _legend(root, chart, alone, chart.height)


def _curve(
    root: Element,
    curve: Curve,
    across: Callable[[float | str], float],
    up: Callable[[float], float],
    box: tuple[float, float, float, float],
    *,
    positive: bool,
) -> None:
    group = _add(root, "g", class_=f"curve c{curve.look.color}{' faint' if curve.faint else ''}")
    if curve.column is not None:
        group.set("data-column", curve.column)
    drawn = [
        point
        for point in curve.points
        if math.isfinite(point.y) and not (positive and point.y <= 0)
    ]
    if not drawn:
        return
    path = "L".join(f"{across(point.x):.1f} {up(point.y):.1f}" for point in drawn)
    _add(group, "path", class_="line", d=f"M{path}", stroke_dasharray=curve.look.dash)
    for point in drawn:
        if not curve.marked and not point.detail:
            continue
        x, y = across(point.x), up(point.y)
        mark = _add(group, "g")
        if point.detail:
            _add(mark, "title").text = point.detail
        if point.ends is not None and not (positive and point.ends[0] <= 0):
            low, high = (min(max(up(end), box[1]), box[3]) for end in point.ends)
            _add(mark, "path", class_="reach", d=f"M{x:.1f} {low:.1f}V{high:.1f}")
        if point.detail:
            _add(mark, "circle", class_="near", cx=f"{x:.1f}", cy=f"{y:.1f}", r="9")
        if curve.marked:
            where = f"translate({x:.1f} {y:.1f})"
            _add(mark, "path", class_="fill", d=_SHAPES[curve.look.symbol], transform=where)


def _legend(root: Element, chart: Lines, alone: bool, height: float) -> float:
    named = [curve for curve in chart.curves if not curve.faint]
    columns = [curve.column for curve in named]
    # The page's legend explains columns only, not other dash patterns.
    by_key = None not in columns and len(set(columns)) == len(columns)
    if len(named) < 2 or (by_key and not alone):
        return height
    for curve in named:
        height += _entry(root, height, curve.name, curve.look, bar=False, marked=curve.marked)
    return height + 6


def _entry(
    root: Element, y: float, name: str, look: Look, *, bar: bool, marked: bool = True
) -> float:
    entry = _add(root, "g", transform=f"translate(12 {y + 2:g})")
    _sample(entry, look, bar=bar, marked=marked)
    return max(_LINE, _text(entry, name, 38, 10, wrap=58)) + 2


def _bars(root: Element, chart: Bars, alone: bool) -> tuple[float, float]:
    values: list[float] = [0.0]
    for mark in chart.marks.values():
        values += (mark.value, *(mark.ends or ()))
    low, high = min(values), max(values)
    levels = ticks(low, high, most=5)
    low, high = min(low, levels[0]), max(high, levels[-1])
    gutter = 10 + _CHARACTER * max(len(mark.text) for mark in chart.marks.values())
    left, right = 14.0, WIDTH - gutter

    def across(value: float) -> float:
        return left + (value - low) / (high - low) * (right - left)

    grid, y = _add(root, "g"), 4.0
    labels: dict[str, list[str]] = {}
    for column, label in chart.marks:
        labels.setdefault(label, []).append(column)
    for label, columns in labels.items():
        y += _text(root, label, left, y + 12, wrap=62) + 4
        for column in columns:
            mark, look = chart.marks[column, label], chart.looks[column]
            group = _add(root, "g", class_=f"c{look.color}", data_column=column)
            _add(group, "title").text = f"{column}; {label}: {mark.detail}"
            start, end = sorted((across(0.0), across(mark.value)))
            box = {"x": f"{start:.1f}", "width": f"{max(end - start, 0.5):.1f}"}
            _add(group, "rect", class_="near", x="0", width=f"{WIDTH}", y=f"{y:.1f}", height="16")
            _add(group, "rect", class_="fill", y=f"{y + 2:.1f}", height="11", **box)
            if mark.ends is not None:
                first, last = (across(tip) for tip in mark.ends)
                _add(group, "path", class_="reach over", d=f"M{first:.1f} {y + 7.5:.1f}H{last:.1f}")
            _text(group, mark.text, WIDTH - 4, y + 11, anchor="end", class_="value")
            y += 16
        y += 5
    for level in levels:
        kind = "grid zero" if level == 0 else "grid"
        _add(grid, "path", class_=kind, d=f"M{across(level):.1f} 4V{y:.1f}")
        _text(root, _number(level), across(level), y + 14, anchor="middle")
    _text(root, chart.axis, (left + right) / 2, y + 31, anchor="middle", class_="axis")
    height = y + 38
    drawn = list(dict.fromkeys(column for column, _ in chart.marks))
    for column in drawn if alone and len(drawn) > 1 else ():
        height += _entry(root, height, column, chart.looks[column], bar=True)
    return WIDTH, height + 4


def _heat_map(root: Element, chart: HeatMap) -> tuple[float, float]:
    wrapped = {label: textwrap.wrap(label, 26) or [""] for label in chart.labels}
    left = 10 + _CHARACTER * max(len(line) for lines in wrapped.values() for line in lines)
    numbers = [mark.value for mark in chart.marks.values()]
    width = max((WIDTH - left - 30) / max(len(chart.columns), 1), 36.0)
    longest = max(len(name) for name in chart.columns)
    turned = longest * _CHARACTER > width
    top = 10 + (min(longest, 30) * _CHARACTER * 0.75 if turned else _LINE)
    if chart.axis:
        _text(root, chart.axis, left, 12, class_="axis")
        top += _LINE
    for index, name in enumerate(chart.columns):
        x = left + (index + (0.35 if turned else 0.5)) * width
        if turned:
            text = _add(root, "text", transform=f"translate({x:.1f} {top - 5:.1f}) rotate(-48)")
            text.text = textwrap.shorten(name, 30, placeholder="\u2026") or name[:30]
        else:
            _text(root, name, x, top - 5, anchor="middle")
    y = top
    for label, lines in wrapped.items():
        height = max(24.0, len(lines) * _LINE + 6)
        _text(
            root,
            label,
            left - 6,
            y + (height - len(lines) * _LINE) / 2 + 11.5,
            anchor="end",
            wrap=26,
        )
        for index, name in enumerate(chart.columns):
            mark = chart.marks.get((name, label))
            if mark is None:
                continue
            shade, kind = _shade(mark.value, numbers, chart.limits)
            x = left + index * width
            cell = _add(root, "g")
            _add(cell, "title").text = f"{name}; {label}: {mark.detail}"
            box = {
                "x": f"{x:.1f}",
                "y": f"{y:.1f}",
                "width": f"{width - 1:.1f}",
                "height": f"{height - 1:g}",
            }
            _add(cell, "rect", class_="bare", **box)
            _add(cell, "rect", class_=kind, fill_opacity=f"{shade:.2f}", **box)
            number = f"{mark.value:.{chart.digits}f}".replace("-", "\u2212")
            dark = "cell on" if shade > 0.55 else "cell"
            _text(cell, number, x + width / 2, y + height / 2 + 4, anchor="middle", class_=dark)
        y += height
    return max(WIDTH, left + width * len(chart.columns) + 30), y + 6


def _shade(
    value: float, numbers: Sequence[float], limits: tuple[float, float] | None
) -> tuple[float, str]:
    """Return the intensity of a cell's color, from 0 to 1, and the style class of its color."""
    low, high = limits or (min(numbers), max(numbers))
    if limits is not None and low < 0:
        fraction, kind = (value / high, "gain") if value >= 0 else (value / low, "loss")
    else:
        fraction, kind = ((value - low) / (high - low) if high > low else 0.5), "share"
    return max(0.0, min(1.0, fraction)), kind


def _limits(axis: Axis, values: Iterable[float]) -> tuple[float, float]:
    """Return the limits of an axis: those that are set, else the data's with a margin."""
    if axis.limits is not None:
        return axis.limits
    known = [value for value in values if math.isfinite(value) and not (axis.log and value <= 0)]
    low, high = min(known, default=1.0 if axis.log else 0.0), max(known, default=1.0)
    if axis.log:
        return low / 1.3, high * 1.3
    room = 0.05 * (high - low) or 0.05 * abs(high) or 0.5
    return low - room, high + room


def ticks(low: float, high: float, *, most: int) -> list[float]:
    """Return round numbers in a range: multiples of 1, 2 or 5 times a power of ten.

    There are at most ``most`` steps between them; with 5 or more, at least two numbers.

    Example:
        >>> ticks(0.13, 0.87, most=5)
        [0.2, 0.4, 0.6, 0.8]
    """
    if high <= low:
        high = low + 1.0
    power = 10.0 ** math.floor(math.log10((high - low) / most))
    step = next(
        power * times for times in (1, 2, 5, 10, 20) if (high - low) / (power * times) <= most
    )
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(index * step, 12) for index in range(first, last + 1)]


def _powers(low: float, high: float) -> list[float]:
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    times = (1, 2, 5) if last - first < 4 else (1,)
    every = max(1, (last - first) // 6)
    return [
        tick
        for power in range(first, last + 1, every)
        for one in times
        if low <= (tick := one * 10.0**power) <= high
    ]


def _number(value: float) -> str:
    return f"{value:g}".replace("-", "\u2212")


def _add(parent: Element, tag: str, **attributes: str | None) -> Element:
    named = {
        name.rstrip("_").replace("_", "-"): value for name, value in attributes.items() if value
    }
    return ElementTree.SubElement(parent, tag, named)


def _text(
    parent: Element,
    text: str,
    x: float,
    y: float,
    *,
    anchor: str | None = None,
    class_: str | None = None,
    wrap: int = 0,
) -> float:
    lines = textwrap.wrap(text, wrap) if wrap else [text]
    for index, line in enumerate(lines):
        attributes = {"x": f"{x:.1f}", "y": f"{y + index * _LINE:.1f}"}
        _add(parent, "text", text_anchor=anchor, class_=class_, **attributes).text = line
    return len(lines) * _LINE


def _clean(text: str) -> str:
    return re.sub(r"[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]", "\ufffd", text)


def _colors() -> str:
    """Return the styles of a figure in a separate file: the page's light theme."""
    texts = [asset("temper.report", f"{name}.css") for name in ("first_screen", "figure")]
    # The part before the first media query is the light theme.
    light = "".join(text.split("@media")[0] for text in texts)
    colors: Mapping[str, str] = dict(re.findall(r"(--[\w-]+): ([^;]+);", light))
    rules = texts[1][texts[1].index(".figure {") :]
    return re.sub(r"var\((--[\w-]+)\)", lambda name: colors[name[1]], rules)
