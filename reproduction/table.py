"""The paper's numbers next to ours: lines made from finished studies.

Nothing here is written by hand: a line is a score of a study (`temper.report.comparison`), the
printed number of the specification, and the difference of the two over the seeds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from reproduction.choice import choose_columns
from reproduction.facts import case_facts, changes, costs
from reproduction.learning import not_learned
from reproduction.lines import (
    NOT_LEARNED,
    Line,
    corrected,
    difference,
    mean_lines,
    mean_over,
    papers_unit,
)
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
from temper.functional.intervals import relative_improvement
from temper.report.table import compare


@dataclass(frozen=True)
class ReproductionTable:
    """A table of a paper with our numbers.

    Args:
        name: Name of the specification.
        title: Paper, table and content.
        reference: Method that the others are compared with.
        lines: Every score of every method in every finished case.
        not_run: Why cases have no lines, by name.
        differs: Differences from the paper, one sentence each.
        facts: Runs of each case, as texts by heading.
        chosen: Choice of each case, as texts by heading.
        frontier: The score of the figure of gains and costs; empty for no figure.
        costs: Forward passes of each method's training relative to the reference, for that figure.
    """

    name: str
    title: str
    reference: str
    lines: tuple[Line, ...]
    not_run: dict[str, str] = field(default_factory=dict)
    differs: tuple[str, ...] = ()
    facts: tuple[dict[str, str], ...] = ()
    chosen: tuple[dict[str, str], ...] = ()
    frontier: str = ""
    costs: dict[str, float] = field(default_factory=dict)

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for the reader, one sentence each."""
        return (*self.differs, *self.not_run_notes)

    @property
    def not_run_notes(self) -> tuple[str, ...]:
        """Why cases have no lines, one sentence each."""
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
            "costs": self.costs,
        }


def reproduction_table(specification: Specification, folder: Path) -> ReproductionTable:
    """Compare the paper's numbers with those of the studies in a folder.

    Args:
        specification: The table or figure.
        folder: Folder with a study's folder for each case, weights or not.

    Returns:
        The table of the finished cases, with the names of the others.

    Raises:
        CheckpointError: The folder has no case, or a file in it is damaged.
    """
    record = read_record(folder) if folder.is_dir() else None
    if record is not None and record.family != specification.family:
        raise CheckpointError(
            f"{folder} has {record.family}, and {specification.name} is made from "
            f"{specification.family}. Pass the folder of another reproduction."
        )
    sources, unread = finished_cases(specification, folder)
    not_run = {**({} if record is None else record.not_run), **unread}
    if not sources and not not_run:
        raise CheckpointError(
            f"Expected a folder with a study for a case of {specification.name} "
            f"({', '.join(case.name for case in specification.case)}), and {folder} "
            f"{'is a file' if folder.is_file() else 'has none'}. Pass the folder that "
            f"`temper reproduce {specification.name}` wrote, or run that first."
        )
    cases = [(case, sources[case.name]) for case in specification.case if case.name in sources]
    compared = {case.name: compare(source) for case, source in cases}
    lines = [
        line
        for case, _ in cases
        for score in specification.score
        for line in _lines(specification, case, compared[case.name], score)
    ]
    unlearned = {
        case.name: reason
        for case, source in cases
        if (reason := not_learned(compared[case.name], source))
    }
    finished = {case.name: case for case, _ in cases}
    lines = _relative_to_one(specification, lines, list(finished.values()))
    # The paper prints one number per cell, so a score with several conditions has none.
    conditions = Counter((line.case, line.score, line.column) for line in lines)
    lines = [
        _beside(specification, line, finished[line.case].model.name, finished[line.case].task.name)
        if conditions[line.case, line.score, line.column] == 1
        else line
        for line in lines
    ]
    choices = []
    for chosen in choose_columns(specification, lines):
        reason = not_learned(compared[chosen.case], sources[chosen.case], chosen.column)
        if reason:
            unlearned.setdefault(chosen.case, reason)
        row = chosen.row if not reason else {**chosen.row, "verdict": NOT_LEARNED}
        choices.append(row)
    lines = [replace(line, learned=line.case not in unlearned) for line in lines]
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
        f"Not learned, so excluded from means and verdicts: {case}: {reason}."
        for case, reason in unlearned.items()
    ]
    if missing:
        differs.append(
            "Some runs are missing. A difference uses the seeds that both methods have, and a mean "
            "over cases uses the seeds that all cases have."
        )
    return ReproductionTable(
        name=specification.name,
        title=f"{PAPERS[specification.paper]}, {specification.place}: {specification.title}",
        reference=specification.reference,
        lines=tuple(corrected(lines)),
        not_run={**not_run, **missing},
        differs=tuple(differs),
        chosen=tuple(choices),
        facts=tuple(case_facts(case, source) for case, source in cases),
        frontier=specification.frontier,
        costs=costs(sources.values(), specification.reference) if specification.frontier else {},
    )


