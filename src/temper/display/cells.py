"""The comparison as plain data: rows of scores, cells of columns, paired differences."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from temper.display.records import NamedRecord, Parameters
from temper.display.wording import plural
from temper.functional.effects import LEAST_SEEDS, LEVEL, effect
from temper.functional.units import MARGIN, Unit

NAMED = 6
"""Columns up to which a title names them all."""

Verdict = Literal[
    "better",
    "worse",
    "higher",
    "lower",
    "equivalent",
    "non-inferior",
    "non-superior",
    "not significant",
    "undecidable",
    "too few rows",
    "seeds missing",
    "no common seed",
]

NOISE: Verdict = "not significant"
WITHIN: tuple[Verdict, ...] = ("equivalent", "non-inferior", "non-superior")
"""Verdicts of an interval that contains 0 and ends within the margin, on both sides or on one."""


@dataclass(frozen=True)
class ScoreKey:
    """Which score this is.

    Args:
        perspective, set, condition, name: As in ``scores.json``.
        parameters: Of the condition: radius, norm, sigma, rate, layer and the like.
    """

    perspective: str
    set: str
    condition: str
    name: str
    parameters: Parameters = field(default_factory=Parameters)

    @property
    def over_sets(self) -> bool:
        """Whether it is a mean over sets, which `temper.report.derived` names so."""
        return self.set.startswith("mean of ")

    @classmethod
    def of(cls, record: NamedRecord) -> ScoreKey:
        """Return the key of a score that was read."""
        named = (record.perspective, record.set, record.condition, record.name)
        return cls(*named, Parameters(record.parameters))


@dataclass(frozen=True)
class Difference:
    """A column's paired difference against the reference (column minus reference).

    Args:
        seeds: Difference of every seed that both have.
        mean: Mean over the seeds, None if no seed is common.
        low, high: 95% interval: over seeds (`temper.functional.effects`), or of one seed that over
            examples where the study kept one; else None.
        p: Two-sided p of the same test, None without an interval.
        holm_p: ``p`` after Holm's correction over the columns of this row.
        inside_noise: Whether the interval holds 0; None if that cannot be decided.
        verdict: The same in words, with the score's direction taken into account; ``higher`` or
            ``lower`` of a score without one. If the interval contains 0: ``equivalent`` if both
            ends lie within the margin, ``non-inferior`` or ``non-superior`` if one does.
        examples: Number of examples that the interval is over; None if it is over seeds.
        why: Why there is no verdict; empty if there is one.
        margin: Difference that would matter, None of scores that have none.
        standard_error: Of the mean over seeds, and over rows where they were kept.
        freedom: Degrees of freedom of the interval over seeds.
        row_variance: Part of the squared standard error that more seeds would not lower; None if
            rows were not kept, so that the interval is of other seeds on these rows.
        least: The minimum detectable difference: such a study finds a true difference of this size
            four times in five.
    """

    seeds: dict[int, float]
    mean: float | None
    low: float | None = None
    high: float | None = None
    p: float | None = None
    holm_p: float | None = None
    inside_noise: bool | None = None
    verdict: Verdict = "undecidable"
    examples: int | None = None
    why: str = ""
    margin: float | None = None
    standard_error: float | None = None
    freedom: float | None = None
    row_variance: float | None = None
    least: float | None = None

    @property
    def said(self) -> str:
        """The verdict in words, with why there is none."""
        return f"{self.verdict} ({self.why})" if self.why else self.verdict


@dataclass(frozen=True)
class Cell:
    """One score of one column.

    Args:
        seeds: Value of every seed where it is defined.
        runs: Folder name of the run behind every seed.
        mean: Mean over the seeds, None if no value is defined.
        standard_deviation: Sample standard deviation over the seeds, None below two.
        examples: Numbers of examples that were scored, each once.
        fewest: Examples of the smallest class or group behind the score, None if not known.
        low, high: 95% interval over examples, for one seed only.
        standard_errors: Over examples, of every seed where one was recorded.
        reasons: Why values are undefined, each once.
        difference: Against the reference, None for the reference itself.
    """

    seeds: dict[int, float]
    runs: dict[int, str]
    mean: float | None
    standard_deviation: float | None
    examples: tuple[int, ...] = ()
    fewest: int | None = None
    low: float | None = None
    high: float | None = None
    standard_errors: dict[int, float] = field(default_factory=dict)
    reasons: tuple[str, ...] = ()
    difference: Difference | None = None

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95% interval of the mean: over examples for one seed, over seeds from three on.

        None for two seeds: their t interval reaches 13 standard errors to either side.
        """
        if self.low is not None and self.high is not None:
            return self.low, self.high
        if len(self.seeds) < LEAST_SEEDS:
            return None
        over_seeds = effect(list(self.seeds.values()))
        return None if over_seeds is None else (over_seeds.low, over_seeds.high)


