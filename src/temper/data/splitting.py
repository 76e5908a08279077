"""Prepare the rows of a training run: validation set, overlap, drawn rows and folds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from temper.data.columns import OPTIONS
from temper.data.examples import Examples, Splits, label_counts
from temper.data.settings import DataSettings
from temper.errors import DataError
from temper.seeding import derive_seed


def finish_splits(
    sets: Splits | Examples, settings: DataSettings, *, unlabeled: Examples | None = None
) -> Splits:
    """Return the rows of a training run: dev is held out if missing, overlap reported, rows drawn.

    ``sets`` is train alone if the source has no split to evaluate on.
    """
    notices: list[str] = []
    if isinstance(sets, Examples):
        _check_classes(sets)
        sets = carve(sets, settings.dev_fraction, seed=settings.seed)
    else:
        _check_classes(sets.train)
    notices += sets.notices
    evaluations = [split for split in (sets.dev, sets.test) if split is not None]
    train = sets.train
    if settings.drop_overlap:
        train = _without_overlap(train, evaluations, notices=notices)
        _check_classes(train)
    present = len(label_counts(train)) if train.kind == "classification" else 1
    if settings.rows is not None and settings.rows < present:
        raise DataError(
            f"rows must be >= {present}, one for each class of {train.origin}, got {settings.rows}."
        )
    train = _draw(train, settings.rows, seed=settings.seed, notices=notices)
    dev = _draw(sets.dev, settings.eval_rows, seed=settings.seed, notices=notices)
    evaluated = [dev, *evaluations[1:]]
    notices += _shared(train, evaluated)
    for split in (train, *evaluations):
        notices += [*split.notices, *_empty(split)]
    if unlabeled is not None:
        messages: list[str] = []
        if settings.drop_overlap:
            unlabeled = _without_overlap(unlabeled, evaluations, notices=messages)
        unlabeled = _draw(unlabeled, settings.unlabeled_rows, seed=settings.seed, notices=messages)
        messages += [*_shared(unlabeled, evaluated), *_empty(unlabeled)]
        messages.insert(0, f"{_rows(len(unlabeled))} of unlabeled text from {unlabeled.origin}")
        unlabeled = replace(unlabeled, notices=tuple(messages))
        notices += messages
    # Train and dev may carry the same notice; once is enough.
    said_once = tuple(dict.fromkeys(notices))
    return replace(sets, train=train, dev=dev, unlabeled=unlabeled, notices=said_once)


def carve(train: Examples, fraction: float, *, seed: int) -> Splits:
    """Hold out a dev set from train, stratified by class, with a notice.

    ``fraction`` of the rows, in (0, 1), is held out. At least one row of each class stays in train.
    Rows with equal texts stay together if possible.
    """
    kept = {label: index for index, label in enumerate(train.strata)}
    rows = np.arange(len(train))
    free = np.delete(rows, list(kept.values()))
    if not len(free):
        raise DataError(
            f"{train.origin} has {_rows(len(train))} in {len(kept)} classes, too few to hold out a "
            "dev split. Add rows or a dev file."
        )
    size = min(max(1, round(fraction * len(train))), len(free))
    drawn = train.select(free).draw(size, seed=derive_seed(seed, "carve"))
    dev_rows = free[drawn]
    dev = replace(train.select(dev_rows), name="dev", notices=())
    notice = (
        f"{_rows(size)} of train {'is' if size == 1 else 'are'} held out as validation rows "
        f"(seed {seed}, fraction {fraction:g})."
    )
    return Splits(train.select(np.delete(rows, dev_rows)), dev, None, (notice,))


MIN_TEXTS = 50
"""Minimum number of distinct texts for cross-validation."""


def check_folds(rows: Examples) -> None:
    """Raise a `DataError` if there are too few distinct texts for cross-validation."""
    # Rows with equal texts are in one fold.
    texts = len(set(rows.rows))
    if texts < MIN_TEXTS:
        raise DataError(
            f"{rows.origin} has {texts} rows with different texts, too few to compare models on "
            f"folds of them. Pass at least {MIN_TEXTS}."
        )


def fold_of_rows(train: Examples, count: int, *, seed: int) -> list[int]:
    """Return the cross-validation fold of each row, 0 to ``count`` - 1, stratified by class.

    Folds depend on hashes of the texts, not on the order of the file. Rows with equal texts are in
    one fold. ``count`` is >= 2.
    """
    first: dict[str, float] = {}
    for row, label in zip(train.rows, train.strata, strict=True):
        first.setdefault(row, label)
    of_row: dict[str, int] = {}
    for label in sorted(set(first.values())):
        texts = [row for row in first if first[row] == label]
        texts.sort(key=lambda row: (derive_seed(seed, "fold", row), row))
        # A class begins at the fold at which the previous one ended, so that sizes are equal.
        of_row |= {row: (len(of_row) + index) % count for index, row in enumerate(texts)}
    return [of_row[row] for row in train.rows]


def folds(train: Examples, count: int, *, seed: int) -> list[Examples]:
    """Split rows into cross-validation folds (see `fold_of_rows`).

    Example:
        >>> toy = Examples("toy", list("abcdef"), labels=[0, 1] * 3, kind="classification")
        >>> [len(fold) for fold in folds(toy, 3, seed=0)]
        [2, 2, 2]
    """
    of_row = np.asarray(fold_of_rows(train, count, seed=seed))
    return [train.select(np.flatnonzero(of_row == fold)) for fold in range(count)]


def _without_overlap(
    rows: Examples, evaluations: Sequence[Examples], *, notices: list[str]
) -> Examples:
    for split in evaluations:
        shared = set(rows.overlap(split))
        if len(shared) == len(rows):
            raise DataError(
                f"Every {rows.name} row is also in {split.name}, so drop_overlap leaves none to "
                "train on. Use other files or leave drop_overlap off."
            )
        if shared:
            rows = rows.select(i for i in range(len(rows)) if i not in shared)
            notices.append(
                f"{_rows(len(shared))} dropped from {rows.name} because their text is in "
                f"{split.name}"
            )
    return rows


def _shared(rows: Examples, evaluated: Sequence[Examples]) -> list[str]:
    result = []
    for split in evaluated:
        shared = len(rows.overlap(split))
        if shared:
            some = "row is" if shared == 1 else "rows are"
            result.append(
                f"{shared} {rows.name} {some} also in {split.name} "
                "(--set data.drop_overlap=true leaves such rows out)"
            )
    return result


def _empty(rows: Examples) -> list[str]:
    empty = sum(not text or text.isspace() for text in rows.text)
    return [f"{_rows(empty)} of {rows.name} with an empty text"] if empty else []


def _draw(examples: Examples, n: int | None, *, seed: int, notices: list[str]) -> Examples:
    if n is None:
        return examples
    if n > len(examples):
        notices.append(f"{n} rows of {examples.name} requested, all {len(examples)} are used")
    return examples.sample(n, seed=seed)


def _check_classes(train: Examples) -> None:
    if train.kind != "classification":
        return
    counts = label_counts(train)
    if len(counts) < 2:
        only = next(iter(counts))
        named = f"{only}" if train.label_names is None else f"{train.label_names[only]!r}"
        raise DataError(
            f"{train.origin}: train must have at least two classes, got only {named}. "
            f"Use other rows, another {OPTIONS['label']}, or --set data.kind=regression."
        )


def _rows(count: int) -> str:
    return f"{count} row{'' if count == 1 else 's'}"
