"""Differences of two models on the same rows: what one seed can say, over its examples.

Shares of rows have a closed form; of other scores both models' see the same resamples of the rows,
so that what makes a row hard for both cancels.
An interval of this kind says how the two *models* compare on other rows of the kind, and nothing of
other seeds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from temper.errors import CheckpointError
from temper.evaluation import perspectives
from temper.evaluation.rows import Block, Condition, to_blocks
from temper.evaluation.scoring import ScoreEntry, Scoring
from temper.functional.intervals import Statistic, difference_interval

RESAMPLES = 10_000


@dataclass(frozen=True)
class _Statistics(Scoring):
    """A scoring that keeps what names each score, its statistic and rows, and draws no resample."""

    taken: dict[tuple[Condition, str], tuple[ScoreEntry, Statistic, int]] = field(
        default_factory=dict
    )

    def entry(
        self,
        condition: Condition,
        name: str,
        *,
        statistic: Statistic,
        rows: int,
        higher_is_better: bool | None = None,
    ) -> ScoreEntry:
        """Keep the statistic of a score."""
        made = self.undefined(
            condition, name, reason="not drawn", rows=rows, higher=higher_is_better
        )
        names = ("perspective", "set", "condition", "parameters", "name")
        named = {part: made[part] for part in names}
        self.taken[condition, name] = (named, statistic, rows)
        return made


def paired_differences(
    rows: pa.Table,
    reference: pa.Table,
    metric: str,
    *,
    chosen: Sequence[str],
    seed: int,
    resamples: int = RESAMPLES,
) -> list[dict[str, Any]]:
    """Compare two evaluations of the same rows, score by score.

    Args:
        rows: One model's ``rows.parquet``.
        reference: That of the model to compare with.
        metric: The task's leading score.
        chosen: Names of the perspectives.
        seed: Seed of the bootstrap.
        resamples: Resamples behind the interval of a score that is no share, >= 1.

    Returns:
        One mapping for each score that both have: the fields that name it, ``low`` and ``high``
        (95 % interval of the first less the second), ``p`` and ``n``; no mapping where the
        difference is undefined.

    Raises:
        CheckpointError: The two were measured on different rows.

    References:
        Efron and Tibshirani, "An Introduction to the Bootstrap", 1993, ch. 8.3.
    """
    blocks, others = to_blocks(rows), to_blocks(reference)
    _check_same(blocks, others)
    first, second = (_statistics(found, metric, chosen) for found in (blocks, others))
    found = []
    for key in [key for key in first if key in second]:
        (named, statistic, n), (_, other, others_n) = first[key], second[key]
        if n != others_n:
            continue
        interval = difference_interval(statistic, other, n, resamples=resamples, seed=seed)
        if interval.low is not None:
            ends = {"low": interval.low, "high": interval.high}
            found.append({**named, **ends, "p": interval.p, "n": n})
    return found


def _statistics(
    blocks: Sequence[Block], metric: str, chosen: Sequence[str]
) -> dict[tuple[Condition, str], tuple[ScoreEntry, Statistic, int]]:
    scoring = _Statistics(blocks, metric, resamples=0)
    for name in perspectives.names():
        if name in chosen and perspectives.perspective(name).paired:
            perspectives.perspective(name).score(scoring)
    return scoring.taken


def _check_same(blocks: Sequence[Block], others: Sequence[Block]) -> None:
    """Refuse two evaluations whose blocks of one condition hold other rows."""
    theirs = {block.condition: block.row for block in others}
    for block in blocks:
        row = theirs.get(block.condition)
        if row is not None and row != block.row:
            raise CheckpointError(
                f"The two models were measured on different rows of set {block.condition.set!r} "
                f"({block.condition.perspective}), so their scores cannot be paired. Evaluate "
                "both on the same data with the same settings."
            )
