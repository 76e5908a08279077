"""Bars of scores side by side: perspectives, text attacks, perturbations, groups."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import plotly.graph_objects as go

from temper.functional.scores import SCORES
from temper.report.cells import NAMED, Cell, Comparison, Row
from temper.report.drawing import INK_LIGHT, Figure, Numbers, empty, plain, style
from temper.report.heat import Shade, heat_map
from temper.report.overview import leading
from temper.report.spread import count, doubt, ends, lines_are
from temper.report.wording import ABSENT, GROUPS, Unit, condition, plural, title

# Label, drawn value, ends of its line as stored, and n in words.
Bar = tuple[str, float, Sequence[float] | None, str]
# Column, label and cell, whose mean is known.
Known = tuple[str, str, Cell]

_LINE = 26  # pixels of a bar with the space around it


def perspectives(comparison: Comparison) -> list[Figure]:
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
    for group in GROUPS:
        for row in leading(comparison, group) if group not in ("summary", "rank", "cost") else ():
            gap = _gap(row, comparison.reference)
            if gap is not None:
                found.append((row, gap))
    others = [name for name in comparison.columns if name != comparison.reference]
    if not found or not others:
        return []
    bars: dict[str, list[Bar]] = {name: [] for name in others}
    for name, (row, gap) in product(others, found):
        difference = row.cells[name].difference
        if difference is None or difference.mean is None:
            continue
        low, high = difference.low, difference.high
        reach = None if low is None or high is None else sorted((low / gap, high / gap))
        seeds = plural(len(difference.seeds), "common seed")
        bars[name].append((_name(row), 100 * difference.mean / gap, reach, seeds))
    lines = tuple(
        (name, label, f"{value:+.2f}", _ends(reach), seeds)
        for name in others
        for label, value, reach, seeds in bars[name]
    )
    drawn = Numbers(("column", "score", "closed (%)", "95 % interval", "n"), lines)
    caption = (
        f"Of the leading scores of each perspective, the part of {comparison.reference}'s distance "
        "to a perfect score that a column closes, in per cent; "
    )
    if len(others) > NAMED:
        caption += "above 0 (green) is better, whichever way the score points."
        shades = {
            (name, label): Shade(value, _ends(reach), seeds)
            for name in others
            for label, value, reach, seeds in bars[name]
        }
        figure = heat_map(others, [_name(row) for row, _ in found], shades, reach=100.0)
    else:
        caption += (
            "right of 0 is better, whichever way the score points. Lines are 95 % paired intervals "
            "where there are seeds enough."
        )
        looks = style(comparison.columns, comparison.reference)
        figure = _lying(len(found) * len(others), "share of the gap to perfect that is closed (%)")
        figure.add_vline(x=0, line={"color": looks[comparison.reference]["color"], "width": 1})
        for name in others:
            figure.add_trace(_bars(name, looks[name]["color"], bars[name]))
    return [
        Figure("overview-bars", "Gap to a perfect score that is closed", caption, figure, drawn)
    ]


def text_attacks(comparison: Comparison) -> list[Figure]:
    """Draw how often text attacks succeed and how many words they change, by recipe.

    Args:
        comparison: All scores.
    """
    told = {
        "attack_success": "Share of the rows right when clean that an attack made wrong; left is "
        "better.",
        "changed_words": "Mean share of the words that an attack changed where it succeeded; "
        "right is better.",
        "queries": "Texts that an attack asked about for each row.",
    }
    drawn = []
    for name, caption in told.items():
        rows = _rows(comparison, "text_attack", name)
        drawn += _sets(comparison, rows, "attacks", f"Text attacks: {title(name)}", caption)
    return drawn


def worst_cases(comparison: Comparison) -> list[Figure]:
    """Draw the accuracy under each perturbation, and under all of them.

    Args:
        comparison: All scores.
    """
    rows = _rows(comparison, "worst_case", comparison.metric)
    rows += _rows(comparison, "worst_case", "worst_case_accuracy")
    caption = (
        "The metric under each perturbation that keeps the label, and the share of rows right "
        "under all of them; right is better."
    )
    return _sets(comparison, rows, "attacks", "Worst case", caption)


def groups(comparison: Comparison) -> list[Figure]:
    """Draw the accuracy of every group of a set, and of its worst.

    Args:
        comparison: All scores.
    """
    rows = _rows(comparison, "groups", "accuracy") + _rows(comparison, "groups", "worst_group")
    caption = "Accuracy of every group that the data name, and of the worst; right is better."
    return _sets(comparison, rows, "groups", "Groups", caption)


def detectors(comparison: Comparison) -> list[Figure]:
    """Draw the AUROC of each detector of anomalies, where there are several.

    Args:
        comparison: All scores.
    """
    rows = _rows(comparison, "anomaly", "auroc")
    if len({row.key.condition for row in rows}) < 2:
        return []
    caption = "AUROC of each detector, anomalies positive; right is better, and 50 % is chance."
    return _sets(comparison, rows, "anomaly", "AUROC", caption)


def _rows(comparison: Comparison, perspective: str, name: str) -> list[Row]:
    return [
        row
        for row in comparison.rows
        if (row.key.perspective, row.key.name) == (perspective, name) and not row.key.over_sets
    ]


def _sets(
    comparison: Comparison, rows: Sequence[Row], section: str, heading: str, caption: str
) -> list[Figure]:
    """Draw a figure a set: a bar for each condition and column, of many columns a heat map."""
    drawn = []
    for chosen in dict.fromkeys(row.key.set for row in rows):
        own = [row for row in rows if row.key.set == chosen]
        unit = own[0].unit
        axis = title(own[0].key.name) + (f" ({unit.sign})" if unit.sign else "")
        known = [
            (name, _condition(row), row.cells[name])
            for name in comparison.columns
            for row in own
            if row.cells[name].mean is not None
        ]
        if not known:
            continue
        said = tuple(
            (name, label, unit.text(cell.mean), doubt(cell, unit), count(cell))
            for name, label, cell in known
        )
        many = len(comparison.columns) > NAMED + 1
        told = f"{caption} {axis}, the darker the higher." if many else caption
        if not many:
            told = f"{caption} {lines_are(cell for _, _, cell in known)}"
        draw = _shaded if many else _side_by_side
        figure = draw(comparison, known, unit, axis)
        numbers = Numbers(("column", "condition", axis, "spread or interval", "n"), said)
        drawn.append(Figure(section, f"{heading}, {chosen}", told, figure, numbers))
    return drawn


def _side_by_side(
    comparison: Comparison, known: Sequence[Known], unit: Unit, axis: str
) -> go.Figure:
    looks = style(comparison.columns, comparison.reference)
    labels = {label for _, label, _ in known}
    figure = _lying(len(labels) * len(comparison.columns), axis)
    for name in comparison.columns:
        bars: list[Bar] = [
            (label, (cell.mean or 0.0) * unit.scale, ends(cell), count(cell))
            for column, label, cell in known
            if column == name
        ]
        if bars:
            figure.add_trace(_bars(name, looks[name]["color"], bars, unit=unit))
    return figure


def _shaded(comparison: Comparison, known: Sequence[Known], unit: Unit, axis: str) -> go.Figure:
    shades = {
        (name, label): Shade((cell.mean or 0.0) * unit.scale, doubt(cell, unit), count(cell))
        for name, label, cell in known
    }
    labels = list(dict.fromkeys(label for _, label, _ in known))
    return heat_map(comparison.columns, labels, shades)


def _condition(row: Row) -> str:
    return condition(row.key.perspective, row.key.condition) or row.key.condition


def _name(row: Row) -> str:
    arrow = "\u2191" if row.higher_is_better else "\u2193"
    return f"{row.key.group}: {row.label} {arrow}"


def _gap(row: Row, reference: str) -> float | None:
    """Return what lies between the reference and a perfect score, None where that says nothing."""
    facts = SCORES.get(row.key.name)
    start = row.cells[reference].mean
    if facts is None or facts.perfect is None or start is None or row.higher_is_better is None:
        return None
    gap = facts.perfect - start
    return gap if gap not in (0.0, float("inf"), float("-inf")) else None


def _ends(line: Sequence[float] | None) -> str:
    return ABSENT if line is None else f"[{100 * line[0]:+.2f}, {100 * line[1]:+.2f}]"


def _lying(bars: int, axis: str) -> go.Figure:
    figure = empty(axis, "", barmode="group", bargap=0.25)
    figure.update_layout(
        height=130 + _LINE * max(bars, 2),
        margin={"b": 84},
        legend={"yref": "container", "y": 0, "yanchor": "bottom"},
    )
    # The first on top, as in the table.
    figure.update_yaxes(autorange="reversed", type="category")
    return figure


def _bars(
    name: str,
    colour: str,
    bars: Sequence[Bar],
    *,
    unit: Unit | None = None,
) -> go.Bar:
    """Return a column's bars: label, drawn value, ends of its line as stored, and n in words."""
    scale = 100.0 if unit is None else unit.scale
    tips = [
        (value, value) if line is None else (scale * line[0], scale * line[1])
        for _, value, line, _ in bars
    ]
    said = [
        "no interval" if line is None else f"{low:.2f} to {high:.2f}"
        for (low, high), (_, _, line, _) in zip(tips, bars, strict=True)
    ]
    return go.Bar(
        orientation="h",
        name=plain(name),
        legendgroup=plain(name),
        y=[plain(label) for label, *_ in bars],
        x=[value for _, value, _, _ in bars],
        marker={"color": colour},
        error_x={
            "type": "data",
            # A line of no length would look like an interval of nothing.
            "visible": any(line is not None for _, _, line, _ in bars),
            "symmetric": False,
            "array": [high - value for (_, high), (_, value, _, _) in zip(tips, bars, strict=True)],
            "arrayminus": [
                value - low for (low, _), (_, value, _, _) in zip(tips, bars, strict=True)
            ],
            "color": INK_LIGHT,
            "thickness": 1,
            "width": 3,
        },
        customdata=[[said_here, seen] for said_here, (*_, seen) in zip(said, bars, strict=True)],
        hovertemplate=(
            f"<b>{plain(name)}</b><br>%{{y}}<br>%{{x:.2f}} (%{{customdata[0]}})<br>"
            "n = %{customdata[1]}<extra></extra>"
        ),
    )
