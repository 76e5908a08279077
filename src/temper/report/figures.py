"""All figures of a report; training and cost are drawn here, the others elsewhere."""

from __future__ import annotations

from statistics import mean
from typing import Any

import plotly.graph_objects as go

from temper.report import bars
from temper.report.cells import Comparison
from temper.report.curves import corruptions, noise, robustness
from temper.report.detection import anomaly_curves
from temper.report.drawing import Figure, Numbers, empty, plain, style
from temper.report.folders import Source
from temper.report.layers import alignment, smoothness
from temper.report.reliability import reliability_diagrams
from temper.report.wording import ABSENT, plural


def figures(source: Source, comparison: Comparison) -> list[Figure]:
    """Draw everything that a folder has data for.

    Args:
        source: The folder.
        comparison: Its scores.

    Returns:
        The figures in the order of the page; a folder without, say, attacks has no attack figure.

    Raises:
        CheckpointError: Rows or metrics are damaged.
    """
    drawn = [*bars.perspectives(comparison)]
    drawn += [*robustness(comparison), *noise(comparison), *corruptions(comparison)]
    drawn += [*bars.text_attacks(comparison), *bars.worst_cases(comparison)]
    drawn += [*bars.groups(comparison), *smoothness(comparison), *alignment(comparison)]
    drawn += [*reliability_diagrams(source), *bars.detectors(comparison), *anomaly_curves(source)]
    drawn += training(source)
    drawn += [figure for figure in (cost(source), benefit(source, comparison)) if figure]
    return drawn


def training(source: Source) -> list[Figure]:
    """Draw every loss term over the steps: the mean over seeds, and each seed faintly.

    Args:
        source: The folder; its ``metrics.jsonl`` files are read.
    """
    terms: dict[str, dict[str, dict[int, list[tuple[int, float]]]]] = {}
    for run in source.runs:
        for log in run.metrics():
            for name, value in log.items():
                wanted = name == "loss" or name.startswith("loss/")
                if wanted and isinstance(value, int | float) and isinstance(log.get("step"), int):
                    seeds = terms.setdefault(name, {}).setdefault(run.column, {})
                    seeds.setdefault(run.seed, []).append((log["step"], float(value)))
    looks = style([column.name for column in source.columns], source.reference)
    drawn = []
    for name in sorted(terms, key=lambda term: (term != "loss", term)):
        figure = empty("step", "loss")
        for column, seeds in terms[name].items():
            for trace in _losses(column, seeds, looks[column]):
                figure.add_trace(trace)
        drawn.append(
            Figure(
                "training",
                "Total loss" if name == "loss" else f"Term: {name.removeprefix('loss/')}",
                "As logged while training; the thick line is the mean over seeds."
                if name == "loss"
                else "What the term adds with its weight; the thick line is the mean over seeds.",
                figure,
            )
        )
    return drawn


def _losses(
    column: str, seeds: dict[int, list[tuple[int, float]]], look: dict[str, Any]
) -> list[go.Scatter]:
    stroke = {"color": look["color"], "dash": look["dash"]}
    traces = []
    if len(seeds) > 1:
        traces = [
            go.Scatter(
                x=[step for step, _ in points],
                y=[value for _, value in points],
                mode="lines",
                line={**stroke, "width": 1},
                opacity=0.3,
                legendgroup=plain(column),
                showlegend=False,
                hoverinfo="skip",
            )
            for points in seeds.values()
        ]
    # Only steps that every seed logged: a mean over fewer would jump where one run ended earlier.
    by_seed = [dict(points) for points in seeds.values()]
    steps = sorted(set(by_seed[0]).intersection(*by_seed[1:]))
    traces.append(
        go.Scatter(
            name=plain(column),
            x=steps,
            y=[mean(values[step] for values in by_seed) for step in steps],
            mode="lines+markers" if len(steps) < 2 else "lines",
            line={**stroke, "width": 2.5},
            legendgroup=plain(column),
            hovertemplate=(
                f"<b>{plain(column)}</b>, {plural(len(seeds), 'seed')}<br>step %{{x}}<br>"
                "%{y:.4g}<extra></extra>"
            ),
        )
    )
    return traces