def _lines(
    specification: Specification, case: Case, comparison: Comparison, score: Score
) -> Iterable[Line]:
    rows = _select(comparison, score)
    reference = specification.reference
    columns = [each.name for each in specification.columns(model=case.model)]
    for together in [rows] if score.over_conditions and rows else [[row] for row in rows]:
        row = together[0]
        seeds = {
            column: mean_over([each.cells[column].seeds for each in together])
            for column in columns
            if all(column in each.cells for each in together)
        }
        for column, values in seeds.items():
            base = seeds.get(reference, {})
            yield Line(
                case=case.name,
                score=score.name,
                label=row.label if len(rows) > len(together) else score.label,
                column=column,
                seeds=values,
                higher_is_better=row.higher_is_better,
                unit=papers_unit(row.unit),
                to_reference=None if column == reference else difference(values, base),
            )


def _select(comparison: Comparison, score: Score) -> list[Row]:
    """Return the rows that a score selects."""
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


def _relative_to_one(
    specification: Specification, lines: Sequence[Line], cases: Sequence[Case]
) -> list[Line]:
    """Compute relative improvements over one model's reference, if the table has a common baseline.

    Without a finished case of that model they stay relative to the reference of each study.
    """
    over, reference = specification.relative_to, specification.reference
    if over is None:
        return list(lines)
    seeds = {(line.case, line.score, line.column): line.seeds for line in lines}
    perfect = {line.score: 1.0 if line.higher_is_better else 0.0 for line in lines}
    tasks = {case.name: case.task.name for case in cases}

    def improvement(case: str, column: str) -> dict[int, float] | None:
        """Return the mean over the parts, seed by seed; None if a part is missing."""
        of_column = [seeds.get((case, part, column)) for part in over.parts]
        of_base = [seeds.get((f"{over.model}-{tasks[case]}", p, reference)) for p in over.parts]
        if not all(of_column) or not all(of_base):
            return None
        parts = [
            {
                seed: relative_improvement(value, fmean(base.values()), perfect[part])
                for seed, value in own.items()
            }
            for part, own, base in zip(over.parts, of_column, of_base, strict=True)
            if own and base
        ]
        return mean_over(parts)

    made = []
    for line in lines:
        values = improvement(line.case, line.column) if line.score == over.score else None
        if values is not None:
            base = improvement(line.case, reference)
            gain = None if line.column == reference or not base else difference(values, base)
            line = replace(line, seeds=values, to_reference=gain)
        made.append(line)
    return made


def _averages(
    specification: Specification, score: Score, lines: Sequence[Line], cases: Sequence[Case]
) -> list[Line]:
    """Return the means over the learned cases.

    There is a mean for each model, for each task if the paper has its mean over the models, and
    over all cases. A mean over all of the paper's cases is compared with the paper's number.
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
            of_score,
            part,
            reference=specification.reference,
            label=score.label,
            name=f"{what}mean of {len(part)} cases",
        )
        if part == whole:
            means = [_beside(specification, line, model, task) for line in means]
        made += means
    return made


def _beside(specification: Specification, line: Line, model: str, task: str) -> Line:
    """Add the printed number and the printed gain to a line, if they exist."""
    number = specification.number(line.score, model, line.column, task)
    if number is None:
        return line
    (times,) = (score.times for score in specification.score if score.name == line.score)
    value = float(number.value) / times
    base = specification.number(line.score, model, specification.reference, task)
    gain = None
    if base is not None and line.column != specification.reference:
        gain = value - float(base.value) / times
    ours = line.to_reference
    return replace(
        line,
        printed=number.value,
        to_paper=difference(line.seeds, dict.fromkeys(line.seeds, value)),
        printed_gain=gain,
        to_printed_gain=None if gain is None or ours is None else ours.less(gain),
    )
