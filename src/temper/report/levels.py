"""Scores of one model on the scale from guessing to a perfect score."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache

from temper.display.cells import Comparison, Row
from temper.display.wording import title, within
from temper.files import asset
from temper.functional.scores import SCORES
from temper.report.gains import Rating, judged_rows, representative

USUAL = "plain fine-tuning of MiniLM on 3,000 rows of SST-2"
"""What assets/usual.json was measured on, by ``python -m dev.benchmarks.usual``."""


@dataclass(frozen=True)
class Level(Rating):
    """One model's score on the scale from guessing to perfect.

    Args:
        fraction: Position in percent: 0 is guessing, 100 perfect; None if guessing has no known
            score.
        usual: The score of `USUAL`, for orientation; None if not measured.
    """

    fraction: float | None
    low: float | None = None
    high: float | None = None
    usual: float | None = None

    @property
    def text(self) -> str:
        """The score with its unit and interval."""
        value = self.row.unit.with_sign(self.row.text(self.column))
        return f"{value} {self.row.interval_text(self.column)}".strip()

    @property
    def score(self) -> str:
        return within(title(self.row.key.name))

    @property
    def standing(self) -> str:
        """``fraction`` in words; empty if it is None."""
        if self.fraction is None:
            return ""
        if self.fraction < 0:
            return "worse than guessing"
        return f"{self.fraction:.0f}% of the way from guessing to perfect"

    @property
    def detail(self) -> str:
        messages = [self.row.heading(), self.text, *([self.standing] if self.standing else [])]
        if self.usual is not None:
            messages.append(f"for orientation, {USUAL}: {self.usual:.0f}%")
        return "; ".join(messages).replace("-", "\u2212")

    @staticmethod
    def position(fraction: float) -> float:
        """Return where to draw ``fraction`` on the scale, in percent of the width."""
        return round(max(0.0, min(100.0, fraction)), 2)


@cache
def _usual() -> dict[str, float]:
    result = json.loads(asset("temper.report", "usual.json"))
    return {str(name): float(fraction) for name, fraction in result.items()}


def condition_of(row: Row) -> str:
    """Return the condition of a score in words, without its set."""
    key = row.key
    # The effort of an attack matters less than its radius.
    radius = key.parameters.without("steps", "restarts")
    return " ".join((key.perspective, key.condition, key.name, radius.to_text()))


def levels(comparison: Comparison, column: str) -> tuple[Level, ...]:
    """Return the level of a method on each perspective, for the representative primary score."""
    result: list[Level] = []
    for rows in judged_rows(comparison):
        scored = []
        for row in rows:
            cell, name = row.cells[column], row.key.name
            if cell.mean is None:
                continue
            mean, low, high = (
                percent_of_way(name, value, classes=comparison.classes, metric=comparison.metric)
                for value in (cell.mean, cell.low, cell.high)
            )
            usual = None if mean is None else _usual().get(condition_of(row))
            scored.append(Level(row, column, mean, low, high, usual))
        result += representative(scored)
    return tuple(result)


def percent_of_way(name: str, value: float | None, *, classes: int, metric: str) -> float | None:
    """Return how far a score is on the way from guessing to perfect, in percent.

    It is negative if the score is worse than guessing, and None if either is unknown. ``classes``
    and ``metric`` are the number of classes and the primary metric of the task.
    """
    facts = SCORES.get(name)
    if facts is None or facts.perfect is None or value is None:
        return None
    guessed = facts.guessed(classes, metric)
    if guessed is None or guessed == facts.perfect:
        return None
    return 100 * (value - guessed) / (facts.perfect - guessed)
