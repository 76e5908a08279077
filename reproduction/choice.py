"""The method that each case chooses on dev rows, and its gain on test rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from reproduction.lines import Line, difference
from reproduction.specification import Specification


@dataclass(frozen=True)
class Chosen:
    """The choice of a case.

    Args:
        case: Its name.
        column: The chosen method.
        row: The choice and its gain, as texts by heading.
    """

    case: str
    column: str
    row: dict[str, str]


def choose_columns(specification: Specification, lines: Sequence[Line]) -> list[Chosen]:
    """Let every case choose a method and its baseline.

    Both are the best of their columns by the mean of the deciding score, so the choice of neither
    side depends on the reported score.

    Args:
        specification: The table, whose ``choice`` says among which columns and by which score.
        lines: Its lines.

    Returns:
        One choice per case, without cases that lack a column, a score or a seed. The verdict is
        that of one difference, chosen beforehand, so it is not corrected.
    """
    choice = specification.choice
    if choice is None:
        return []
    labels = {score.name: score.label for score in specification.score}
    columns = [*choice.among, *choice.against]
    needed = [(score, name) for score in (choice.by, choice.reported) for name in columns]
    chosen = []
    for case in specification.case:
        of_case = {(line.score, line.column): line for line in lines if line.case == case.name}
        if not of_case.keys() >= set(needed):
            continue
        if len({tuple(of_case[key].seeds) for key in needed}) > 1:
            continue
        best = _best(of_case, choice.by, choice.among)
        base = _best(of_case, choice.by, choice.against)
        reported, other = of_case[choice.reported, best], of_case[choice.reported, base]
        margin = difference(reported.seeds, other.seeds)
        if margin is None:
            continue
        deciding = f"{of_case[choice.by, best].ours}, {of_case[choice.by, base].ours}"
        row = {
            "case": case.name,
            f"chosen by {labels[choice.by]}": f"{best}, {base}",
            labels[choice.by]: deciding,
            labels[choice.reported]: f"{reported.ours}, {other.ours}",
            "margin": margin.text(reported.unit),
            "verdict": replace(reported, to_reference=margin, corrected=None).verdict,
        }
        chosen.append(Chosen(case.name, best, row))
    return chosen


def _best(lines: Mapping[tuple[str, str], Line], score: str, columns: Sequence[str]) -> str:
    """Return the column with the best mean; the first if several are equal."""
    sign = -1 if lines[score, columns[0]].higher_is_better is False else 1
    return max(columns, key=lambda name: sign * fmean(lines[score, name].seeds.values()))