@dataclass(frozen=True)
class Row:
    """One score of all columns.

    Args:
        key: Which score.
        group: Title of its perspective.
        label: It in words, unique within its group.
        higher_is_better: Its direction, None if neither is better.
        unit: How it is shown.
        cells: Column name to cell, in the order of the columns.
        leads: Whether its perspective is summed up by it.
        minor: Whether it stands in a figure and not in tables for people.
    """

    key: ScoreKey
    group: str
    label: str
    higher_is_better: bool | None
    unit: Unit
    cells: dict[str, Cell]
    leads: bool = False
    minor: bool = False

    def heading(self, label: str | None = None) -> str:
        """Write what the score is, its unit and which way is better, if one is.

        Args:
            label: Other words than its own.
        """
        arrow = {True: " \u2191", False: " \u2193", None: ""}[self.higher_is_better]
        sign = f" ({self.unit.sign})" if self.unit.sign else ""
        return f"{self.label if label is None else label}{sign}{arrow}"

    def text(self, column: str) -> str:
        """Write a cell's mean, with the standard deviation where there are two seeds."""
        cell = self.cells[column]
        value = self.unit.text(cell.mean)
        if cell.standard_deviation is None:
            return value
        return f"{value} \u00b1 {self.unit.text(cell.standard_deviation)}"

    def value_text(self, column: str) -> str:
        """Write a cell's mean with its unit."""
        return self.unit.with_sign(self.unit.text(self.cells[column].mean))

    def interval_text(self, column: str) -> str:
        """Write a cell's interval over examples; empty if there is none."""
        cell = self.cells[column]
        if cell.low is None or cell.high is None:
            return ""
        return f"[{self.unit.text(cell.low)}, {self.unit.text(cell.high)}]"

    def difference_text(self, column: str) -> tuple[str, str]:
        """Write a cell's difference, and its interval if any; empty for the reference."""
        difference = self.cells[column].difference
        if difference is None:
            return "", ""
        value = self.unit.text(difference.mean, signed=True)
        if difference.low is None or difference.high is None:
            return value, ""
        low = self.unit.text(difference.low, signed=True)
        return value, f"[{low}, {self.unit.text(difference.high, signed=True)}]"

    def outlook(self, column: str) -> str:
        """Return the minimum detectable difference if a difference is not significant; else empty.

        Args:
            column: Whose difference.
        """
        difference = self.cells[column].difference
        if difference is None or difference.least is None or not difference.inside_noise:
            return ""
        return f"minimum detectable difference {self.unit.text(difference.least)}"


@dataclass(frozen=True)
class TrainingCost:
    """What a column's training takes, as a mean over its runs; None if none recorded it.

    Args:
        passes: Forward passes: F a step times the steps.
        memory: Peak of the memory in use, in MiB.
        parameters: Parameters of the network that answers.
    """

    passes: float | None = None
    memory: float | None = None
    parameters: float | None = None


