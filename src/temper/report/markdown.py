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
    about = view.about(source, comparison)
    first = [escaped(comparison.headline)]
    if opening is not None:
        lines = [[escaped(text) for text in line] for line in opening.lines]
        table = pipe_table(opening.header, lines)
        first = [f"**{escaped(opening.title)}**", bullets(opening.points), table]
    parts = [
        f"# {escaped(comparison.title)}",
        "\n".join(f"- {term}: {escaped(value)}" for term, value in about),
        *first,
        "## Scores",
        _legend(comparison),
        *score_tables(comparison),
    ]
    if comparison.missing:
        parts += ["## Runs not included", bullets(comparison.missing)]
    if comparison.notices:
        parts += ["## Notices", bullets(folded(comparison.notices))]
    if runs := view.runs(source):
        header = ["run", "method", "seed", "steps", "seconds", "step", "key"]
        fields = ["run", "column", *header[2:]]
        lines = [[escaped(run[name]) for name in fields] for run in runs]
        parts += ["## Runs", pipe_table(header, lines)]
    if costs := view.costs(source):
        lines = [[escaped(text) for text in line] for line in costs]
        header = ["method", "seconds per step", "ratio to the baseline"]
        parts += ["## Cost of a step", pipe_table(header, lines)]
    header = ["name", *(escaped(name) for name in comparison.columns)]
    for heading, facts in view.facts(source).items():
        lines = [[escaped(text) for text in (fact.name, *fact.values)] for fact in facts]
        parts += [f"## {heading}", pipe_table(header, lines)]
    return "\n\n".join(part for part in parts if part) + "\n"


def score_tables(comparison: Comparison) -> list[str]:
    """Return headings and tables, one per perspective: scores, intervals, differences and n."""
    header = ["score", *(escaped(text) for _, text in comparison.headings), "n"]
    parts = []
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


def bullets(sentences: Iterable[str]) -> str:
    return "\n".join(f"- {escaped(sentence)}" for sentence in sentences)


def _counts(counts: Iterable[int], noun: str) -> str:
    shown = " or ".join(str(count) for count in sorted(counts)) or ABSENT
    return f"{shown} {noun}{'' if shown == '1' else 's'}"


def _legend(comparison: Comparison) -> str:
    if comparison.reference is None:
        return "Each score with its 95% interval over examples."
    legend = (
        "Mean \u00b1 standard deviation over seeds; differences with their 95% interval; \u25b2 "
        f"significantly better and \u25bc worse than {escaped(comparison.reference)}; equivalent, "
        f"non-inferior and non-superior: margin of {comparison.margin:g} points. Each verdict "
        "applies to its own row; the recommendation is corrected for multiple comparisons over all "
        "methods and perspectives."
    )
    return f"{legend} {comparison.by_chance}".rstrip()
