"""All figures of a report: perspectives draw theirs; summary, training and cost are drawn here."""

from __future__ import annotations

from itertools import product
from statistics import mean
from typing import TYPE_CHECKING, Any

from temper.display.cells import Comparison, Row
from temper.display.charts import Mark, bars, error_bars, heat_map, many_columns, numbers_of
from temper.display.drawing import LIGHT, Figure, Numbers, empty, plain, style
from temper.display.folders import Source
from temper.display.wording import plural
from temper.functional.scores import SCORES
from temper.functional.units import ABSENT
from temper.report.derived import SUMMARY, views
from temper.report.overview import leading

if TYPE_CHECKING:
    import plotly.graph_objects as go


def sections(source: Source, comparison: Comparison) -> list[tuple[str, list[Figure]]]:
    """Draw everything that a folder has data for.

    Args:
        source: The folder.
        comparison: Its scores.

    Returns:
        Headings and their figures in the order of the page; a folder without, say, attacks has no
        figure of them. Perspectives of one heading share a section.

    Raises:
        CheckpointError: Rows or metrics are damaged.
    """
    found = {"Perspectives": gaps_closed(comparison)}
    for view in views():
        drawn = view.figures(source, comparison)
        if drawn:
            found.setdefault(view.heading or view.title, []).extend(drawn)
    found["Training"] = training(source)
    of_cost = [figure for figure in (cost(source), benefit(source, comparison)) if figure]
    found["Cost"] = [*found.pop("Cost", []), *of_cost]
    return [(heading, drawn) for heading, drawn in found.items() if drawn]


def figures(source: Source, comparison: Comparison) -> list[Figure]:
    """Draw all figures; see `sections`."""
    return [figure for _, drawn in sections(source, comparison) for figure in drawn]


def gaps_closed(comparison: Comparison) -> list[Figure]:
    """Draw how far each column closes the reference's gap to a perfect score, by perspective.

    Each bar is ``(s - s_reference) / (s_perfect - s_reference)`` of the perspective's leading score
    (`temper.report.overview`), as the average relative improvement is made of: to the right is
    better whichever way the score points. One column alone has no reference and no such figure.

    Args:
        comparison: All scores.
    """
    if comparison.reference is None:
        return []
    found = []
    for view in [view for view in views() if view.judged]:
        for row in leading(comparison, view.name):
            gap = _gap(row, comparison.reference)
            if gap is not None:
                found.append((row, gap))
    others = [name for name in comparison.columns if name != comparison.reference]
    if not found or not others:
        return []
    marks = {}
    for name, (row, gap) in product(others, found):
        difference = row.cells[name].difference
        if difference is None or difference.mean is None:
            continue
        reach, said = None, ABSENT
        if difference.low is not None and difference.high is not None:
            reach = sorted((100 * difference.low / gap, 100 * difference.high / gap))
            said = f"[{reach[0]:+.2f}, {reach[1]:+.2f}]"
        value = 100 * difference.mean / gap
        seeds = plural(len(difference.seeds), "common seed")
        marks[name, _score_name(row)] = Mark(value, f"{value:+.2f}", said, seeds, reach)
    caption = (
        f"Of the leading scores of each perspective, the part of {comparison.reference}'s distance "
        "to a perfect score that a column closes, in per cent; "
    )
    if many_columns(comparison):
        caption += "above 0 (green) is better, whichever way the score points."
        labels = [_score_name(row) for row, _ in found]
        figure = heat_map(others, labels, marks, limits=(-100.0, 100.0))
    else:
        caption += (
            "right of 0 is better, whichever way the score points. Lines are 95 % paired intervals "
            "where there are seeds enough."
        )
        figure = bars(comparison, marks, "share of the gap to perfect that is closed (%)")
        figure.add_vline(x=0, line={"color": LIGHT[0], "width": 1})
    numbers = numbers_of(marks, "score", "closed (%)", "95 % interval")
    return [Figure("Gap to a perfect score that is closed", caption, figure, numbers)]


def _score_name(row: Row) -> str:
    arrow = "\u2191" if row.higher_is_better else "\u2193"
    return f"{row.group}: {row.label} {arrow}"


def _gap(row: Row, reference: str) -> float | None:
    """Return what lies between the reference and a perfect score, None where that says nothing."""
    facts = SCORES.get(row.key.name)
    start = row.cells[reference].mean
    if facts is None or facts.perfect is None or start is None or row.higher_is_better is None:
        return None
    gap = facts.perfect - start
    return gap if gap not in (0.0, float("inf"), float("-inf")) else None


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
    import plotly.graph_objects as go

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
    costs = _costs(source)
    if not costs:
        return None
    import plotly.graph_objects as go

    looks = style([column.name for column in source.columns], source.reference)
    figure = empty("step time over the reference's", "", showlegend=False)
    figure.update_layout(height=110 + 38 * len(costs))
    figure.update_xaxes(rangemode="tozero")
    figure.update_yaxes(autorange="reversed", type="category")
    figure.add_trace(
        go.Bar(
            orientation="h",
            y=[plain(name) for name in costs],
            x=list(costs.values()),
            marker={"color": [looks[name]["color"] for name in costs]},
            text=[f"{ratio:.2f} \u00d7" for ratio in costs.values()],
            textposition="auto",
            hovertemplate="<b>%{y}</b><br>%{text}<extra></extra>",
        )
    )
    return Figure(
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
    rows = [row for row in comparison.of(SUMMARY.name) if not row.key.set]
    costs = _costs(source)
    import plotly.graph_objects as go

    looks = style(comparison.columns, comparison.reference)
    figure = empty("step time over the reference's", "average relative improvement (%)")
    figure.update_layout(height=400)
    lines = []
    for name in comparison.columns if rows else ():
        cell = rows[0].cells[name]
        if cell.mean is None or name not in costs:
            continue
        difference, reach, said = cell.difference, None, ABSENT
        if difference is not None and difference.low is not None and difference.high is not None:
            # The difference is over common seeds, and may have another mean than the column.
            shift = cell.mean - (difference.mean or 0.0)
            reach = (difference.low + shift, difference.high + shift)
            said = f"[{reach[0]:+.2f}, {reach[1]:+.2f}]"
        count, look = plural(len(cell.seeds), "seed"), looks[name]
        figure.add_trace(
            go.Scatter(
                name=plain(name),
                legendgroup=plain(name),
                x=[costs[name]],
                y=[cell.mean],
                mode="markers",
                marker={"color": look["color"], "symbol": look["symbol"], "size": 11},
                error_y=error_bars([cell.mean], [reach]),
                hovertemplate=(
                    f"<b>{plain(name)}</b><br>%{{x:.2f}} \u00d7 a step<br>%{{y:+.2f}} % {said}<br>"
                    f"n = {count}<extra></extra>"
                ),
            )
        )
        lines.append((name, f"{costs[name]:.2f} \u00d7", f"{cell.mean:+.2f} %", said, count))
    if len(lines) < 2:
        return None
    return Figure(
        "Cost against benefit",
        "What a column gains over what its step costs; further to the upper left is better. Lines "
        f"are 95 % paired intervals against {comparison.reference}, from three seeds on.",
        figure,
        Numbers(("column", "step", "improvement", "95 % interval", "n"), tuple(lines)),
    )


def _costs(source: Source) -> dict[str, float]:
    """Return the ratio of each column's step time to the reference's, where it was measured."""
    return {
        column.name: column.cost.over_reference
        for column in source.columns
        if column.cost is not None and column.cost.over_reference is not None
    }
