"""What each case chooses on its dev rows, and what the choice is worth on rows it did not see."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean

from reproduction.lines import Line, less
from reproduction.specification import Specification


def chosen(specification: Specification, lines: Sequence[Line]) -> list[dict[str, str]]:
    """Let every case choose a method, and what it is compared with.

    Both are the best of their columns by the mean of the deciding score, so that neither side has
    looked at the score that is told.

    Args:
        specification: The table, whose ``choice`` says among which columns and by which score.
        lines: Its lines.

    Returns:
        A line a case, texts by heading. None where a case lacks a column, a score or a seed of
        one: the best of some would be no choice among all. The verdict is that of one difference,
        chosen beforehand, so that nothing is corrected.
    """
    choice = specification.choice
    if choice is None:
        return []
    labels = {score.name: score.label for score in specification.score}
    found = []
    for case in specification.case:
        own = {(line.score, line.column): line for line in lines if line.case == case.name}
        columns = [*choice.among, *choice.against]
        wanted = [own.get((score, name)) for score in (choice.by, choice.told) for name in columns]
        if None in wanted or len({tuple(line.seeds) for line in wanted if line is not None}) != 1:
            continue
        best = _best(own, choice.by, choice.among)
        base = _best(own, choice.by, choice.against)
        told, other = own[choice.told, best], own[choice.told, base]
        margin = less(told.seeds, other.seeds)
        if margin is None:
            continue
        found.append(
            {
                "case": case.name,
                f"chosen by {labels[choice.by]}": f"{best}, {base}",
                labels[choice.by]: f"{own[choice.by, best].ours}, {own[choice.by, base].ours}",
                labels[choice.told]: f"{told.ours}, {other.ours}",
                "margin": margin.text(told.unit),
                "verdict": replace(told, to_reference=margin, corrected=None).verdict,
            }
        )
    return found


def _best(lines: Mapping[tuple[str, str], Line], score: str, columns: Sequence[str]) -> str:
    """Return the column with the best mean, of equal ones the first."""
    sign = -1 if lines[score, columns[0]].higher_is_better is False else 1
    return max(columns, key=lambda name: sign * fmean(lines[score, name].seeds.values()))
