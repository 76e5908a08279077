"""Convert a comparison to the strings of the page's template, which escapes them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup, escape

from temper.display.cells import NAMED, NOT_SIGNIFICANT, WITHIN, Comparison, Difference, Row
from temper.display.folders import Source
from temper.display.records import RunRecord
from temper.display.wording import escaped, pipe_table, plural
from temper.functional.effects import LEVEL
from temper.functional.scores import SCORES
from temper.functional.units import ABSENT
from temper.report.derived import AFTER, ALL_IN, SUMMARY, view_of, views

MARKS = {
    "better": "\u25b2",
    "worse": "\u25bc",
    "higher": "+",
    "lower": "\u2212",
    **dict.fromkeys((NOT_SIGNIFICANT, *WITHIN), "\u2248"),
}
LEGEND = "▲ significantly better and ▼ worse than {reference} (95% CI)."


def templates() -> Environment:
    """Return the template environment, which escapes every string in HTML."""
    environment = Environment(
        loader=PackageLoader("temper.report", "assets"),
        autoescape=select_autoescape(),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"md": escaped, "bullets": bullets, "table": table}
    # Names are in backticks; the text is escaped before they become code elements.
    environment.filters["code"] = lambda text: Markup(
        re.sub(r"`([^`]*)`", r"<code>\1</code>", str(escape(text)))
    )
    return environment


def bullets(sentences: Iterable[str]) -> str:
    return "\n".join(f"- {escaped(sentence)}" for sentence in sentences)


def table(lines: Iterable[Sequence[str]], header: Sequence[str]) -> str:
    return pipe_table(header, [[escaped(text) for text in line] for line in lines])


@dataclass(frozen=True)
class Opening:
    """The top of a page in place of its headline, and of the next steps of the error analysis.

    Args:
        title: At most eight words.
        points: Texts that begin with their subject and a colon. Names in backticks become code.
        header, lines: A table below the points.
    """

    title: str
    points: Sequence[str]
    header: Sequence[str]
    lines: Sequence[Sequence[str]]


@dataclass(frozen=True)
class TableCell:
    """One cell of the comparison table: a value, or a difference with a verdict.

    The text ``below`` is the interval.
    """

    main: str
    spread: str = ""
    below: str = ""
    decimals: int = 0
    verdict: str = ""
    mark: str = ""
    detail: str = ""
    order: float | None = None


def groups(comparison: Comparison) -> list[tuple[str, list[tuple[Row, list[TableCell]]]]]:
    result: dict[str, list[tuple[Row, list[TableCell]]]] = {}
    for row in comparison.shown:
        cells = []
        for name, cell in row.cells.items():
            spread = cell.standard_deviation
            value = TableCell(
                main=row.unit.text(cell.mean),
                spread="" if spread is None else f"\u00b1 {row.unit.text(spread)}",
                below=row.interval_text(name),
                decimals=0 if cell.mean is None else row.unit.decimals,
                detail=_value_detail(row, name),
                order=cell.mean,
            )
            cells.append(value)
            if cell.difference is not None:
                cells.append(_difference(row, name, cell.difference))
        result.setdefault(row.group, []).append((row, cells))
    return list(result.items())


def mark_of(row: Row, column: str) -> str:
    """Return a mark if a value differs significantly from the reference's; else empty."""
    difference = row.cells[column].difference
    verdict = None if difference is None else difference.verdict
    return f" {MARKS[verdict]}" if verdict in ("better", "worse") else ""


def _value_detail(row: Row, column: str) -> str:
    """Return the tooltip of a value: n, standard deviation or interval, and run of each seed."""
    cell, unit = row.cells[column], row.unit
    what = view_of(row.key.perspective).counts
    if not cell.seeds:
        return " ".join([f"{column}: no value.", *cell.reasons])
    counts = " or ".join(str(count) for count in cell.examples)
    examples = f"{counts} {what}" if counts else f"number of {what} not recorded"
    parts = [f"{column}: {row.value_text(column)}"]
    parts.append(f"n = {plural(len(cell.seeds), 'seed')}, {examples}")
    if cell.standard_deviation is not None:
        parts.append(f"standard deviation over seeds {unit.text(cell.standard_deviation)}")
    elif len(cell.standard_errors) == 1:
        (error,) = cell.standard_errors.values()
        parts.append(f"standard error over examples {unit.text(error)}")
    if interval := row.interval_text(column):
        parts.append(f"95% interval over {what} {interval}")
    elif len(cell.seeds) < 2:
        parts.append("no interval was recorded")
    parts += [
        f"seed {seed}: {unit.text(value)} (run {cell.runs[seed]})"
        for seed, value in cell.seeds.items()
    ]
    return "; ".join([*parts, *cell.reasons])


