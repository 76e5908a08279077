"""What all figures share: the palette, a column's style, an empty figure.

Figures carry no title and no background, the page gives them both; colours are those of the light
theme and the page swaps them in the dark. Columns differ in colour, marker and dash, so that no
reader depends on colour alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    # Plotly takes its time to import, and is imported when something is drawn.
    import plotly.graph_objects as go

# The reference is grey; the others follow Okabe and Ito's colours, which stay apart for every kind
# of colour vision. Same order in both themes: the page maps one to the other by position.
LIGHT = ("#5c6773", "#0072b2", "#d55e00", "#009e73", "#aa4499", "#a67c00", "#3f51b5")
DARK = ("#aeb8c4", "#57aeea", "#f0904f", "#33c79d", "#e296cb", "#e3b94f", "#9fa8ff")
_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "x", "star")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot", "solid")


# Ends of a scale of shares, from nothing to all; the page maps them as it does the columns'.
SHARES_LIGHT = ("#eef1f4", "#0b62a5")
SHARES_DARK = ("#262e38", "#79bdf2")
# Lines that lie on bars.
INK_LIGHT, INK_DARK = "#1d2630", "#e4e8ed"


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
        figure: The Plotly figure.
        numbers: What is drawn where no other table of the page holds it, else None.
    """

    title: str
    caption: str
    figure: go.Figure
    numbers: Numbers | None = None


def style(names: Sequence[str], reference: str | None) -> dict[str, dict[str, Any]]:
    """Return colour, marker and dash of every column.

    Args:
        names: Column names in order.
        reference: The column that is drawn in grey.
    """
    others = [name for name in names if name != reference]
    styles = {}
    for name in names:
        place = 0 if name == reference else 1 + others.index(name) % (len(LIGHT) - 1)
        # After one round of colours the dashes shift, so that no two columns look alike.
        turn = 0 if name == reference else others.index(name) // (len(LIGHT) - 1)
        styles[name] = {
            "color": LIGHT[place],
            "symbol": _SYMBOLS[(place + turn) % len(_SYMBOLS)],
            "dash": DASHES[(place + turn) % len(DASHES)],
        }
    return styles


def plain(text: str) -> str:
    """Escape what Plotly would read as markup in names and hover texts, so that data stay data."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def empty(x: str, y: str, **layout: Any) -> go.Figure:
    """Return a figure without traces.

    Args:
        x: Title of the horizontal axis.
        y: Title of the vertical axis.
        layout: What differs from the usual layout.
    """
    import plotly.graph_objects as go

    figure = go.Figure()
    figure.update_layout(
        template="none",
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        height=340,
        margin={"l": 56, "r": 12, "t": 12, "b": 48},
        legend={"orientation": "h", "x": 0, "y": -0.24, "yanchor": "top"},
        hoverlabel={"align": "left", "namelength": -1},
        xaxis={
            "title": {"text": plain(x), "font": {"size": 13}},
            "automargin": True,
            "zeroline": False,
        },
        yaxis={
            "title": {"text": plain(y), "font": {"size": 13}},
            "automargin": True,
            "zeroline": False,
        },
        showlegend=True,
    )
    figure.update_yaxes(exponentformat="power")
    figure.update_layout(layout)
    return figure


def line(name: str, look: dict[str, Any], **trace: Any) -> go.Scatter:
    """Return a line with markers in a column's style.

    Args:
        name: Column name.
        look: Its entry of `style`.
        trace: Data and the like.
    """
    import plotly.graph_objects as go

    return go.Scatter(
        name=plain(name),
        # By its group the page knows whose trace it is.
        legendgroup=plain(name),
        mode="lines+markers",
        line={"color": look["color"], "dash": look["dash"], "width": 2},
        marker={"color": look["color"], "symbol": look["symbol"], "size": 8},
        **trace,
    )


def stroke(
    name: str, x: Sequence[float], y: Sequence[float], *, colour: str, dash: str, group: str | None
) -> go.Scatter:
    """Return a line without markers.

    Args:
        name: Its name in the legend.
        x: Where its points stand from left to right.
        y: Where they stand from below.
        colour: Its colour.
        dash: Its dash.
        group: Column that it belongs to, None for no one's.
    """
    import plotly.graph_objects as go

    return go.Scatter(
        name=plain(name),
        legendgroup=None if group is None else plain(group),
        x=x,
        y=y,
        mode="lines",
        line={"color": colour, "dash": dash, "width": 2},
    )


def diagonal(name: str) -> go.Scatter:
    """Return the dotted line from (0, 0) to (1, 1) that a curve is held against.

    Args:
        name: What it stands for, in the legend.
    """
    import plotly.graph_objects as go

    return go.Scatter(
        name=name,
        x=[0, 1],
        y=[0, 1],
        mode="lines",
        line={"color": LIGHT[0], "width": 1, "dash": "dot"},
        hoverinfo="skip",
    )
