"""Smoothness by layer: norms of the Jacobian and the Hessian on a log axis."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from temper.report.cells import Cell, Comparison, Row
from temper.report.drawing import Figure, empty, line_of_cells, style

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
            spread = [_spread(cell) for _, cell in known]
            figure.add_trace(
                line_of_cells(name, looks[name], known, spread=spread, along="layer", digits=".3g")
            )
    return figure


def _spread(cell: Cell) -> float:
    """Return the standard deviation over seeds, or one seed's standard error."""
    if cell.standard_deviation is not None:
        return cell.standard_deviation
    return next(iter(cell.standard_errors.values()), 0.0)
