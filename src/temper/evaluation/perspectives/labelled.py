"""Labelled sets beside dev, answered without perturbation and scored by the task's metric."""

from __future__ import annotations

from temper.evaluation.rows import Block
from temper.evaluation.scoring import ScoreEntry, Scoring, statistic_of


def set_entries(scoring: Scoring, block: Block) -> list[ScoreEntry]:
    """Score one set by the task's metric and the usual ones.

    A mean over sets is for who compares models, over the sets that all of them have.

    Args:
        scoring: All rows.
        block: The set's clean rows.
    """
    return [
        scoring.entry(block.condition, name, statistic=statistic_of(name, block), rows=len(block))
        for name in scoring.metrics(block)
    ]
