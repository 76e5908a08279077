"""A reproduction's table as a page shows it: a line a case, a column a method."""

from __future__ import annotations

from temper.report.wording import ABSENT, escaped, pipe_table
from temper.study.reproduction.lines import Line
from temper.study.reproduction.table import ReproductionTable

WIDE = 10
"""Methods beyond which each of them is a line of its own."""
LEGEND = (
    "Mean over seeds \u00b1 standard deviation. **Bold** is better than the first method, *slanted*"
    " is worse, by a 95 % t interval of the difference over seeds; what is neither is inside the "
    "noise. Where a score has no better side, both say that the difference is outside of it."
)


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
    mark = {"better": "**", "higher": "**", "worse": "*", "lower": "*"}.get(line.verdict, "")
    return f"{mark}{line.ours}{mark}"
