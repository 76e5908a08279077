"""How a report shows one perspective: its words, what sums it up, its figures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

from temper.display.cells import Comparison, Row, ScoreKey
from temper.display.charts import Figure
from temper.display.folders import Source
from temper.display.wording import described, title


class Question(StrEnum):
    """The sections of a report, in their order."""

    COLUMNS = "How do the columns compare?"
    RIGHT = "Is it right, here and elsewhere?"
    HOLDS = "Does it hold under attack and noise?"
    KNOWS = "Does it know what it does not know?"
    WRONG = "What does it get wrong?"
    INSIDE = "What changed inside?"
    COST = "What did it cost?"


METRIC = "metric"
"""Stands for the task's leading score."""


def each_condition(rows: Sequence[Row]) -> list[Row]:
    """Choose a row for each condition and set: that of the middle size.

    Args:
        rows: Those of the leading score.
    """
    sizes: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        sizes.setdefault((row.key.condition, row.key.set), []).append(row)
    return [alike[len(alike) // 2] for alike in sizes.values()]


def mean_or_first(rows: Sequence[Row]) -> list[Row]:
    """Choose a row for each condition: the mean over its sets, else the first set.

    Args:
        rows: Those of the leading score.
    """
    conditions: dict[str, list[Row]] = {}
    for row in rows:
        conditions.setdefault(row.key.condition, []).append(row)
    return [
        next((row for row in alike if row.key.over_sets), alike[0]) for alike in conditions.values()
    ]


@dataclass(frozen=True, kw_only=True, eq=False)
class View:
    """One group of scores in reports.

    Args:
        name: The perspective's name in rows and scores.
        title: Heading of the group.
        order: Position of the group; lower comes first.
        leads: Name of the score that sums it up, `METRIC` for the task's; empty if none does.
        leads_clean: Whether that score leads under the condition ``clean`` alone.
        sums_up: From the rows of the leading score to those that the overview shows.
        short: Prefix of the scores' names in the overview, if another group has the same names.
        conditions: A condition's name to words; one without is written as it is.
        unsaid: Conditions that go without saying.
        relative_to: What relative sizes are measured against.
        words: The score in words, unique within the group; None for `label`.
        minor: From all keys to those that stand in a figure and not in tables for people.
        gain: A difference in words, behind a column's name, in which ``{better}`` (or worse), its
            ``{points}``, the ``{fraction}`` of the error that it is, ``{ours}`` and ``{theirs}``,
            ``{reference}``, the ``{score}`` and the group's ``{title}`` may stand.
        question: The reader's question; groups with one question share a section of the page.
        explained: Its leading score in a sentence, for who does not know the term.
        says: What came out in sentences, which stand on the page before ``explained``; for a group
            that is not ``judged``, or whose leading score is not enough. ``Comparison.said`` makes
            one a column.
        figures: Draws what the group has, from the rows and the scores.
        counts: What n counts.
        judged: Whether its scores say how well a model holds: they enter the answer.
        ranked: Whether it has a vote in the mean ranks; needs ``judged``.
        improves: Whether it is a part of the average relative improvement.
        without_training: Condition under which the leading score stands with what any model can be
            given after training; empty if there is none.
        averaged: Whether there is a mean over its sets.
        own_rows: Whether no row counts in two of its sets, so that chances of theirs even out.
        answered: Whether its rows are answers to labeled sets as they lie.
        unchanged_texts: Whether its rows are examples though their texts were left alone.
    """

    name: str
    title: str
    order: int = 1000
    leads: str = METRIC
    leads_clean: bool = False
    sums_up: Callable[[Sequence[Row]], list[Row]] = each_condition
    short: str = ""
    conditions: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    unsaid: tuple[str, ...] = ("clean",)
    relative_to: str = "norm"
    words: Callable[[ScoreKey], str] | None = None
    minor: Callable[[Sequence[ScoreKey]], Sequence[ScoreKey]] = lambda keys: ()
    gain: str = "is {better} in {title} ({ours}, {reference} {theirs})"
    question: str = ""
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
    answered: bool = False
    unchanged_texts: bool = False

    def lead(self, metric: str) -> str:
        """Return the name of the score that sums it up.

        Args:
            metric: The task's leading score.
        """
        return metric if self.leads == METRIC else self.leads

    def is_lead(self, key: ScoreKey, metric: str) -> bool:
        """Return whether a score of it sums it up.

        Args:
            key: One of its scores.
            metric: The task's leading score.
        """
        clean = key.condition == "clean" or not self.leads_clean
        return clean and bool(self.leads) and key.name == self.lead(metric)

    def condition(self, name: str) -> str:
        """Write a condition in words; empty if it goes without saying."""
        if name in self.unsaid:
            return ""
        return self.conditions.get(name, name.replace("_", " "))

    def attack(self, key: ScoreKey) -> str:
        """Write what was done to the examples, with its parameters."""
        parts = (
            self.condition(key.condition),
            described(key.parameters, of=self.relative_to),
        )
        return " ".join(part for part in parts if part)

    def label(self, key: ScoreKey) -> str:
        """Write a score in words, unique within the group."""
        if self.words is not None:
            return self.words(key)
        return ", ".join(part for part in (title(key.name), self.attack(key), key.set) if part)


class Views:
    """All groups in the order of reports.

    Args:
        views: The groups; a perspective that is not known here stands last, under its own name.
    """

    def __init__(self, views: Iterable[View]) -> None:
        self._views = {view.name: view for view in sorted(views, key=lambda view: view.order)}

    def of(self, name: str) -> View:
        """Return the group of a perspective; a plain one that nothing leads where it is unknown."""
        return self._views.get(name) or View(name=name, title=name, leads="", ranked=False)

    def __iter__(self) -> Iterator[View]:
        """Return the known groups in order."""
        return iter(self._views.values())

    def position(self, name: str) -> tuple[int, str]:
        """Return what sorts groups: the known ones in order, then the others by name."""
        names = list(self._views)
        if name in names:
            return names.index(name), ""
        return len(names), name
