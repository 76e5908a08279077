"""The paper's number beside ours: lines made from finished studies.

Nothing here is written by hand: a line is a score of a study (`temper.report.comparison`), the
printed number of the specification, and the difference of the two over the seeds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from reproduction.choice import choose_columns
from reproduction.facts import case_facts, changes
from reproduction.lines import Line, corrected, difference, mean_lines
from reproduction.run import finished_cases, read_record
from reproduction.specification import (
    AVERAGE,
    MEAN,
    METRIC,
    PAPERS,
    SCALES,
    Printed,
    Score,
    Specification,
)
from temper.display.cells import Comparison, Row
from temper.errors import CheckpointError
from temper.report.table import compare


@dataclass(frozen=True)
class ReproductionTable:
    """A table of a paper with our numbers.

    Args:
        name: Name of the specification.
        title: What it shows, and which place of which paper it stands for.
        reference: Method that the others are compared with.
        lines: Every score of every method in every finished case.
        not_run: Why cases have no lines, by name.
        differs: What differs from the paper, a sentence each.
        facts: What was run, a line a case: a heading each.
        chosen: What each case chose, a line a case: a heading each.
        published: Whether a paper prints such a table; else the paper's columns are left out.
    """

    name: str
    title: str
    reference: str
    lines: tuple[Line, ...]
    not_run: dict[str, str] = field(default_factory=dict)
    differs: tuple[str, ...] = ()
    facts: tuple[dict[str, str], ...] = ()
    chosen: tuple[dict[str, str], ...] = ()
    published: bool = True

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader has to know, a sentence each."""
        return (*self.differs, *self.not_run_notes)

    @property
    def not_run_notes(self) -> tuple[str, ...]:
        """Why cases have no lines, a sentence each."""
        return tuple(f"Not run: {case}: {reason}" for case, reason in self.not_run.items())

    def to_json(self) -> dict[str, Any]:
        """Return everything as JSON-ready data."""
        lines = [{**asdict(line), "verdict": line.verdict} for line in self.lines]
        for line in lines:
            del line["unit"]
        return {
            "name": self.name,
            "title": self.title,
            "reference": self.reference,
            "lines": lines,
            "not_run": self.not_run,
            "differs": list(self.differs),
            "facts": list(self.facts),
            "chosen": list(self.chosen),
        }


def reproduction_table(specification: Specification, folder: Path) -> ReproductionTable:
    """Set the paper's numbers beside those of the studies in a folder.

    Args:
        specification: The table or figure.
        folder: Folder with a study's folder for each case, weights or not.

    Returns:
        The table of what is finished; the rest is named.

    Raises:
        CheckpointError: The folder holds no case, or a file in it is damaged.
    """
    record = read_record(folder) if folder.is_dir() else None
    if record is not None and record.family != specification.family:
        raise CheckpointError(
            f"{folder} holds {record.family}, and {specification.name} is made from "
            f"{specification.family}. Give the folder of another reproduction."
        )
    sources, unread = finished_cases(specification, folder)
    not_run = {**({} if record is None else record.not_run), **unread}
    if not sources and not not_run:
        raise CheckpointError(
            f"Expected a folder with a study for a case of {specification.name} "
            f"({', '.join(case.name for case in specification.case)}), and {folder} "
            f"{'is a file' if folder.is_file() else 'holds none'}. Give the folder that "
            f"`temper reproduce {specification.name}` wrote, or run that first."
        )
    cases = [(case, sources[case.name]) for case in specification.case if case.name in sources]
    lines = [
        line
        for case, source in cases
        for compared in [compare(source)]
        for score in specification.score
        for line in _lines(specification, case.name, compared, score)
    ]
    choices = tuple(choose_columns(specification, lines))
    for score in specification.score:
        if score.average:
            lines += _averages(specification, score, lines, list(sources))
    missing = {
        f"{case}, {run.rstrip('.')}": "not finished"
        for case, source in sources.items()
        for run in source.missing
    }
    scale = next((each for each in SCALES if record is not None and each == record.scale), None)
    differs = changes(specification, scale, cases) + _unshown(specification, lines)
    if missing:
        differs.append(
            "Runs are missing: a difference is over the seeds that both methods have, and a mean "
            "of cases over those that all have."
        )
    return ReproductionTable(
        name=specification.name,
        title=f"{PAPERS[specification.paper]}, {specification.place}: {specification.title}",
        reference=specification.reference,
        lines=tuple(corrected(lines)),
        not_run={**not_run, **missing},
        differs=tuple(differs),
        chosen=choices,
        published=specification.published,
        facts=tuple(case_facts(case, source) for case, source in cases),
    )


