"""Figures as SVG: positions match the axis, and text from data is escaped."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ElementTree
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from temper.display.charts import (
    COLORS,
    DASHES,
    SYMBOLS,
    Axis,
    Bars,
    Curve,
    Figure,
    HeatMap,
    Lines,
    Look,
    Mark,
    Point,
)
from temper.report.svg import WIDTH, sample, svg, ticks

SIZES = st.floats(-1e6, 1e6, allow_nan=False)
NAMES = st.text(min_size=1, max_size=60)
SPACE = "{http://www.w3.org/2000/svg}"


def drawn(chart: Lines | Bars | HeatMap, title: str = "title") -> ElementTree.Element:
    return ElementTree.fromstring(svg(Figure(title, "caption", chart), alone=True))


def curve(points: list[tuple[float | str, float]], name: str = "curve") -> Curve:
    made = tuple(Point(x, y, f"{x} {y}") for x, y in points)
    return Curve(name, made, Look(1), column=name)


def positions(root: ElementTree.Element) -> list[tuple[float, float]]:
    circles = root.iter(f"{SPACE}circle")
    return [(float(one.get("cx", "nan")), float(one.get("cy", "nan"))) for one in circles]


@given(st.lists(st.tuples(SIZES, SIZES), min_size=2, max_size=8))
def test_positions_of_points_are_proportional_to_their_values(
    points: list[tuple[float, float]],
) -> None:
    lines = Lines(Axis("x"), Axis("y"), (curve(list(points)),))
    indices = positions(drawn(lines))
    assert len(indices) == len(points)
    for axis, sign in ((0, 1), (1, -1)):
        values = [point[axis] for point in points]
        where = [sign * index[axis] for index in indices]
        reach, length = max(values) - min(values), max(where) - min(where)
        for value, at in zip(values, where, strict=True):
            if reach > 1e-6 * max(map(abs, values)):
                # Written to a tenth of a pixel.
                expected = min(where) + (value - min(values)) / reach * length
                assert at == pytest.approx(expected, abs=0.16)
    assert all(0 < x < WIDTH and 0 < y < lines.height + 40 for x, y in indices)


def test_equal_ratios_are_equal_lengths_on_a_log_axis() -> None:
    chart = Lines(Axis("x"), Axis("y", log=True), (curve([("a", 0.1), ("b", 1), ("c", 10)]),))
    first, second, third = (y for _, y in positions(drawn(chart)))
    assert first - second == pytest.approx(second - third, abs=0.2)
    assert first > second


@pytest.mark.parametrize(("values", "places"), [([0.0, 1, 10], 2), ([0.0, 0.0], 0), ([], 0)])
def test_values_without_a_logarithm_are_not_drawn_on_a_log_axis(
    values: list[float], places: int
) -> None:
    points: list[tuple[float | str, float]] = [(str(at), y) for at, y in enumerate(values)]
    chart = Lines(Axis("x"), Axis("y", log=True), (curve(points),))
    assert len(positions(drawn(chart))) == places


@given(SIZES, st.floats(1e-3, 1e6), st.integers(5, 8))
def test_ticks_are_round_few_and_inside(low: float, reach: float, most: int) -> None:
    high = low + reach
    result = ticks(low, high, most=most)
    assert 2 <= len(result) <= most + 1
    room = 1e-6 * max(abs(low), abs(high), 1e-3)
    assert all(low - room <= tick <= high + room for tick in result)
    steps = [after - before for before, after in pairwise(result)]
    assert steps == pytest.approx([steps[0]] * len(steps), rel=1e-5)
    digits = steps[0] / 10 ** math.floor(math.log10(steps[0] * (1 + 1e-9)))
    assert min(abs(digits - one) for one in (1, 2, 5, 10)) < 1e-3


@given(NAMES, NAMES, NAMES)
def test_text_from_data_is_escaped_in_figures(column: str, label: str, title: str) -> None:
    mark = Mark(1.0, "1.0", label, column)
    looks = {column: Look(2)}
    for chart in (
        Lines(Axis(label), Axis(column), (curve([(0.0, 1.0), (1.0, 2.0)], column),)),
        Bars(title, {(column, label): mark}, looks),
        HeatMap((column,), (label,), {(column, label): mark}),
    ):
        # A document that parses holds no markup but ours, and no script.
        tags = {one.tag.removeprefix(SPACE) for one in drawn(chart, title).iter()}
        assert tags <= {"svg", "style", "g", "path", "rect", "text", "title", "circle"}


def test_a_bar_reaches_from_zero_to_its_number() -> None:
    marks = {("a", "up"): Mark(30.0, "30", "", ""), ("a", "down"): Mark(-10.0, "-10", "", "")}
    root = drawn(Bars("axis", marks, {"a": Look(1)}))
    up, down = (one for one in root.iter(f"{SPACE}rect") if one.get("class") == "fill")
    start, end = float(up.get("x", "")), float(down.get("x", "")) + float(down.get("width", ""))
    assert start == pytest.approx(end, abs=0.2)
    wide = float(up.get("width", "")) / float(down.get("width", ""))
    assert wide == pytest.approx(3.0, abs=0.05)


def test_the_end_of_a_diverging_scale_is_full_and_its_middle_bare() -> None:
    marks = {(str(value), "x"): Mark(value, "", "", "") for value in (-100.0, 0.0, 50.0, 200.0)}
    columns = tuple(name for name, _ in marks)
    root = drawn(HeatMap(columns, ("x",), marks, limits=(-100.0, 100.0)))
    result = [
        (one.get("class"), float(one.get("fill-opacity", "nan")))
        for one in root.iter(f"{SPACE}rect")
        if one.get("class") in ("gain", "loss")
    ]
    assert result == [("loss", 1.0), ("gain", 0.0), ("gain", 0.5), ("gain", 1.0)]


def test_a_file_has_its_colors_and_names_and_loads_nothing() -> None:
    curves = tuple(
        Curve(f"column {index}", (Point(0.0, index), Point(1.0, index)), Look(index), f"c{index}")
        for index in range(COLORS)
    )
    figure = Figure("title", "caption", Lines(Axis("x"), Axis("y"), curves))
    text = svg(figure, alone=True)
    assert not re.search(r"var\(|url\(|href|@import", text)
    assert all(curve.name in text for curve in curves)
    # On the page the keys name them, and the theme colors them.
    assert not [curve.name for curve in curves if f">{curve.name}<" in svg(figure)]
    assert "<style" not in svg(figure)


@pytest.mark.parametrize("symbol", SYMBOLS)
@pytest.mark.parametrize("dash", DASHES)
def test_every_look_has_a_line_and_a_symbol(symbol: str, dash: str) -> None:
    line = ElementTree.fromstring(sample(Look(1, symbol, dash), bar=False))
    assert len(list(line)) == 2
    assert (line[0].get("stroke-dasharray") or "") == dash
