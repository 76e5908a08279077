"""Figures by layer: norms of the Jacobian and the Hessian, and CKA with the pre-trained model."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from temper.report.cells import Cell, Comparison, Row
from temper.report.drawing import (
    SHARES_LIGHT,
    Figure,
    Numbers,
    empty,
    line_of_cells,
    plain,
    style,
)
from temper.report.wording import ABSENT, plural

NORMS = {"jacobian_norm": "Jacobian", "hessian_norm": "Hessian"}
LOGITS = "logits"


def smoothness(comparison: Comparison) -> list[Figure]:
    """Draw both norms at every layer and at the logits, one figure a norm and set."""
    drawn = []
    for name, norm in NORMS.items():
        of_norm = [
            row
            for row in comparison.rows
            if (row.key.perspective, row.key.name) == ("smoothness", name)
        ]
        for chosen in dict.fromkeys(row.key.set for row in of_norm):
            rows = [row for row in of_norm if row.key.set == chosen]
            drawn.append(
                Figure(
                    "smoothness",
                    f"Smoothness by layer: {norm}, {chosen}",
                    _caption(name, rows),
                    _figure(comparison, rows, f"squared {norm} norm"),
                )
            )
    return drawn


def alignment(comparison: Comparison) -> list[Figure]:
    """Draw CKA with the pre-trained model as a heat map of layers by columns, one a set.

    Args:
        comparison: All scores.
    """
    of_layers = [
        row
        for row in comparison.rows
        if (row.key.perspective, row.key.name) == ("representation", "cka")
    ]
    drawn = []
    for chosen in dict.fromkeys(row.key.set for row in of_layers):
        rows = [row for row in of_layers if row.key.set == chosen]
        rows.sort(key=lambda row: row.key.layer or 0)
        caption = (
            "Linear CKA of each layer's states with those of the pre-trained model: 1 is the same "
            "up to rotation and size. Neither more nor less is better."
        )
        title = f"Likeness to the pre-trained model, {chosen}"
        drawn.append(Figure("representation", title, caption, *_heat_map(comparison, rows)))
    return drawn


def _heat_map(comparison: Comparison, rows: Sequence[Row]) -> tuple[go.Figure, Numbers]:
    figure = empty("layer", "", showlegend=False)
    figure.update_layout(height=110 + 36 * len(comparison.columns))
    figure.update_xaxes(type="category")
    figure.update_yaxes(type="category", autorange="reversed")
    lines = []
    for name in comparison.columns:
        for row in rows:
            cell = row.cells[name]
            if cell.mean is not None:
                lines.append((name, str(row.key.layer), f"{cell.mean:.4f}", *_doubt(cell)))
    said = {(name, layer): (ends, count) for name, layer, _, ends, count in lines}
    places = [str(row.key.layer) for row in rows]
    figure.add_trace(
        go.Heatmap(
            x=places,
            y=[plain(name) for name in comparison.columns],
            z=[[row.cells[name].mean for row in rows] for name in comparison.columns],
            zmin=0,
            zmax=1,
            colorscale=[[0, SHARES_LIGHT[0]], [1, SHARES_LIGHT[1]]],
            xgap=2,
            ygap=2,
            texttemplate="%{z:.2f}",
            customdata=[
                [list(said.get((name, place), ("", ""))) for place in places]
                for name in comparison.columns
            ],
            hovertemplate=(
                "<b>%{y}</b><br>layer %{x}<br>CKA %{z:.4f} %{customdata[0]}<br>"
                "n = %{customdata[1]}<extra></extra>"
            ),
            colorbar={"thickness": 12, "outlinewidth": 0},
        )
    )
    return figure, Numbers(("column", "layer", "CKA", "spread or interval", "n"), tuple(lines))


def _doubt(cell: Cell) -> tuple[str, str]:
    """Write a cell's interval or spread, and what it is over."""
    batches = " or ".join(str(count) for count in cell.examples) or "unknown number of"
    count = f"{plural(len(cell.seeds), 'seed')}, {batches} batches"
    if cell.low is not None and cell.high is not None:
        return f"[{cell.low:.4f}, {cell.high:.4f}]", count
    if cell.standard_deviation is None:
        return ABSENT, count
    return f"\u00b1 {cell.standard_deviation:.4f}", count


def _caption(name: str, rows: Sequence[Row]) -> str:
    which = NORMS[name]
    over = ", averaged over the state's dimensions" if name == "hessian_norm" else ""
    several = any(len(cell.seeds) > 1 for row in rows for cell in row.cells.values())
    bars = "one standard deviation over seeds" if several else "the standard error over examples"
    caption = (
        f"Mean over examples of the squared Frobenius norm of the {which} by the word embeddings"
        f"{over}; lower is smoother. Bars are {bars}."
    )
    zero = any(cell.mean == 0 for row in rows for cell in row.cells.values())
    return f"{caption} A norm of 0 has no place on a log axis." if zero else caption


def _figure(comparison: Comparison, rows: Sequence[Row], label: str) -> go.Figure:
    figure = empty("layer", label)
    ordered = sorted(rows, key=lambda row: (row.key.layer is None, row.key.layer or 0))
    places = [LOGITS if row.key.layer is None else str(row.key.layer) for row in ordered]
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
    return figure


def _ends(cell: Cell) -> tuple[float, float] | None:
    """Return a standard deviation over seeds to either side, else one seed's standard error."""
    spread = cell.standard_deviation
    if spread is None:
        spread = next(iter(cell.standard_errors.values()), None)
    if spread is None or cell.mean is None:
        return None
    return cell.mean - spread, cell.mean + spread
