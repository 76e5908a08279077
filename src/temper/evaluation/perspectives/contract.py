"""The contract of a perspective."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from temper.errors import unknown
from temper.evaluation.measurement import Measurement
from temper.evaluation.rows import Block
from temper.evaluation.scoring import Entry, Scoring
from temper.functional.scores import SCORES


@dataclass(frozen=True)
class Perspective:
    """One way of looking at a classifier.

    Args:
        name: Its name in rows, scores and settings.
        summary: One line for lists.
        scores: Names of its scores, keys of `temper.functional.scores.SCORES`; the first leads.
        rows: From a measurement to blocks of rows; may be empty where others' rows are scored.
        score: From all rows of an evaluation to score entries; it sees rows and nothing else.
        needs_gradients: Whether it perturbs embeddings, which a bare function cannot offer.
    """

    name: str
    summary: str
    scores: tuple[str, ...]
    rows: Callable[[Measurement], Iterable[Block]]
    score: Callable[[Scoring], list[Entry]]
    needs_gradients: bool = False

    def __post_init__(self) -> None:
        lacking = [name for name in self.scores if name not in SCORES]
        if lacking:
            raise ValueError(unknown("score", lacking[0], SCORES))

    @property
    def directions(self) -> dict[str, bool]:
        """Whether higher is better, by score."""
        return {name: SCORES[name].higher_is_better for name in self.scores}
