"""Reports in Markdown: the whole report, and score tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from temper.display.cells import WITHIN, Comparison, Row, grouped
from temper.display.folders import Source
from temper.display.wording import escaped, folded, pipe_table
from temper.errors import SettingError, unknown
from temper.functional.units import ABSENT
from temper.report import view

NEITHER = " A score without an arrow has no better side, so it is not marked."


def markdown(comparison: Comparison, perspectives: Sequence[str] = ()) -> str:
    """Return the scores of perspectives (default: all) as a Markdown table with a legend.

    Raises:
        SettingError: A perspective has no score in this comparison.
    """
    known = list(dict.fromkeys(row.key.perspective for row in comparison.shown))
    for name in perspectives:
        if name not in known:
            raise SettingError(unknown("perspective with scores in this report", name, known))
    rows = [
        row
        for name in perspectives or known
        for row in comparison.shown
        if row.key.perspective == name
    ]
    table = pipe_table(
        ["score", *(f"`{name}`" for name in comparison.columns)],
        [
            [
                escaped(row.heading()),
                *(row.text(name) + view.mark_of(row, name) for name in comparison.columns),
            ]
            for row in rows
        ],
    )
    if not any(f" {view.MARKS[which]}" in table for which in ("better", "worse")):
        return table
    neither = NEITHER if any(row.higher_is_better is None for row in rows) else ""
    return f"{table}\n\n{view.LEGEND.format(reference=f'`{comparison.reference}`')}{neither}"


def document(source: Source, comparison: Comparison, opening: view.Opening | None = None) -> str:
    """Return the text of ``report.md``; text from data is escaped."""
    template = view.templates().get_template("report.md")
    text = template.render(
        comparison=comparison,
        opening=opening,
        about=view.about(source, comparison),
        tables=score_tables(comparison),
        notices=folded(comparison.notices),
        runs=view.runs(source),
        costs=view.costs(source),
        facts={
            heading: [(fact.name, *fact.values) for fact in facts]
            for heading, facts in view.facts(source).items()
        },
        header=["name", *map(escaped, comparison.columns)],
    )
    return text.rstrip("\n") + "\n"


def score_tables(comparison: Comparison) -> list[str]:
    """Return headings and tables, one per perspective: scores, intervals, differences and n."""
    header = ["score", *(escaped(text) for _, text in comparison.headings), "n"]
    parts: list[str] = []
    for group, rows in grouped(comparison.shown, lambda row: row.group).items():
        parts += [f"### {escaped(group)}", pipe_table(header, map(_line, rows))]
    return parts


def _line(row: Row) -> list[str]:
    line = [escaped(row.heading())]
    for name, cell in row.cells.items():
        line.append(f"{row.text(name)} {row.interval_text(name)}".rstrip())
        if cell.difference is not None:
            worded = cell.difference.why or cell.difference.verdict in WITHIN
            why = f" ({cell.difference.said})" if worded else view.mark_of(row, name)
            line.append(" ".join(row.difference_text(name)).rstrip() + why)
    counts = {count for cell in row.cells.values() for count in cell.examples}
    seeds = {len(cell.seeds) for cell in row.cells.values()}
    line.append(f"{_counts(seeds, 'seed')}, {_counts(counts, 'example')}")
    return line


def _counts(counts: Iterable[int], noun: str) -> str:
    shown = " or ".join(str(count) for count in sorted(counts)) or ABSENT
    return f"{shown} {noun}{'' if shown == '1' else 's'}"
