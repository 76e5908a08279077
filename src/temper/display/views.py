"""How reports show a perspective: title, wording, primary score, figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

from temper.display.cells import Comparison, Row, ScoreKey, grouped
from temper.display.charts import Figure
from temper.display.folders import Source
from temper.display.wording import described, title


class Heading(StrEnum):
    """The sections of a report, in their order."""

    COMPARISON = "Comparison"
    ACCURACY = "Accuracy"
    ROBUSTNESS = "Robustness"
    CALIBRATION = "Calibration and OOD detection"
    ERRORS = "Error analysis"
    REPRESENTATIONS = "Representations"
    COST = "Cost"


METRIC = "metric"
"""Value of `View.leads` for the task's primary metric."""


def each_condition(rows: Sequence[Row]) -> list[Row]:
    """Choose one row per condition and set: that of the middle perturbation size."""
    groups = grouped(rows, lambda row: (row.key.condition, row.key.set))
    return [alike[len(alike) // 2] for alike in groups.values()]


def mean_or_first(rows: Sequence[Row]) -> list[Row]:
    """Choose one row per condition: the mean over its sets, else the first set."""
    groups = grouped(rows, lambda row: row.key.condition).values()
    return [next((row for row in alike if row.key.over_sets), alike[0]) for alike in groups]


@dataclass(frozen=True, kw_only=True, eq=False)
class View:
    """How a group of scores is shown: a perspective, or derived scores.

    Args:
        name: Name of the perspective.
        title: Title of the group.
        order: Position of the group; lower comes first.
        leads: Name of the primary score, `METRIC` for the task's metric; empty if there is none.
        sums_up: Chooses rows of the primary score for the overview.
        short: Prefix of the scores' names in the overview, if another group has the same names.
        conditions: Condition -> display name. By default ``clean`` is not displayed.
        words: Returns a label of a score that is unique within the group; None uses `label`.
        minor: Chooses the scores that are shown in figures only.
        gain: Template of a sentence about a difference, after the method's name. Fields:
            ``{better}`` (or worse), ``{ours}``, ``{compared}`` (the reference's value and the
            difference), ``{score}`` and ``{title}``.
        heading: Section of the report (`Heading`); empty for a separate one.
        explained: Meaning of the scores, in sentences.
        says: Returns findings, shown before ``explained``; see `Comparison.said`.
        figures: Draws the figures.
        counts: Unit of n.
        judged: Whether the scores rate a model, so that they enter the recommendation.
        ranked: Whether a ``judged`` group enters the mean ranks.
        improves: Whether the group is a part of the average relative improvement.
        without_training: Condition of the primary score with post-hoc methods; empty if there is
            none.
        averaged: Whether to add a mean over the group's sets.
        own_rows: Whether the sets share no rows, so that their sampling errors are independent.
        unperturbed: Whether the rows are predictions on unperturbed labeled sets.
        unchanged_texts: Whether the page shows attacked rows with unchanged texts as examples.
    """

    name: str
    title: str
    order: int = 1000
    leads: str = METRIC
    sums_up: Callable[[Sequence[Row]], list[Row]] = each_condition
    short: str = ""
    conditions: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    words: Callable[[ScoreKey], str] | None = None
    minor: Callable[[Sequence[ScoreKey]], Sequence[ScoreKey]] = lambda keys: ()
    gain: str = "is {better} in {title} ({ours}, {compared})"
    heading: str = ""
    explained: str = ""
    says: Callable[[Comparison], str] = lambda comparison: ""
    figures: Callable[[Source, Comparison], list[Figure]] = lambda source, comparison: []
    counts: str = "examples"
    judged: bool = True
    ranked: bool = True
    improves: bool = False
    without_training: str = ""
    averaged: bool = False
    own_rows: bool = True
    unperturbed: bool = False
    unchanged_texts: bool = False

    @property
    def title_in_text(self) -> str:
        """The title for the middle of a sentence; an acronym at its start keeps its capitals."""
        return self.title if self.title[:2].isupper() else self.title.lower()

    def lead(self, metric: str) -> str:
        """Return the name of the primary score, given the task's metric."""
        return metric if self.leads == METRIC else self.leads

    def is_lead(self, key: ScoreKey, metric: str) -> bool:
        if self.without_training and key.condition != "clean":
            # Scores with post-hoc methods are not primary scores.
            return False
        return bool(self.leads) and key.name == self.lead(metric)

    def condition(self, name: str) -> str:
        """Return the display name of a condition; empty if it is not displayed."""
        return self.conditions.get(name, "" if name == "clean" else name.replace("_", " "))

    def attack(self, key: ScoreKey) -> str:
        """Return the display name of the perturbation with its parameters."""
        parts = (self.condition(key.condition), described(key.parameters))
        return " ".join(part for part in parts if part)

    def label(self, key: ScoreKey) -> str:
        if self.words is not None:
            return self.words(key)
        return ", ".join(part for part in (title(key.name), self.attack(key), key.set) if part)
