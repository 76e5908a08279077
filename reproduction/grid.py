"""A reproduction's table as a page shows it: a line a case, a column a method."""

from __future__ import annotations

from reproduction.lines import Line
from reproduction.table import ReproductionTable
from temper.report.wording import ABSENT, escaped, pipe_table

WIDE = 10
"""Methods beyond which each of them is a line of its own."""
LEGEND = (
    "Mean over seeds \u00b1 standard deviation. **Bold** is better than the first method (or the "
    "one that a table is said to be against), *slanted* is worse: the 95 % t interval of the "
    "difference over seeds does not hold 0, and Holm's correction over the methods of the line "
    "leaves p at .05 or below. (+) and (\u2212) are better and worse by the interval alone; what "
    "has no mark is inside the noise. Where a score has no better side, the marks say higher and "
    "lower."
)
_MARKS = {"better": "**{}**", "higher": "**{}**", "worse": "*{}*", "lower": "*{}*"}
_ALONE = {"better": "{} (+)", "higher": "{} (+)", "worse": "{} (\u2212)", "lower": "{} (\u2212)"}


def grid(table: ReproductionTable) -> str:
    """Lay out our numbers of a table as Markdown.

    Args:
        table: The table.

    Returns:
        Lines of cases and scores under columns of methods; turned round where there are many
        methods.
    """
    methods = list(dict.fromkeys(line.column for line in table.lines))
    places = list(dict.fromkeys((line.case, line.label) for line in table.lines))
    found = {(line.case, line.label, line.column): line for line in table.lines}
    cells = [[_cell(found.get((*place, method))) for method in methods] for place in places]
    # What all lines share needs no column.
    named = [part for part in (0, 1) if len({place[part] for place in places}) > 1]
    titles = [[escaped(place[part]) for part in named] for place in places]
    heads = [("case", "score")[part] for part in named]
    if len(methods) <= WIDE:
        lines = [[*title, *row] for title, row in zip(titles, cells, strict=True)]
        return pipe_table([*heads, *methods], lines)
    across = [
        ", ".join(title) or escaped(place[1]) for title, place in zip(titles, places, strict=True)
    ]
    turned = [[method, *row] for method, row in zip(methods, zip(*cells, strict=True), strict=True)]
    return pipe_table(["method", *across], turned)


def _cell(line: Line | None) -> str:
    if line is None:
        return ABSENT
    word, comma, _ = line.verdict.partition(",")
    return (_ALONE if comma else _MARKS).get(word, "{}").format(line.ours)
