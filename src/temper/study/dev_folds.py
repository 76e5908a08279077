"""Dev folds of a search: cut from the training rows, disjoint from the reported rows."""

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
"""Parts of the training rows, and how many of them evaluate trials."""
TRIAL_ROWS: Final = 1000
FOLD_ROWS: Final = 500
"""Most rows a trial trains and is evaluated on."""
LEAST_ROWS: Final = 50


def dev_folds(splits: Splits, *, seed: int) -> list[Splits]:
    """Cut the folds that evaluate trials from the training rows.

    Args:
        splits: The rows; no fold may contain the reported ones, ``dev`` and ``test``.
        seed: Seed of the draws.

    Returns:
        For each fold, the rows to train on and, as ``dev``, the rows to evaluate on.

    Raises:
        DataError: There are too few rows, or a fold contains a reported row.
    """
    if len(splits.train) < LEAST_ROWS:
        raise DataError(
            f"The search needs at least {LEAST_ROWS} training rows for its dev folds, got "
            f"{len(splits.train)}. Give more rows."
        )
    parts = folds(splits.train, PARTS, seed=seed)
    found = []
    for number in range(FOLDS):
        held = set(parts[number].rows)
        rest = splits.train.select(
            index for index, row in enumerate(splits.train.rows) if row not in held
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
    """Refuse a fold with reported rows, or with rows in both of its parts.

    Args:
        fold: The rows to train on and to evaluate on.
        reported: The rows of the final comparison.

    Raises:
        DataError: A text is on both sides.
    """
    for name, rows in (("train", fold.train), ("dev", fold.dev)):
        shared = sum(len(rows.overlap(other)) for other in reported)
        if shared:
            raise DataError(
                f"{shared} {name} rows of a dev fold are reported rows too, so the search would "
                "use test rows. Remove these texts from the training rows."
            )
    if shared := len(fold.dev.overlap(fold.train)):
        raise DataError(f"{shared} rows of a dev fold are also training rows of the fold.")


@dataclass(frozen=True)
class FoldFolder(StudyFolder):
    """The study folder of a trial's run on a dev fold.

    Args:
        fold: Number of the fold.
    """

    fold: int

    def splits(self) -> Splits:
        """Load the rows of the fold."""
        return dev_folds(super().splits(), seed=self.config.data.seed)[self.fold]
