"""Whether methods can be compared on a case: plain training must learn it."""

from __future__ import annotations

from statistics import fmean

from reproduction.lines import Interval
from temper.display.cells import Comparison
from temper.display.folders import Source


def not_learned(comparison: Comparison, source: Source, column: str | None = None) -> str:
    """Return the reason why methods cannot be compared on a case.

    A constant prediction, and a guess, have a macro F1 of at most 1 / number of classes, and an MCC
    or a correlation of 0. A case is not learned if the mean of a column is not significantly above
    that (95% t interval, from three seeds on).

    Args:
        comparison: The case's scores.
        source: Its study.
        column: Which column; None is the reference.

    Returns:
        The reason; empty if the case is learned or has no such score.
    """
    task = next((run.scores.task for run in source.runs if run.scores is not None), None)
    if task is None:
        return ""
    chance = {"macro_f1": 1 / max(2, len(task.labels)), "mcc": 0.0, "pearson": 0.0}
    column = column or str(comparison.reference)
    for row in comparison.rows:
        name = row.key.name
        if row.key.perspective != "task" or name not in chance:
            continue
        cell = row.cells.get(column)
        values = list(cell.seeds.values()) if cell is not None else []
        above = Interval.of([value - chance[name] for value in values])
        if above is not None and (above.mean if above.low is None else above.low) <= 0:
            return (
                f"{row.label} {row.unit.text(fmean(values))} ({column}), not significantly above "
                f"the {row.unit.text(chance[name])} that a constant prediction can reach"
            )
    return ""
