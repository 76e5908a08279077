"""What a figure draws, as plain data; `temper.report.svg` makes it a picture.

Columns differ in colour, marker and dash, so that no reader depends on colour alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

COLOURS = 7
"""Colours of assets/figure.css: grey for the reference, then those of Okabe and Ito."""
SYMBOLS = ("circle", "square", "diamond", "triangle", "cross", "x", "star")
DASHES = ("", "7 4", "2 3", "7 3 2 3", "12 4", "12 3 2 3", "")


@dataclass(frozen=True)
class Look:
    """Say how a column or a curve is drawn.

    Args:
        colour: Its place among the colours, >= 0 and below `COLOURS`.
        symbol: One of `SYMBOLS`.
        dash: One of `DASHES`.
    """

    colour: int = 0
    symbol: str = SYMBOLS[0]
    dash: str = ""


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
    ends: tuple[float, float] | None = None

    @property
    def detail(self) -> str:
        """All there is to know."""
        return f"{self.text} ({self.interval}); n = {self.count}"


Marks = Mapping[tuple[str, str], Mark]
"""What is drawn, by column and label."""


@dataclass(frozen=True)
class Axis:
    """Describe an axis.

    Args:
        title: What it shows.
        limits: Its ends, None for those of the data.
        log: Whether equal lengths are equal ratios; a number <= 0 has no place there.
    """

    title: str
    limits: tuple[float, float] | None = None
    log: bool = False


@dataclass(frozen=True)
class Point:
    """Stand for one number of a curve.

    Args:
        x: Where it stands from left to right: a number, or, of all points of a chart, a name.
        y: The number.
        detail: What is said of it; empty where nothing is.
        ends: Ends of its line, None where there is none.
    """

    x: float | str
    y: float
    detail: str = ""
    ends: tuple[float, float] | None = None


@dataclass(frozen=True)
class Curve:
    """Connect points.

    Args:
        name: Its name in the legend.
        points: In order.
        look: How it is drawn.
        column: Whose it is, None for no one's.
        marked: Whether its points are.
        faint: Whether it stands behind the others, without a name.
    """

    name: str
    points: tuple[Point, ...]
    look: Look
    column: str | None = None
    marked: bool = True
    faint: bool = False


@dataclass(frozen=True)
class Lines:
    """Draw curves over two axes.

    Args:
        x, y: The axes.
        curves: From the back to the front.
        height: In pixels, of a figure 420 wide.
    """

    x: Axis
    y: Axis
    curves: tuple[Curve, ...]
    height: int = 280

    @property
    def drawn(self) -> frozenset[str]:
        """The columns that it shows."""
        return frozenset(curve.column for curve in self.curves if curve.column is not None)


@dataclass(frozen=True)
class Bars:
    """Draw lying bars, side by side by label.

    Args:
        axis: What their length shows.
        marks: What is known; the first label stands on top.
        looks: Of the columns.
    """

    axis: str
    marks: Marks
    looks: Mapping[str, Look]

    @property
    def drawn(self) -> frozenset[str]:
        """The columns that it shows."""
        return frozenset(column for column, _ in self.marks)


@dataclass(frozen=True)
class HeatMap:
    """Draw a line a label and a place a column, shaded by the number.

    Args:
        columns: Names, from left to right.
        labels: Names, from top to bottom.
        marks: What is known; the others stay empty.
        limits: Numbers of the full colours, green above 0 and orange below where the lower one is
            below 0; None shades from the least to the greatest.
        digits: Digits after the point of the numbers in the cells.
        axis: What the columns are; empty where that is clear.
    """

    columns: tuple[str, ...]
    labels: tuple[str, ...]
    marks: Marks
    limits: tuple[float, float] | None = None
    digits: int = 0
    axis: str = ""


@dataclass(frozen=True)
class Numbers:
    """Hold what a figure draws as a table, for who cannot see it or wants it exactly.

    Args:
        header: Headings.
        lines: Cells of each line, as many as headings.
    """

    header: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Figure:
    """Hold one figure of the page.

    Args:
        title: Its heading.
        caption: What is drawn, in a sentence.
        chart: What it draws.
        numbers: What is drawn where no other table of the page holds it, else None.
    """

    title: str
    caption: str
    chart: Lines | Bars | HeatMap
    numbers: Numbers | None = None


def style(names: Sequence[str], reference: str | None) -> dict[str, Look]:
    """Return the look of every column.

    Args:
        names: Column names in order.
        reference: The column that is drawn in grey.
    """
    others = [name for name in names if name != reference]
    looks = {}
    for name in names:
        place = 0 if name == reference else 1 + others.index(name) % (COLOURS - 1)
        # After one round of colours the dashes shift, so that no two columns look alike.
        turn = 0 if name == reference else others.index(name) // (COLOURS - 1)
        shape = (place + turn) % len(SYMBOLS)
        looks[name] = Look(place, SYMBOLS[shape], DASHES[shape])
    return looks


def diagonal(name: str) -> Curve:
    """Return the dotted line from (0, 0) to (1, 1) that a curve is held against.

    Args:
        name: What it stands for, in the legend.
    """
    ends = (Point(0.0, 0.0), Point(1.0, 1.0))
    return Curve(name, ends, Look(dash=DASHES[2]), marked=False, faint=True)
