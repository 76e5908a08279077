"""The comparison as plain data: a row per score, a cell per column, paired differences.

A column is a compared method (or configuration); the reference is the one to compare with.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, TypeVar

from temper.display.records import NamedRecord, Parameters
from temper.display.wording import plural
from temper.functional.effects import LEAST_SEEDS, LEVEL, effect
from temper.functional.units import MARGIN, Unit

Item = TypeVar("Item")
Kind = TypeVar("Kind", bound=Hashable)

NAMED = 6
"""Maximum number of methods that a title lists by name."""

Verdict = Literal[
    "better", "worse", "higher", "lower", "equivalent", "non-inferior", "non-superior",
    "not significant", "undecidable", "too few rows", "seeds missing", "no common seed",
]  # fmt: skip

NOT_SIGNIFICANT: Verdict = "not significant"
WITHIN: tuple[Verdict, ...] = ("equivalent", "non-inferior", "non-superior")
"""Verdicts of intervals that contain 0 and have one or both ends within the margin."""


@dataclass(frozen=True)
class ScoreKey:
    """Identifies a score; ``parameters`` are those of the condition, such as the radius."""

    perspective: str
    set: str
    condition: str
    name: str
    parameters: Parameters = field(default_factory=Parameters)

    @property
    def over_sets(self) -> bool:
        """Whether the score is a mean over sets, by the name from `temper.report.derived`."""
        return self.set.startswith("mean of ")

    @classmethod
    def of(cls, record: NamedRecord) -> ScoreKey:
        named = (record.perspective, record.set, record.condition, record.name)
        return cls(*named, Parameters(record.parameters))


@dataclass(frozen=True)
class Difference:
    """The paired difference of one score: a method minus the reference method.

    Args:
        seeds: Common seed -> difference.
        mean: Mean over the seeds, None if no seed is common.
        low, high: 95% interval over seeds (`temper.functional.effects`), or for one seed over
            examples; None if there is none.
        p: Two-sided p value of the same test, None without an interval.
        holm_p: ``p`` after Holm's correction over all methods.
        includes_zero: Whether the interval contains 0; None without an interval.
        verdict: ``better`` or ``worse`` if the interval does not contain 0; ``higher`` or ``lower``
            for scores without a direction. Else ``equivalent`` if both ends are within the margin,
            ``non-inferior`` or ``non-superior`` if one is.
        examples: Number of examples of an interval over examples; None if it is over seeds.
        why: Why there is no verdict; empty if there is one.
        margin: Largest negligible difference; None for scores without a margin.
        standard_error: Standard error over seeds, and over rows if these were stored.
        freedom: Degrees of freedom of the interval over seeds.
        row_variance: Part of the squared standard error that more seeds would not reduce. None if
            rows were not stored; the interval is then valid for other seeds on the same rows.
        least: Minimum detectable difference at 80% power.
    """

    seeds: dict[int, float]
    mean: float | None
    low: float | None = None
    high: float | None = None
    p: float | None = None
    holm_p: float | None = None
    includes_zero: bool | None = None
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
        """The verdict, with the reason if there is none."""
        return f"{self.verdict} ({self.why})" if self.why else self.verdict


@dataclass(frozen=True)
class Cell:
    """One score of one method.

    Args:
        seeds: Seed -> value.
        runs: Seed -> name of the run.
        mean: Mean over the seeds, None if no value is defined.
        standard_deviation: Sample standard deviation over at least two seeds, else None.
        examples: The different values of n of the runs.
        fewest: Number of examples of the smallest class or group; None if unknown.
        low, high: 95% interval over examples, only for a single seed.
        standard_errors: Seed -> standard error over examples, if known.
        reasons: Why values are undefined.
        difference: Difference from the reference; None for the reference.
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
        """95% interval of the mean: over examples for one seed, over seeds for three or more."""
        if self.low is not None and self.high is not None:
            return self.low, self.high
        # The t interval of two seeds reaches 13 standard errors to either side.
        if len(self.seeds) < LEAST_SEEDS:
            return None
        over_seeds = effect(list(self.seeds.values()))
        return None if over_seeds is None else (over_seeds.low, over_seeds.high)


