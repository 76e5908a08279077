"""Carve, compare and draw: from the splits of a source to the rows that one training sees."""

from __future__ import annotations

from dataclasses import replace

from temper.data.examples import Examples, Splits, label_counts
from temper.errors import DataError
from temper.seeding import derive_seed


def finish_splits(
    sets: Splits | Examples,
    *,
    rows: int | None,
    eval_rows: int | None,
    drop_overlap: bool,
    dev_share: float,
    seed: int,
) -> Splits:
    """Turn a source's splits into the rows of one training, and say what was done.

    Args:
        sets: The splits; train alone where the source has no evaluation split.
        rows: Train rows wanted, or None for all.
        eval_rows: Evaluation rows wanted, or None for all.
        drop_overlap: Remove train rows that are also in an evaluation split.
        dev_share: Share of train to carve a missing dev split from.
        seed: Seed of the draws.

    Returns:
        The sets with all notices.

    Raises:
        DataError: If train has one class only, class indices have gaps, or no row is left.
    """
    notices: list[str] = []
    if isinstance(sets, Examples):
        _check_classes(sets)
        sets = carve(sets, dev_share, seed=seed)
    else:
        _check_classes(sets.train)
    notices += sets.notices
    evaluations = [split for split in (sets.dev, sets.test) if split is not None]
    train = sets.train
    if drop_overlap:
        for split in evaluations:
            train, dropped = _without(train, split)
            if dropped:
                notices.append(
                    f"{_rows(dropped)} dropped from train because their text is in {split.name}"
                )
        _check_classes(train)
    present = len(label_counts(train)) if train.kind == "classification" else 1
    if rows is not None and rows < present:
        raise DataError(
            f"rows must be >= {present}, one for each class of {_origin(train)}, got {rows}."
        )
    train = _draw(train, rows, seed=seed, notices=notices)
    dev = _draw(sets.dev, eval_rows, seed=seed, notices=notices)
    for split in (dev, *evaluations[1:]):
        shared = len(train.overlap(split))
        if shared:
            verb = "is" if shared == 1 else "are"
            notices.append(
                f"{shared} train row{'' if shared == 1 else 's'} {verb} also in {split.name}"
            )
    for split in (train, *evaluations):
        notices += split.notices
        empty = sum(not text.strip() for text in split.text)
        if empty:
            notices.append(f"{_rows(empty)} of {split.name} with an empty text")
    # Train and dev may carry the same notice; once is enough.
    return replace(sets, train=train, dev=dev, notices=tuple(dict.fromkeys(notices)))


def carve(train: Examples, share: float, *, seed: int) -> Splits:
    """Carve a dev split from train, each class in its share.

    Equal texts stay on one side where they can.

    Args:
        train: The rows.
        share: Share of the rows that become dev, in (0, 1); at least one row of each class stays
            in train.
        seed: Seed of the draw.

    Returns:
        Train without the carved rows, dev with them, and a notice.

    Raises:
        DataError: If there are too few rows for that.
    """
    labels = train.labels if train.kind == "classification" and train.labels else [0] * len(train)
    kept = {label: index for index, label in enumerate(labels)}
    last = set(kept.values())
    free = [index for index in range(len(train)) if index not in last]
    if not free:
        raise DataError(
            f"{_origin(train)} has {_rows(len(train))} in {len(kept)} classes, too few to carve "
            "a dev split "
            "from. Add rows or a dev file."
        )
    size = min(max(1, round(share * len(train))), len(free))
    drawn = train.select(free).draw(size, seed=derive_seed(seed, "carve"))
    dev_rows = [free[index] for index in drawn]
    chosen = set(dev_rows)
    rest = [index for index in range(len(train)) if index not in chosen]
    dev = replace(train.select(dev_rows), name="dev", notices=())
    notice = (
        f"no evaluation split found: dev is {_rows(size)} carved from train "
        f"(seed {seed}, share {share:g})"
    )
    return Splits(train.select(rest), dev, None, (notice,))


def _without(train: Examples, split: Examples) -> tuple[Examples, int]:
    shared = set(train.overlap(split))
    if len(shared) == len(train):
        raise DataError(
            f"Every train row is also in {split.name}, so drop_overlap leaves none to train on. "
            "Use other files or leave drop_overlap off."
        )
    if not shared:
        return train, 0
    return train.select(i for i in range(len(train)) if i not in shared), len(shared)


def _draw(examples: Examples, n: int | None, *, seed: int, notices: list[str]) -> Examples:
    if n is None:
        return examples
    if n > len(examples):
        notices.append(f"{n} rows of {examples.name} asked for, all {len(examples)} are used")
    return examples.sample(n, seed=seed)


def _check_classes(train: Examples) -> None:
    if train.kind != "classification":
        return
    counts = label_counts(train)
    if len(counts) < 2:
        only = next(iter(counts))
        named = f"{only}" if train.label_names is None else f"{train.label_names[only]!r}"
        raise DataError(
            f"{_origin(train)}: train must have at least two classes, got only {named}. "
            "Use other rows, another label_column, or kind regression."
        )
    if train.label_names is None:
        gaps = [label for label in range(max(counts)) if label not in counts][:5]
        if gaps:
            raise DataError(
                f"{_origin(train)}: integer labels must run from 0 to C - 1 without a gap, got "
                f"{', '.join(map(str, list(counts)[:8]))}; {gaps[0]} has no row. Renumber them, "
                "name all labels in "
                'the file dataset.json beside the data: {"label_names": [...]}, or set kind to '
                "regression."
            )


def _origin(examples: Examples) -> str:
    return str(examples.source.get("path") or examples.source.get("id") or examples.name)


def _rows(count: int) -> str:
    return f"{count} row{'' if count == 1 else 's'}"
