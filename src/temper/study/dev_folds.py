"""The dev folds that judge a race: carved from the training rows, apart from the reported ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from temper.data.examples import Examples, Splits
from temper.data.splitting import folds
from temper.errors import DataError
from temper.study.work import StudyFolder

PARTS: Final = 5
FOLDS: Final = 3
"""Parts that the training rows are cut into, and how many of them judge."""
TRIAL_ROWS: Final = 1000
FOLD_ROWS: Final = 500
"""Rows that a trial trains on, and is judged on, at most."""
LEAST_ROWS: Final = 50


def dev_folds(splits: Splits, *, seed: int) -> list[Splits]:
    """Carve the folds that trials are judged on from the training rows.

    Args:
        splits: The rows; ``dev`` are those that are reported, which no fold may hold.
        seed: Seed of the draws.

    Returns:
        The rows to train on and, as ``dev``, to judge on, of each fold.

    Raises:
        DataError: There are too few rows, or a fold holds a reported row.
    """
    if len(splits.train) < LEAST_ROWS:
        raise DataError(
            f"A race needs at least {LEAST_ROWS} training rows for its dev folds, got "
            f"{len(splits.train)}. Give more rows."
        )
    parts = folds(splits.train, PARTS, seed=seed)
    found = []
    for number in range(FOLDS):
        held = set(parts[number].rows)
        rest = splits.train.select(
            place for place, row in enumerate(splits.train.rows) if row not in held
        )
        judged = parts[number].sample(min(FOLD_ROWS, len(parts[number])), seed=seed)
        fold = Splits(
            rest.sample(min(TRIAL_ROWS, len(rest)), seed=seed),
            replace(judged, name="dev"),
            unlabeled=splits.unlabeled,
        )
        check_apart(fold, [splits.dev, *([splits.test] if splits.test is not None else [])])
        found.append(fold)
    return found


def check_apart(fold: Splits, reported: Sequence[Examples]) -> None:
    """Refuse a fold with rows that are reported, or that are judged on and trained on.

    Args:
        fold: The rows to train on and to judge on.
        reported: The rows that the winner is judged on.

    Raises:
        DataError: A text is on both sides.
    """
    for name, rows in (("train", fold.train), ("dev", fold.dev)):
        shared = sum(len(rows.overlap(other)) for other in reported)
        if shared:
            raise DataError(
                f"{shared} {name} rows of a dev fold are reported rows too: the race would look at "
                "what it is judged on. Take these texts out of the training rows."
            )
    if shared := len(fold.dev.overlap(fold.train)):
        raise DataError(f"{shared} rows of a dev fold are trained on too.")


@dataclass(frozen=True)
class FoldFolder(StudyFolder):
    """The folder of a trial's run on a dev fold.

    Args:
        fold: Number of the fold.
    """

    fold: int

    def splits(self) -> Splits:
        """Load the rows that are trained on and judged."""
        return dev_folds(super().splits(), seed=self.config.data.seed)[self.fold]