@dataclass(frozen=True)
class Row:
    """One score of all methods.

    Args:
        group: Title of the score's perspective.
        label: Display name, unique within the group.
        higher_is_better: Direction of the score; None if it has none.
        minor: Whether the score is shown in figures only.
    """

    key: ScoreKey
    group: str
    label: str
    higher_is_better: bool | None
    unit: Unit
    cells: dict[str, Cell]
    minor: bool = False

    def heading(self, label: str | None = None) -> str:
        """Return label, unit and an arrow for the better direction."""
        arrow = {True: " \u2191", False: " \u2193", None: ""}[self.higher_is_better]
        sign = f" ({self.unit.sign})" if self.unit.sign else ""
        return f"{self.label if label is None else label}{sign}{arrow}"

    def text(self, column: str) -> str:
        """Return a method's mean as text, with the standard deviation for several seeds."""
        cell = self.cells[column]
        value = self.unit.text(cell.mean)
        if cell.standard_deviation is None:
            return value
        return f"{value} \u00b1 {self.unit.text(cell.standard_deviation)}"

    def value_text(self, column: str) -> str:
        return self.unit.with_sign(self.unit.text(self.cells[column].mean))

    def interval_text(self, column: str) -> str:
        """Return a method's interval over examples as text; empty if there is none."""
        cell = self.cells[column]
        if cell.low is None or cell.high is None:
            return ""
        return f"[{self.unit.text(cell.low)}, {self.unit.text(cell.high)}]"

    def difference_text(self, column: str) -> tuple[str, str]:
        """Return a method's difference and its interval as text; empty if there is none."""
        difference = self.cells[column].difference
        if difference is None:
            return "", ""
        value = self.unit.text(difference.mean, signed=True)
        if difference.low is None or difference.high is None:
            return value, ""
        low = self.unit.text(difference.low, signed=True)
        return value, f"[{low}, {self.unit.text(difference.high, signed=True)}]"

    def outlook(self, column: str) -> str:
        """Return the minimum detectable difference as text; empty for a significant difference."""
        difference = self.cells[column].difference
        if difference is None or difference.least is None or not difference.includes_zero:
            return ""
        return f"minimum detectable difference {self.unit.text(difference.least)}"


def grouped(items: Iterable[Item], kind: Callable[[Item], Kind]) -> dict[Kind, list[Item]]:
    """Return kind -> items; kinds are in the order of their first items."""
    groups: dict[Kind, list[Item]] = {}
    for item in items:
        groups.setdefault(kind(item), []).append(item)
    return groups


@dataclass(frozen=True)
class TrainingCost:
    """Training cost of a method, as means over its runs; None if no run recorded it.

    ``passes`` are forward-pass equivalents of the whole training, ``memory`` is the peak in MiB.
    """

    passes: float | None = None
    memory: float | None = None
    parameters: float | None = None


@dataclass(frozen=True)
class Comparison:
    """The whole comparison as plain data.

    Args:
        kind: ``study``, ``run`` or ``evaluation``.
        metric: The task's primary metric.
        reference: Name of the method to compare with; None if there is only one method.
        columns: Names of the compared methods (or configurations).
        missing: A sentence for each planned run that could not be used.
        notices: Notices about the scores: overlap, truncation, undefined values.
        detect: Difference in points that the study should detect; None if not set.
        costs: Method -> training cost.
        classes: Number of classes of the task; 0 for a regression.
        seen: Notices on scored rows that the models were trained on.
        equal: Method -> its comparison with plain fine-tuning of equal compute, if there is one.
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
    headline: str = ""
    margin: float = MARGIN
    detect: float | None = None
    costs: dict[str, TrainingCost] = field(default_factory=dict)
    classes: int = 0
    seen: tuple[str, ...] = ()
    equal: dict[str, Comparison] = field(default_factory=dict)

    @property
    def title(self) -> str:
        if self.kind == "evaluation":
            return self.model
        if self.reference is None:
            return f"{', '.join(self.columns)} on {self.model}"
        others = [name for name in self.columns if name != self.reference]
        named = ", ".join(others) if len(others) <= NAMED else f"{len(others)} methods"
        return f"{named or 'nothing'} against {self.reference}, on {self.model}"

    @property
    def comparable(self) -> bool:
        """Whether a method has a run at a seed of the reference."""
        seeds: dict[str, set[int]] = {name: set() for name in self.columns}
        for row in self.rows:
            for name, cell in row.cells.items():
                seeds[name].update(cell.runs)
        base = seeds.get(self.reference or "", set())
        return any(base & seeds[name] for name in self.columns if name != self.reference)

    @property
    def unfinished(self) -> str:
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
        return tuple(row for row in self.rows if not row.minor)

    @property
    def by_chance(self) -> str:
        """A sentence on the expected number of false positives; empty for few tests."""
        cells = [cell for row in self.shown for cell in row.cells.values()]
        tested = sum(
            cell.difference is not None and cell.difference.p is not None for cell in cells
        )
        expected = round(LEVEL * tested)
        if not expected:
            return ""
        return (
            f"Of the {tested} differences tested, about {expected} would be significant by chance "
            "if no method differed."
        )

    @property
    def headings(self) -> list[tuple[str, str]]:
        """(``value`` or ``difference``, text) of each heading of a score table."""
        result = []
        for name in self.columns:
            result.append(("value", name))
            if self.reference is not None and name != self.reference:
                result.append(("difference", f"{name} \u2212 {self.reference}"))
        return result

    def said(self, say: Callable[[str], str]) -> str:
        """Join ``say(method)`` of all methods; if there are several, with their names."""
        notes = {name: text for name in self.columns if (text := say(name))}
        if len(self.columns) == 1:
            return "".join(notes.values())
        return " ".join(f"`{name}`: {text}" for name, text in notes.items())

    def of(self, perspective: str, *names: str) -> list[Row]:
        """Return the rows of a perspective, if ``names`` are given only of these scores."""
        return [
            row
            for row in self.rows
            if row.key.perspective == perspective and (not names or row.key.name in names)
        ]

    def to_json(self) -> dict[str, Any]:
        """Return the content of ``table.json``."""
        names = ("kind", "model", "metric", "reference", "columns", "seeds", "margin", "headline")
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
