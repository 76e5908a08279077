"""How the table of a reproduction is laid out: rows of texts by heading, and Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from reproduction.lines import ABSENT as NOT_AVAILABLE
from reproduction.lines import Interval, Line
from reproduction.specification import Specification
from reproduction.table import ReproductionTable
from temper.display.wording import escaped, pipe_table
from temper.functional.units import ABSENT

Rows = Sequence[Mapping[str, str]]
"""Lines of texts by heading, all of the same headings."""

WIDE = 10
"""Number of methods above which each method is a row."""
LEGEND = (
    "Mean over seeds \u00b1 standard deviation. **Bold**: significantly better than the baseline "
    "({baseline}). *Italic*: significantly worse. *Significant*: the 95% t interval of the "
    "difference over seeds does not contain 0, and p is at most 0.05 after Holm's correction over "
    "the methods. (+) and (\u2212): better and worse by the interval, but not after the "
    "correction. No mark: not significant. If a score has no direction, the marks mean higher and "
    "lower."
)
_MARKS = {"better": "**{}**", "higher": "**{}**", "worse": "*{}*", "lower": "*{}*"}
_ALONE = {"better": "{} (+)", "higher": "{} (+)", "worse": "{} (\u2212)", "lower": "{} (\u2212)"}


def sections(table: ReproductionTable) -> dict[str, Rows]:
    """Return the parts of a table by title: differences, chosen settings and runs."""
    titles = {
        "All differences": [_cells(line, table) for line in table.lines],
        "Chosen settings": table.chosen,
        "Runs": table.facts,
    }
    return {title: rows for title, rows in titles.items() if rows}


def markdown(table: ReproductionTable) -> str:
    """Write a table as Markdown: first the grid of means, then all details.

    Args:
        table: The table.
    """
    parts = [f"## {table.title}", grid(table), LEGEND.format(baseline=f"`{table.reference}`")]
    for title, rows in sections(table).items():
        parts.append(f"### {title}\n\n{rows_in_markdown(rows)}")
    if table.notes:
        parts.append("### Notes\n\n" + "\n".join(f"- {escaped(note)}" for note in table.notes))
    return "\n\n".join(parts) + "\n"


def rows_in_markdown(rows: Rows) -> str:
    """Write lines of texts by heading as a Markdown table."""
    heads = list(rows[0])
    return pipe_table(heads, [[escaped(row[head]) for head in heads] for row in rows])


def grid(table: ReproductionTable) -> str:
    """Lay out our numbers of a table as Markdown.

    Args:
        table: The table.

    Returns:
        Rows of cases and scores, columns of methods; transposed if there are many methods.
    """
    methods = list(dict.fromkeys(line.column for line in table.lines))
    keys = list(dict.fromkeys((line.case, line.label) for line in table.lines))
    lines = {(line.case, line.label, line.column): line for line in table.lines}
    cells = [[_marked(lines.get((*key, method))) for method in methods] for key in keys]
    # A case or score that all lines share needs no column.
    named = [part for part in (0, 1) if len({key[part] for key in keys}) > 1]
    titles = [[escaped(key[part]) for part in named] for key in keys]
    heads = [("case", "score")[part] for part in named]
    if len(methods) <= WIDE:
        rows: Iterable[Sequence[str]] = map(list.__add__, titles, cells)
        return pipe_table([*heads, *methods], rows)
    across = [", ".join(title) or escaped(key[1]) for title, key in zip(titles, keys, strict=True)]
    turned = [[method, *row] for method, row in zip(methods, zip(*cells, strict=True), strict=True)]
    if table.costs:
        across.insert(0, "cost")
        for row in turned:
            row.insert(1, f"{table.costs[row[0]]:.2f}" if row[0] in table.costs else ABSENT)
    return pipe_table(["method", *across], turned)


def printed_rows(specification: Specification) -> list[dict[str, str]]:
    """Return the printed numbers of a paper's table: a row per model and method."""
    names = {each.name: each.label for each in specification.model}
    rows: dict[tuple[str, str], dict[str, str]] = {}
    tasks = dict.fromkeys(number.task for number in specification.printed)
    for number in specification.printed:
        row = rows.setdefault(
            (number.model, number.column),
            {
                "model": names.get(number.model, number.model),
                "method": number.column,
                **dict.fromkeys(tasks, ABSENT),
            },
        )
        row[number.task] = number.value
    return list(rows.values())


def _cells(line: Line, table: ReproductionTable) -> dict[str, str]:
    """Return the texts of a line, without the paper's if there is no paper."""

    def text(interval: Interval | None) -> str:
        return "" if interval is None else interval.text(line.unit)

    gain = "" if line.printed_gain is None else line.unit.text(line.printed_gain, signed=True)
    against = table.reference
    cells = {
        "case": line.case,
        "score": line.label,
        "method": line.column,
        "paper": line.printed or NOT_AVAILABLE,
        "ours": line.ours,
        "ours \u2212 paper": text(line.to_paper),
        f"paper \u2212 {against}": gain,
        f"ours \u2212 {against}": text(line.to_reference),
        "gain: ours \u2212 paper": text(line.to_printed_gain),
        "verdict": line.verdict,
    }
    papers = ("paper", "ours \u2212 paper", f"paper \u2212 {against}", "gain: ours \u2212 paper")
    left_out = () if any(each.printed for each in table.lines) else papers
    return {head: cell for head, cell in cells.items() if head not in left_out}


def _marked(line: Line | None) -> str:
    if line is None:
        return ABSENT
    word, comma, _ = line.verdict.partition(",")
    return (_ALONE if comma else _MARKS).get(word, "{}").format(line.ours)
