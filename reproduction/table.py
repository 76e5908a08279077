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
from reproduction.learning import not_learned
from reproduction.lines import Line, corrected, difference, mean_lines
from reproduction.run import finished_cases, read_record
from reproduction.specification import (
    AVERAGE,
    MEAN,
    METRIC,
    PAPERS,
    SCALES,
    Case,
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
    lines: list[Line] = []
    unlearned: dict[str, str] = {}
    for case, source in cases:
        compared = compare(source)
        if reason := not_learned(compared, source):
            unlearned[case.name] = reason
        lines += [
            replace(line, learned=not reason)
            for score in specification.score
            for line in _lines(specification, case, compared, score)
        ]
    choices = tuple(choose_columns(specification, lines))
    learned = [case for case, _ in cases if case.name not in unlearned]
    for score in specification.score:
        if score.average:
            lines += _averages(specification, score, lines, learned)
    missing = {
        f"{case}, {run.rstrip('.')}": "not finished"
        for case, source in sources.items()
        for run in source.missing
    }
    scale = next((each for each in SCALES if record is not None and each == record.scale), None)
    differs = changes(specification, scale, cases) + [
        f"Not learned, so in no mean and no verdict: {case}: {reason}."
        for case, reason in unlearned.items()
    ]
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
    specification: Specification, case: Case, comparison: Comparison, score: Score
) -> Iterable[Line]:
    rows = _select(comparison, score)
    reference = specification.reference
    for row in rows:
        base = row.cells[reference].seeds if reference in row.cells else {}
        for column in specification.columns(model=case.model):
            if column.name not in row.cells:
                continue
            seeds = row.cells[column.name].seeds
            line = Line(
                case=case.name,
                score=score.name,
                label=score.label if len(rows) == 1 else row.label,
                column=column.name,
                seeds=seeds,
                higher_is_better=row.higher_is_better,
                unit=row.unit,
                to_reference=None if column.name == reference else difference(seeds, base),
            )
            if len(rows) == 1:
                line = _beside(specification, line, score, case.model.name, case.task.name)
            yield line


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
    specification: Specification, score: Score, lines: Sequence[Line], cases: Sequence[Case]
) -> list[Line]:
    """Return the means over the learned cases.

    They are those of each model, of each task where the paper has its mean over the models, and of
    all. The paper's number stands beside a mean over all of its cases.
    """
    groups: list[tuple[str, str, str]] = [
        (f"{model.name}, ", model.name, AVERAGE) for model in specification.model
    ]
    if any(number.model == AVERAGE for number in specification.printed):
        groups += [(f"{task.name}, ", AVERAGE, task.name) for task in specification.task]
    elif len({case.model.name for case in cases}) > 1:
        groups.append(("", "", ""))
    of_score = [line for line in lines if line.score == score.name]
    made = []
    for what, model, task in groups:
        whole, part = (
            [
                case.name
                for case in of
                if model in ("", AVERAGE, case.model.name) and task in ("", AVERAGE, case.task.name)
            ]
            for of in (specification.case, cases)
        )
        if len(part) < 2:
            continue
        means = mean_lines(
            [line for line in of_score if line.case in part],
            part,
            lambda line: line.case,
            reference=specification.reference,
            case=f"{what}mean of {len(part)} cases",
            label=score.label,
        )
        if part == whole:
            means = [_beside(specification, line, score, model, task) for line in means]
        made += means
    return made


def _beside(specification: Specification, line: Line, score: Score, model: str, task: str) -> Line:
    """Set the printed number and the printed gain beside a line, where there are such."""

    def printed(column: str) -> float | None:
        number = specification.number(score.name, model, column, task)
        return None if number is None else float(number.value) / score.times

    value, base = printed(line.column), printed(specification.reference)
    if value is None:
        return line
    number = specification.number(score.name, model, line.column, task)
    gain = None if base is None or line.column == specification.reference else value - base
    return replace(
        line,
        printed=None if number is None else number.value,
        to_paper=difference(line.seeds, dict.fromkeys(line.seeds, value)),
        printed_gain=gain,
        to_printed_gain=None
        if gain is None or line.to_reference is None
        else line.to_reference.less(gain),
    )