def _difference(row: Row, column: str, difference: Difference) -> TableCell:
    unit = row.unit
    sign = -1.0 if row.higher_is_better is False else 1.0
    main, interval = row.difference_text(column)
    parts = [f"difference {unit.with_sign(main)}"]
    parts.append(f"n = {plural(len(difference.seeds), 'common seed')}")
    if interval:
        kind = "interval over seeds and rows"
        if difference.examples is not None:
            kind = f"paired interval over {difference.examples} examples"
        elif difference.row_variance is None:
            kind = "interval over seeds, on these rows"
        parts.append(f"95% {kind} {interval}")
        if difference.freedom is not None:
            parts.append(f"{difference.freedom:.1f} degrees of freedom")
        parts.append(f"p = {_probability(difference.p)}")
        parts.append(f"after Holm {_probability(difference.holm_p)}")
    else:
        parts.append(f"no interval and no verdict: {difference.why or difference.verdict}")
    if outlook := row.outlook(column):
        parts.append(outlook)
    if difference.verdict in WITHIN:
        parts.append(f"within a margin of {unit.text(difference.margin)}")
    parts += [
        f"seed {seed}: {unit.text(value, signed=True)}" for seed, value in difference.seeds.items()
    ]
    verdict = difference.said
    if verdict in ("better", "worse", "higher", "lower") and (difference.holm_p or 0.0) > LEVEL:
        parts.append("the 95% CI excludes 0, but not after Holm's correction")
        verdict += ", not significant after Holm"
    return TableCell(
        main=main,
        below=interval,
        decimals=0 if difference.mean is None else unit.decimals,
        verdict=verdict,
        mark=MARKS.get(difference.verdict, "?"),
        detail="; ".join([f"{difference.verdict}: {parts[0]}", *parts[1:]]),
        # Sorting by a difference puts the best first for scores of either direction.
        order=None if difference.mean is None else sign * difference.mean * unit.scale,
    )


def _probability(value: float | None) -> str:
    if value is None:
        return ABSENT
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def flatten(settings: dict[str, Any], prefix: str = "") -> dict[str, str]:
    """Return nested settings as dotted name -> JSON value.

    Example:
        >>> flatten({"method": {"name": "uegr", "epsilon": 0.5}})
        {'method.name': 'uegr', 'method.epsilon': '0.5'}
    """
    flat = {}
    for name, value in settings.items():
        if isinstance(value, dict) and value:
            flat.update(flatten(value, f"{prefix}{name}."))
        else:
            shown = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            flat[prefix + name] = shown
    return flat


@dataclass(frozen=True)
class Fact:
    """One line of the table of settings or versions: method -> value, and whether values differ."""

    name: str
    values: tuple[str, ...]
    differs: bool


def facts(source: Source) -> dict[str, list[Fact]]:
    """Return heading -> settings, versions or data of all methods; empty headings are left out.

    Facts that differ come first. If runs of a method have different values, all are shown.
    """
    readers: dict[str, Callable[[RunRecord], dict[str, str]]] = {
        "Settings": lambda record: flatten(record.settings),
        "Versions": lambda record: (
            record.versions | ({"device": record.device} if record.device else {})
        ),
        "Data": lambda record: flatten(record.data),
    }
    result = {}
    for heading, read in readers.items():
        records = [
            [read(run.record) for run in column.runs.values() if run.record is not None]
            for column in source.columns
        ]
        lines = []
        for name in dict.fromkeys(chain.from_iterable(chain.from_iterable(records))):
            values = (dict.fromkeys(run[name] for run in runs if name in run) for runs in records)
            shown = tuple(" | ".join(item) or ABSENT for item in values)
            lines.append(Fact(name, shown, len(set(shown)) > 1))
        if lines:
            result[heading] = sorted(lines, key=lambda fact: not fact.differs)
    return result


def costs(source: Source) -> list[tuple[str, str, str]]:
    """Return (method, seconds per step, ratio to the reference) of each measured method."""
    return [
        (
            column.name,
            ABSENT if column.cost.step_seconds is None else f"{column.cost.step_seconds:.4g}",
            ABSENT if column.cost.over_reference is None else f"{column.cost.over_reference:.2f}",
        )
        for column in source.columns
        if column.cost is not None
    ]


def runs(source: Source) -> list[tuple[str, ...]]:
    """Return name, method, seed, steps, seconds of training and of a step, and key of each run."""
    times = ("steps", "train_seconds", "step_seconds_median")
    return [
        (
            run.name,
            run.column,
            str(run.seed),
            *(_time(run.record.times.get(name)) for name in times),
            run.record.key,
        )
        for run in source.runs
        if run.record is not None
    ]


