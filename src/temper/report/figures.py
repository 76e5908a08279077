"""The figures of a report: of perspectives, of gains by perspective, and training curves."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, product

import pandas as pd

from temper.display.cells import Comparison, Row
from temper.display.charts import (
    MOST_SERIES,
    Axis,
    Bars,
    Curve,
    Figure,
    HeatMap,
    Lines,
    Mark,
    Point,
    many_columns,
    numbers_of,
    style,
)
from temper.display.folders import Source
from temper.display.views import Heading, View
from temper.display.wording import plural, slug
from temper.functional.units import ABSENT
from temper.report.derived import SUMMARY, views
from temper.report.gains import gain_of, judged_rows
from temper.report.view import error_of, leading


@dataclass(frozen=True)
class Section:
    """A section of the report: perspectives, with their primary scores and figures."""

    heading: str
    views: tuple[View, ...]
    rows: tuple[Row, ...]
    figures: tuple[Figure, ...]

    @property
    def name(self) -> str:
        return slug(self.heading)


def sections(source: Source, comparison: Comparison) -> list[Section]:
    """Return the sections of the report, with all figures for which there is data.

    Sections of `Heading` come first, and may be empty. Each perspective without a heading has a
    separate section after them.
    """
    grouped: dict[str, list[View]] = {heading: [] for heading in Heading}
    for view in views().values():
        grouped.setdefault(view.heading or view.title, []).append(view)
    of_all: dict[str, list[Figure]] = {
        Heading.COMPARISON: gaps_closed(comparison),
        Heading.COST: training(source),
    }
    scored = {row.key.perspective for row in comparison.rows}
    result = []
    for heading, group in grouped.items():
        drawn = [figure for view in group for figure in view.figures(source, comparison)]
        drawn += of_all.get(heading, [])
        drawn = [_with_few_lines(figure, comparison) for figure in drawn]
        measured = tuple(view for view in group if view.name in scored)
        if heading == Heading.COMPARISON and len(comparison.columns) < 3:
            # Two columns are compared on the first screen already.
            continue
        rows = tuple(row for view in measured for row in leading(comparison, view.name))
        result.append(Section(heading, measured, rows, tuple(drawn)))
    return result


def _with_few_lines(figure: Figure, comparison: Comparison) -> Figure:
    """Leave out all lines except those of the reference and of the best other methods."""
    if not isinstance(figure.chart, Lines) or len(comparison.columns) <= MOST_SERIES:
        return figure
    others = [name for name in comparison.columns if name != comparison.reference]
    improvements = {
        name: row.cells[name].mean or 0.0
        for row in leading(comparison, SUMMARY.name)
        for name in others
    }
    others.sort(key=lambda name: -improvements.get(name, 0.0))
    shown = {comparison.reference, *others[: MOST_SERIES - 1], None}
    curves = tuple(curve for curve in figure.chart.curves if curve.column in shown)
    if len(curves) == len(figure.chart.curves):
        return figure
    caption = (
        f"{figure.caption.rstrip()} Only the baseline and the {MOST_SERIES - 1} methods with the "
        "highest average relative improvement are shown."
    )
    return replace(figure, caption=caption, chart=replace(figure.chart, curves=curves))


def figures(source: Source, comparison: Comparison) -> list[Figure]:
    return [figure for section in sections(source, comparison) for figure in section.figures]


def gaps_closed(comparison: Comparison) -> list[Figure]:
    """Draw how much of the reference's distance to a perfect score each method closes.

    There is a bar per method and perspective: ``(s - s_reference) / (s_perfect - s_reference)`` of
    the primary score, as in the average relative improvement. Positive is better for any score.
    """
    others = [name for name in comparison.columns if name != comparison.reference]
    if comparison.reference is None or len(others) < 2:
        return []
    marks = {}
    for row, name in product(chain(*judged_rows(comparison)), others):
        gain = gain_of(comparison, row, name)
        if gain is None or error_of(row, comparison.reference) is None:
            continue
        reach, interval = None, ABSENT
        if gain.low is not None and gain.high is not None:
            reach, interval = (gain.low, gain.high), f"[{gain.low:+.2f}, {gain.high:+.2f}]"
        seeds = plural(len(gain.difference.seeds), "common seed")
        value = f"{gain.fraction:+.2f}"
        arrow = "\u2191" if row.higher_is_better else "\u2193"
        label = f"{row.group}: {row.label} {arrow}"
        marks[name, label] = Mark(gain.fraction, value, interval, seeds, reach)
    if not marks:
        return []
    caption = (
        f"How much of the gap between {comparison.reference} and a perfect score each method "
        "closes, for the primary scores of each perspective; "
    )
    if many_columns(comparison):
        caption += "above 0 (green) is better, whichever way the score points."
        labels = tuple(dict.fromkeys(label for _, label in marks))
        chart: HeatMap | Bars = HeatMap(tuple(others), labels, marks, (-100.0, 100.0))
    else:
        caption += (
            "right of 0 is better, whichever way the score points. Lines are 95% intervals "
            "if there are enough seeds."
        )
        looks = style(comparison.columns, comparison.reference)
        chart = Bars("closed gap to a perfect score (%)", marks, looks)
    numbers = numbers_of(marks, "score", "closed (%)", "95% interval")
    return [Figure("Gap to a perfect score that is closed", caption, chart, numbers)]


def training(source: Source) -> list[Figure]:
    """Draw every logged loss term over the steps: the mean over seeds, and fainter each seed."""
    logged = []
    for run in source.runs:
        run_id = {"column": run.column, "seed": run.seed}
        for log in run.metrics():
            if not isinstance(log.get("step"), int):
                continue
            for name, value in log.items():
                is_loss = name == "loss" or name.startswith("loss/")
                if is_loss and isinstance(value, int | float):
                    logged.append({**run_id, "step": log["step"], "term": name, "loss": value})
    if not logged:
        return []
    looks = style([column.name for column in source.columns], source.reference)
    logs = pd.DataFrame(logged).drop_duplicates(["column", "seed", "step", "term"], keep="last")
    drawn = []
    for name in sorted(logs["term"].unique(), key=lambda term: (term != "loss", term)):
        curves: list[Curve] = []
        for column, log in logs[logs["term"] == name].groupby("column", sort=False):
            seeds, method = log.pivot(index="step", columns="seed", values="loss"), str(column)
            curve = partial(Curve, method, look=looks[method], column=method)
            for seed in seeds if len(seeds.columns) > 1 else ():
                points = _points(seeds[seed].dropna())
                curves.append(curve(points, marked=False, faint=True))
            # Only steps that every seed logged: a mean over fewer would jump at the end of a run.
            means = seeds.dropna().mean(axis=1)
            curves.append(curve(_points(means, method), marked=len(means) < 2))
        title, caption = "Total loss", "As logged while training"
        if name != "loss":
            title = f"Term: {name.removeprefix('loss/')}"
            caption = "The weighted term"
        chart = Lines(
            Axis("step"), Axis("loss"), tuple(sorted(curves, key=lambda one: not one.faint))
        )
        drawn.append(Figure(title, f"{caption}; the thick line is the mean over seeds.", chart))
    return drawn


def _points(losses: pd.Series[float], column: str = "") -> tuple[Point, ...]:
    return tuple(
        Point(float(step), float(loss), f"{column}; step {step}: {loss:.4g}" if column else "")
        for step, loss in losses.items()
    )