def _lines(
    specification: Specification, case: str, comparison: Comparison, score: Score
) -> Iterable[Line]:
    rows = _select(comparison, score)
    reference = specification.reference
    for row in rows:
        label = score.label if len(rows) == 1 else row.label
        base = row.cells[reference].seeds if reference in row.cells else {}
        for column in specification.columns():
            if column.name not in row.cells:
                continue
            seeds = row.cells[column.name].seeds
            line = Line(
                case=case,
                score=score.name,
                label=label,
                column=column.name,
                seeds=seeds,
                higher_is_better=row.higher_is_better,
                unit=row.unit,
                to_reference=None if column.name == reference else difference(seeds, base),
            )
            named = "" if len(rows) == 1 else label
            yield _beside(line, specification.number(case, column.name, score.name, named), score)


def _unshown(specification: Specification, lines: Sequence[Line]) -> list[str]:
    """Say which printed numbers stand beside no line of a case that was run."""
    cases = {case.name for case in specification.case}
    labels: dict[tuple[str, ...], set[str]] = {}
    for line in lines:
        case = line.case if line.case in cases else AVERAGE
        if case != AVERAGE or line.printed:
            labels.setdefault((line.score, line.column, case), set()).add(line.label)
    notes = []
    for number in specification.printed:
        *place, named = number.place
        known = labels.get(tuple(place), set())
        if number.case == AVERAGE and not known:
            notes.append(
                f"The printed average of {number.column}, {number.score} is over all of "
                f"{len(cases)} cases, and stands beside none of fewer."
            )
        elif number.case != AVERAGE and (
            named not in known if len(known) > 1 else bool(named and known)
        ):
            which = f"line {named!r}" if named else "no line"
            notes.append(
                f"The printed number of {number.case}, {number.column}, {number.score} names "
                f"{which}, and stands beside none. Known: {', '.join(sorted(known))}."
            )
    return notes


def _select(comparison: Comparison, score: Score) -> list[Row]:
    """Return the rows that a score stands for."""
    wanted = dict(score.select)
    over_sets = wanted.get("set") == MEAN
    if over_sets:
        del wanted["set"]
    if wanted.get("name") == METRIC:
        wanted["name"] = comparison.metric
    rows = [
        row
        for row in comparison.rows
        if all(getattr(row.key, name) == value for name, value in wanted.items())
    ]
    if not over_sets or len(rows) == 1:
        return rows
    return [row for row in rows if row.key.over_sets]


def _averages(
    specification: Specification, score: Score, lines: Sequence[Line], names: Sequence[str]
) -> list[Line]:
    """Return the mean over the finished cases, for every method that all of them have."""
    if len(names) < 2:
        return []
    made = mean_lines(
        [line for line in lines if line.score == score.name],
        names,
        lambda line: line.case,
        reference=specification.reference,
        case=f"mean of {len(names)} cases",
        label=score.label,
    )
    if len(names) < len(specification.case):
        # The paper's average is over all of them.
        return made
    return [
        _beside(line, specification.number(AVERAGE, line.column, score.name), score)
        for line in made
    ]


def _beside(line: Line, printed: Printed | None, score: Score) -> Line:
    """Set a printed number beside a line, where there is one."""
    if printed is None:
        return line
    paper = dict.fromkeys(line.seeds, float(printed.value) / score.times)
    return replace(line, printed=printed.value, to_paper=difference(line.seeds, paper))
