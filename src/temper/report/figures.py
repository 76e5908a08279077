"""All figures of a report: perspectives draw theirs; summary and training are drawn here."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any

import pandas as pd

from temper.display.cells import Comparison, Row
from temper.display.charts import Mark, bars, heat_map, many_columns, numbers_of
from temper.display.drawing import LIGHT, Figure, empty, plain, style
from temper.display.folders import Source
from temper.display.wording import plural
from temper.functional.units import ABSENT
from temper.report.derived import views
from temper.report.overview import error_of, leading

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
            gap = error_of(row, comparison.reference)
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
            "right of 0 is better, whichever way the score points. Lines are 95 % intervals "
            "where there are seeds enough."
        )
        figure = bars(comparison, marks, "share of the gap to perfect that is closed (%)")
        figure.add_vline(x=0, line={"color": LIGHT[0], "width": 1})
    numbers = numbers_of(marks, "score", "closed (%)", "95 % interval")
    return [Figure("Gap to a perfect score that is closed", caption, figure, numbers)]


def _score_name(row: Row) -> str:
    arrow = "\u2191" if row.higher_is_better else "\u2193"
    return f"{row.group}: {row.label} {arrow}"


def training(source: Source) -> list[Figure]:
    """Draw every loss term over the steps: the mean over seeds, and each seed faintly.

    Args:
        source: The folder; its ``metrics.jsonl`` files are read.
    """
    logged = []
    for run in source.runs:
        place = {"column": run.column, "seed": run.seed}
        for log in run.metrics():
            if not isinstance(log.get("step"), int):
                continue
            for name, value in log.items():
                is_loss = name == "loss" or name.startswith("loss/")
                if is_loss and isinstance(value, int | float):
                    logged.append({**place, "step": log["step"], "term": name, "loss": value})
    if not logged:
        return []
    looks = style([column.name for column in source.columns], source.reference)
    logs = pd.DataFrame(logged).drop_duplicates(["column", "seed", "step", "term"], keep="last")
    drawn = []
    for name in sorted(logs["term"].unique(), key=lambda term: (term != "loss", term)):
        figure = empty("step", "loss")
        for column, log in logs[logs["term"] == name].groupby("column", sort=False):
            seeds = log.pivot(index="step", columns="seed", values="loss")
            _add_losses(figure, str(column), seeds, looks[str(column)])
        title, caption = "Total loss", "As logged while training"
        if name != "loss":
            title = f"Term: {name.removeprefix('loss/')}"
            caption = "What the term adds with its weight"
        drawn.append(Figure(title, f"{caption}; the thick line is the mean over seeds.", figure))
    return drawn


def _add_losses(figure: go.Figure, column: str, seeds: pd.DataFrame, look: dict[str, Any]) -> None:
    """Add the mean over seeds, and each seed faintly where there are several."""
    import plotly.graph_objects as go

    stroke = {"color": look["color"], "dash": look["dash"]}
    for seed in seeds.columns if len(seeds.columns) > 1 else ():
        points = seeds[seed].dropna()
        figure.add_trace(
            go.Scatter(
                x=points.index.tolist(),
                y=points.tolist(),
                mode="lines",
                line={**stroke, "width": 1},
                opacity=0.3,
                legendgroup=plain(column),
                showlegend=False,
                hoverinfo="skip",
            )
        )
    # Only steps that every seed logged: a mean over fewer would jump where one run ended earlier.
    mean = seeds.dropna().mean(axis=1)
    figure.add_trace(
        go.Scatter(
            name=plain(column),
            x=mean.index.tolist(),
            y=mean.tolist(),
            mode="lines+markers" if len(mean) < 2 else "lines",
            line={**stroke, "width": 2.5},
            legendgroup=plain(column),
            hovertemplate=(
                f"<b>{plain(column)}</b>, {plural(len(seeds.columns), 'seed')}<br>step %{{x}}<br>"
                "%{y:.4g}<extra></extra>"
            ),
        )
    )
