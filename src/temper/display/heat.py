"""Heat maps of scores by columns, for comparisons of more columns than bars can tell apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from temper.display.drawing import LIGHT, SHARES_LIGHT, empty, plain

if TYPE_CHECKING:
    import plotly.graph_objects as go

_LINE = 30  # pixels of a score


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
    figure.update_layout(height=190 + _LINE * len(labels))
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
