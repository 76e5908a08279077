"""What each case chooses on its dev rows, and what the choice is worth on rows it did not see."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from temper.study.reproduction.lines import Line
from temper.study.reproduction.specification import Specification


def chosen(specification: Specification, lines: Sequence[Line]) -> list[dict[str, str]]:
    """Let every case choose a column.

    Args:
        specification: The table, whose ``choice`` says among which columns and by which score.
        lines: Its lines.

    Returns:
        A line a case, texts by heading: the column with the best mean of the deciding score, and
        what the other score says of it. None where a case lacks a column or a score: the best of
        some would be no choice among all.
    """
    choice = specification.choice
    if choice is None:
        return []
    reference = specification.column[0].name
    labels = {score.name: score.label for score in specification.score}
    found = []
    for case in specification.case:
        own = {(line.score, line.column): line for line in lines if line.case == case.name}
        deciding = [own.get((choice.by, column)) for column in choice.among]
        if any(line is None or not line.seeds for line in deciding):
            continue
        complete = [line for line in deciding if line is not None]
        sign = -1 if complete[0].higher_is_better is False else 1
        # Of equal ones the first.
        best = max(complete, key=lambda line: sign * fmean(line.seeds.values()))
        told, base = own.get((choice.told, best.column)), own.get((choice.told, reference))
        if told is None or base is None or told.to_reference is None:
            continue
        found.append(
            {
                "case": case.name,
                f"chosen by {labels[choice.by]}": best.column,
                labels[choice.by]: best.ours,
                labels[choice.told]: told.ours,
                f"that of {reference}": base.ours,
                f"margin over {reference}": told.to_reference.text(told.unit),
                "verdict": told.verdict,
            }
        )
    return found
