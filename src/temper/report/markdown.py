"""The whole table as Markdown: a line a score, a column a method."""

from __future__ import annotations

from collections.abc import Sequence

from temper.display.cells import Comparison, Row
from temper.display.wording import escaped, pipe_table
from temper.errors import SettingError, unknown

MARKS = {"better": " ▲", "worse": " ▼"}
LEGEND = "▲ better and ▼ worse than {reference} by more than the noise."
NEITHER = " A score without an arrow has no better side, so it is not marked."


def markdown(comparison: Comparison, perspectives: Sequence[str] = ()) -> str:
    """Write the scores of a comparison as a Markdown table.

    Args:
        comparison: All scores.
        perspectives: Those to show, in this order; all where none is named.

    Returns:
        The table, with a line below it on what its marks mean where it has some.

    Raises:
        SettingError: If a perspective has no score here.
    """
    held = list(dict.fromkeys(row.key.perspective for row in comparison.shown))
    for name in perspectives:
        if name not in held:
            raise SettingError(unknown("perspective with scores here", name, held))
    rows = [
        row
        for name in perspectives or held
        for row in comparison.shown
        if row.key.perspective == name
    ]
    table = pipe_table(
        ["score", *(f"`{name}`" for name in comparison.columns)],
        [
            [
                escaped(row.heading()),
                *(row.text(name) + mark_of(row, name) for name in comparison.columns),
            ]
            for row in rows
        ],
    )
    if not any(mark in table for mark in MARKS.values()):
        return table
    neither = NEITHER if any(row.higher_is_better is None for row in rows) else ""
    return f"{table}\n\n{LEGEND.format(reference=f'`{comparison.reference}`')}{neither}"


def mark_of(row: Row, column: str) -> str:
    """Return the mark of a value that is outside the noise of the reference's, else nothing.

    Args:
        row: A score of all columns.
        column: One of them.
    """
    difference = row.cells[column].difference
    return "" if difference is None else MARKS.get(difference.verdict, "")