def _time(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else ABSENT if value is None else str(value)


def about(source: Source, comparison: Comparison) -> list[tuple[str, str]]:
    messages = [("model", source.model)]
    if data := source.data.get("source"):
        messages.append(("data", data))
    if source.kind != "evaluation":
        messages.append(("seeds", ", ".join(str(seed) for seed in source.seeds)))
    if source.kind == "study" and source.missing:
        done = len(source.runs)
        messages.append(("runs", f"{done} of {done + len(source.missing)} finished and measured"))
    messages += [("baseline", source.reference)] if source.reference is not None else []
    counted = _sizes(comparison.rows)
    if others := [name for name in source.sets if name not in counted]:
        messages.append(("other sets" if counted else "sets other than dev", ", ".join(others)))
    sizes = ", ".join(f"{name} {count}" for name, count in counted.items())
    return [*messages, ("examples", sizes)] if sizes else messages


def _sizes(rows: Iterable[Row]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for row in rows:
        if not view_of(row.key.perspective).averaged or not row.key.set:
            continue
        for cell in row.cells.values():
            if len(cell.examples) == 1 and not row.key.over_sets:
                sizes.setdefault(row.key.set, cell.examples[0])
    return sizes


SEEDS = 3
"""Minimum number of seeds to mark the best mean."""
_IMPROVEMENTS = {
    SUMMARY.name: "Relative improvement",
    AFTER.name: "Relative improvement, with post-hoc methods",
    ALL_IN.name: "Relative improvement with post-hoc methods, over the reference without",
}


@dataclass(frozen=True)
class Overview:
    """The overview table as strings.

    Args:
        lines: One line per method: its name, and a text for each score.
        best: For each score, indices of the lines with the best mean; empty below three seeds.
        differing: For each score, line -> mark of a significant difference from the reference.
    """

    header: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]
    best: tuple[frozenset[int], ...]
    differing: tuple[tuple[str, ...], ...] = ()
    reference: str = ""

    @property
    def turned(self) -> bool:
        """Whether to show one line per score instead of per method, if there are few methods."""
        return len(self.lines) <= NAMED

    def markdown(self) -> str:
        """Return the table in Markdown, with the best mean of each score in bold.

        If it is `turned`, significant differences are marked too.
        """
        names = [f"`{texts[0]}`" for texts in self.lines]
        cells = [
            [
                f"**{texts[1 + score]}**" if index in self.best[score] else texts[1 + score]
                for score in range(len(self.best))
            ]
            for index, texts in enumerate(self.lines)
        ]
        if not self.turned:
            return pipe_table(
                self.header, [[n, *cell] for n, cell in zip(names, cells, strict=True)]
            )
        columns = list(zip(cells, self.differing, strict=True))
        rows = [
            [escaped(heading), *(cell[score] + marks[score] for cell, marks in columns)]
            for score, heading in enumerate(self.header[1:])
        ]
        table = pipe_table(["score", *names], rows)
        marked = any(mark for marks in self.differing for mark in marks)
        return f"{table}\n\n{LEGEND.format(reference=f'`{self.reference}`')}" if marked else table


def overview(comparison: Comparison) -> Overview:
    """Return the table with the primary scores of each perspective, and a line per method.

    There is a score for each attack, text attack recipe, kind of token corruption and OOD detector,
    and for calibration before and after scaling. Several sets are shown by their mean, several
    radii by the middle one, layers by the logits or else the last layer.
    """
    rows = [row for view in views().values() for row in leading(comparison, view.name)]
    return Overview(
        header=("method", *(_heading(row) for row in rows)),
        lines=tuple((name, *(row.text(name) for row in rows)) for name in comparison.columns),
        best=tuple(_best(comparison, row) for row in rows),
        differing=tuple(tuple(mark_of(row, name) for row in rows) for name in comparison.columns),
        reference=comparison.reference or "",
    )


def leading(comparison: Comparison, perspective: str) -> list[Row]:
    """Return the primary scores of a perspective; see `overview`."""
    view = view_of(perspective)
    return view.sums_up(comparison.of(perspective, view.lead(comparison.metric)))


def error_of(row: Row, reference: str) -> float | None:
    """Return the distance from the reference's score to a perfect one; None if undefined."""
    facts = SCORES.get(row.key.name)
    start = row.cells[reference].mean
    if facts is None or facts.perfect is None or start is None or row.higher_is_better is None:
        return None
    gap = facts.perfect - start
    return gap if gap not in (0.0, float("inf"), float("-inf")) else None


def _heading(row: Row) -> str:
    label = _IMPROVEMENTS.get(row.key.perspective, row.label)
    if short := view_of(row.key.perspective).short:
        # Other groups have scores of the same name.
        label = f"{short}: {label[:1].lower()}{label[1:]}"
    return row.heading(label)


def _best(comparison: Comparison, row: Row) -> frozenset[int]:
    means = {
        index: mean
        for index, name in enumerate(comparison.columns)
        if (mean := row.cells[name].mean) is not None
    }
    # One or two seeds are not enough, and a value common to all columns is not best.
    seeds = min((len(cell.seeds) for cell in row.cells.values()), default=0)
    if len(set(means.values())) < 2 or seeds < SEEDS or row.higher_is_better is None:
        return frozenset()
    best = max(means.values()) if row.higher_is_better else min(means.values())
    return frozenset(index for index, mean in means.items() if mean == best)
