"""Read ``paired.json``: what one common seed says of two columns, over its examples."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pydantic import Field

from temper.display.cells import ScoreKey
from temper.display.records import NamedRecord, Record, parse

FILE = "paired.json"


class PairedScoreRecord(NamedRecord):
    """Hold the interval of one score's difference against the reference; n examples."""

    low: float
    high: float
    p: float
    n: int


class PairedColumnRecord(Record):
    """Hold the intervals of one column at its one seed."""

    seed: int
    scores: list[PairedScoreRecord] = Field(default_factory=list)


class PairedRecord(Record):
    """Hold ``paired.json``."""

    resamples: int
    columns: dict[str, PairedColumnRecord] = Field(default_factory=dict)


@dataclass(frozen=True)
class Paired:
    """Say how a column differs from the reference over the examples of one seed.

    Args:
        seed: The seed that both have.
        low, high: 95 % interval of the difference.
        p: Two-sided p of the difference.
        examples: Number of examples.
    """

    seed: int
    low: float
    high: float
    p: float
    examples: int


def read_paired(folder: Path) -> dict[tuple[str, ScoreKey], Paired]:
    """Read the differences over examples that a study kept.

    Args:
        folder: The study's folder.

    Returns:
        By column and score; empty where the study kept none.

    Raises:
        CheckpointError: The file is damaged.
    """
    file = folder / FILE
    if not file.exists():
        return {}
    return {
        (column, ScoreKey.of(score)): Paired(found.seed, score.low, score.high, score.p, score.n)
        for column, found in parse(file, PairedRecord).columns.items()
        for score in found.scores
    }