def cost(source: Source) -> Figure | None:
    """Draw what a training step costs over the reference's, None where nothing was measured.

    Args:
        source: The folder; ``cost`` of its ``study.json`` is read.
    """
    known = [
        (column.name, column.cost.over_reference, column.cost.step_seconds)
        for column in source.columns
        if column.cost is not None and column.cost.over_reference is not None
    ]
    if not known:
        return None
    looks = style([column.name for column in source.columns], source.reference)
    figure = empty("step time over the reference's", "", showlegend=False)
    figure.update_layout(height=110 + 38 * len(known))
    figure.update_xaxes(rangemode="tozero")
    figure.update_yaxes(autorange="reversed", type="category")
    figure.add_trace(
        go.Bar(
            orientation="h",
            y=[plain(name) for name, _, _ in known],
            x=[ratio for _, ratio, _ in known],
            marker={"color": [looks[name]["color"] for name, _, _ in known]},
            text=[f"{ratio:.2f} \u00d7" for _, ratio, _ in known],
            textposition="auto",
            customdata=[
                "" if seconds is None else f"{seconds:.4g} s a step" for *_, seconds in known
            ],
            hovertemplate="<b>%{y}</b><br>%{text}<br>%{customdata}<extra></extra>",
        )
    )
    return Figure(
        "cost",
        "Cost of a step",
        f"Median time of an optimiser step over that of {source.reference}.",
        figure,
    )


def benefit(source: Source, comparison: Comparison) -> Figure | None:
    """Draw the average relative improvement over the cost of a step, None without either.

    Args:
        source: The folder; ``cost`` of its ``study.json`` is read.
        comparison: Its scores.
    """
    rows = [row for row in comparison.rows if row.key.perspective == "summary" and not row.key.set]
    costs = {
        column.name: column.cost.over_reference
        for column in source.columns
        if column.cost is not None and column.cost.over_reference is not None
    }
    looks = style(comparison.columns, comparison.reference)
    figure = empty("step time over the reference's", "average relative improvement (%)")
    figure.update_layout(height=400)
    lines = []
    for name in comparison.columns if rows else ():
        cell = rows[0].cells[name]
        if cell.mean is None or name not in costs:
            continue
        difference = cell.difference
        low = high = None
        if difference is not None and difference.low is not None and difference.high is not None:
            # The difference is over common seeds, and may have another mean than the column.
            low, high = cell.mean + difference.low, cell.mean + difference.high
            low, high = low - (difference.mean or 0.0), high - (difference.mean or 0.0)
        said = ABSENT if low is None or high is None else f"[{low:+.2f}, {high:+.2f}]"
        count = plural(len(cell.seeds), "seed")
        up, down = (0.0 if end is None else abs(end - cell.mean) for end in (high, low))
        look = looks[name]
        figure.add_trace(
            go.Scatter(
                name=plain(name),
                legendgroup=plain(name),
                x=[costs[name]],
                y=[cell.mean],
                mode="markers",
                marker={"color": look["color"], "symbol": look["symbol"], "size": 11},
                error_y={
                    "type": "data",
                    "symmetric": False,
                    "array": [up],
                    "arrayminus": [down],
                    "thickness": 1,
                    "width": 4,
                },
                hovertemplate=(
                    f"<b>{plain(name)}</b><br>%{{x:.2f}} \u00d7 a step<br>%{{y:+.2f}} % {said}<br>"
                    f"n = {count}<extra></extra>"
                ),
            )
        )
        ratio = costs[name]
        lines.append((name, f"{ratio:.2f} \u00d7", f"{cell.mean:+.2f} %", said, count))
    if len(lines) < 2:
        return None
    return Figure(
        "cost",
        "Cost against benefit",
        "What a column gains over what its step costs; further to the upper left is better. Lines "
        f"are 95 % paired intervals against {comparison.reference}, from three seeds on.",
        figure,
        Numbers(("column", "step", "improvement", "95 % interval", "n"), tuple(lines)),
    )