@dataclass(frozen=True)
class Comparison:
    """The whole comparison as plain data.

    Args:
        kind: ``study``, ``run`` or ``evaluation``.
        model: The model that was trained or evaluated.
        metric: The task's leading score.
        reference: Column compared with, None if there is one column.
        columns: Column names in order.
        seeds: Planned seeds.
        rows: All scores.
        missing: Planned runs that are not in the numbers, one sentence each.
        notices: Notes about the numbers: overlap, truncation, undefined scores.
        answer: The outcome in plain sentences.
        margin: Points that a difference must reach to matter.
        detect: Points that the study should detect; None if the user states none.
        costs: Training cost of each column, where its runs recorded it.
        classes: Number of classes of the task; 0 of a regression.
        seen: How many of the rows the models were trained on, in sentences.
        equal: The same scores compared with plain fine-tuning of equal compute, by column; without
            columns that cost about as much as the reference, or have no such counterpart.
    """

    kind: str
    model: str
    metric: str
    reference: str | None
    columns: tuple[str, ...]
    seeds: tuple[int, ...]
    rows: tuple[Row, ...]
    missing: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()
    answer: str = ""
    margin: float = MARGIN
    detect: float | None = None
    costs: dict[str, TrainingCost] = field(default_factory=dict)
    classes: int = 0
    seen: tuple[str, ...] = ()
    equal: dict[str, Comparison] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """What was compared, in one line."""
        if self.kind == "evaluation":
            return self.model
        if self.reference is None:
            return f"{', '.join(self.columns)} on {self.model}"
        others = [name for name in self.columns if name != self.reference]
        named = ", ".join(others) if len(others) <= NAMED else f"{len(others)} columns"
        return f"{named or 'nothing'} against {self.reference}, on {self.model}"

    @property
    def comparable(self) -> bool:
        """Whether a column has a run of the same seed as one of the reference."""
        seeds: dict[str, set[int]] = {name: set() for name in self.columns}
        for row in self.rows:
            for name, cell in row.cells.items():
                seeds[name].update(cell.runs)
        base = seeds.get(self.reference or "", set())
        return any(base & seeds[name] for name in self.columns if name != self.reference)

    @property
    def unfinished(self) -> str:
        """How many runs of a study are not in the numbers, in a sentence; empty if all are."""
        if self.kind != "study" or not self.missing:
            return ""
        total = len(self.columns) * len(self.seeds)
        done = total - len(self.missing)
        few = f"Only {done} of {plural(total, 'run')} {'is' if done == 1 else 'are'} finished"
        if self.comparable or len(self.columns) == 1:
            return f"{few} and measured."
        return (
            f"{few} and measured, so nothing can be compared yet: `temper compare` with the same "
            "--out runs the others."
        )

    @property
    def shown(self) -> tuple[Row, ...]:
        """The rows of a table for people."""
        return tuple(row for row in self.rows if not row.minor)

    @property
    def by_chance(self) -> str:
        """How many of the table's differences chance alone would make significant; empty of few."""
        cells = [cell for row in self.shown for cell in row.cells.values()]
        tested = sum(
            cell.difference is not None and cell.difference.p is not None for cell in cells
        )
        expected = round(LEVEL * tested)
        if not expected:
            return ""
        return (
            f"Of the {tested} differences tested, about {expected} would be significant by chance "
            "if no column differed."
        )

    @property
    def headings(self) -> list[tuple[str, str]]:
        """Kind (value or difference) and text of the headings of a table of scores."""
        result = []
        for name in self.columns:
            result.append(("value", name))
            if self.reference is not None and name != self.reference:
                result.append(("difference", f"{name} \u2212 {self.reference}"))
        return result

    def said(self, say: Callable[[str], str]) -> str:
        """Join the notes of the columns, each after its name if there are several.

        Args:
            say: From a column's name to a text, empty if there is nothing to say.
        """
        notes = {name: text for name in self.columns if (text := say(name))}
        if len(self.columns) == 1:
            return "".join(notes.values())
        return " ".join(f"`{name}`: {text}" for name, text in notes.items())

    def of(self, perspective: str, *names: str) -> list[Row]:
        """Return the rows of a perspective.

        Args:
            perspective: Its name.
            names: Of scores; all if none is named.
        """
        return [
            row
            for row in self.rows
            if row.key.perspective == perspective and (not names or row.key.name in names)
        ]

    def row(self, perspective: str, name: str, **key: Any) -> Row:
        """Return the one row that has this perspective, score name, and other fields or parameters.

        Raises:
            KeyError: No row, or more than one, fits.
        """
        wanted = {"perspective": perspective, "name": name, **key}
        result = [
            row
            for row in self.rows
            if all(
                getattr(row.key, part, row.key.parameters.get(part)) == value
                for part, value in wanted.items()
            )
        ]
        if len(result) != 1:
            raise KeyError(f"Expected one row with {wanted}, found {len(result)}.")
        return result[0]

    def to_json(self) -> dict[str, Any]:
        """Return everything as JSON-ready data, the content of ``table.json``."""
        names = ("kind", "model", "metric", "reference", "columns", "seeds", "margin", "answer")
        document: dict[str, Any] = {"schema": 1, "title": self.title}
        document |= {name: getattr(self, name) for name in (*names, "missing", "notices")}
        document["rows"] = [
            {
                **asdict(row.key),
                "label": row.label,
                "higher_is_better": row.higher_is_better,
                "columns": {name: asdict(cell) for name, cell in row.cells.items()},
            }
            for row in self.rows
        ]
        return document
