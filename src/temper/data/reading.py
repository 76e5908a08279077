"""Read the splits of an opened source into sets: train, dev and test that fit each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from temper.data.columns import (
    OPTIONS,
    Columns,
    FoundColumns,
    find_columns,
    read_names,
    read_texts,
    text_faults,
)
from temper.data.examples import Examples, Splits
from temper.data.folders import (
    EVALUATION_SPLITS,
    STANDALONE_SPLITS,
    choose_split,
    first_split,
    named_labels,
    split_files,
)
from temper.data.formats import read_table
from temper.data.labels import LabelKind, label_faults, read_labels
from temper.data.settings import DataSettings
from temper.data.table import Table, TableOptions
from temper.errors import DataError


@dataclass(frozen=True)
class Opened:
    """A source whose splits are known and not yet read.

    Args:
        title: What messages call it.
        splits: Reads a split's table, by name.
        label_names: The classes' names by index, where something beside the rows says them.
        info: What else there is to say; ``name`` is that of the file, folder or configuration.
        single: Whether it is one file.
        options: How its tables are read.
        known: Names that the columns of other tables of the task have; these are looked for before
            the usual ones.
    """

    title: str
    splits: dict[str, Callable[[], Table]]
    label_names: tuple[str, ...] | None = None
    info: dict[str, Any] = field(default_factory=dict)
    single: bool = False
    options: TableOptions = field(default_factory=TableOptions)
    known: tuple[Columns, ...] = ()


def open_folder(folder: Path, options: TableOptions | None = None) -> Opened:
    """Open a folder with one file a split.

    Args:
        folder: The folder.
        options: How its tables are read.

    Raises:
        DataError: If it holds no data, or its ``dataset.json`` is wrong.
    """

    def reader(path: Path) -> Callable[[], Table]:
        return lambda: read_table(path, options)

    options = options or TableOptions()
    splits = {name: reader(path) for name, path in split_files(folder).items()}
    info = {"name": folder.resolve().name}
    return Opened(str(folder), splits, named_labels(folder), info, options=options)


def read_split(
    opened: Opened,
    split: str,
    *,
    name: str,
    columns: Columns,
    kind: LabelKind | None = None,
    labelled: bool = True,
) -> Examples:
    """Read one split; labels that are not there leave the set unlabelled.

    Args:
        opened: The source.
        split: One of its splits, by the source's own name.
        name: Name of the set.
        columns: Names of the columns; None looks for the usual ones.
        kind: What the labels are; None decides by the values.
        labelled: Whether labels are read where there are some.

    Raises:
        DataError: If the split has no rows, or a column or value is wrong.
    """
    table = opened.splits[split]()
    if not table.size:
        raise DataError(f"{table.title} has no rows.")
    chosen = find_columns(table, columns, labelled=labelled, known=opened.known)
    names = None if not labelled else _one_naming(opened, table, chosen.label)
    if opened.options.skip_bad_rows:
        table = _readable(table, chosen, names=names, kind=kind, labelled=labelled)
    source = {**table.source, "split": split}
    notices = table.notices
    labels: list[int] | list[float] | None = None
    own_kind: Literal["classification", "regression", "unlabelled"] = "unlabelled"
    if labelled and chosen.label is not None:
        read = read_labels(table, chosen.label, names=names, kind=kind)
        labels, names, own_kind = read.values, read.names, read.kind
        notices = (*notices, *read.notices)
    return Examples(
        name=name,
        text=read_texts(table, chosen.text),
        text_pair=None if chosen.text_pair is None else read_texts(table, chosen.text_pair),
        labels=labels,
        label_names=names,
        kind=own_kind,
        source=source,
        notices=notices,
        group=read_names(table, chosen.group),
        pair=read_names(table, chosen.pair_id),
        numbers=table.numbers,
    )


def _readable(
    table: Table,
    chosen: FoundColumns,
    *,
    names: tuple[str, ...] | None,
    kind: LabelKind | None,
    labelled: bool,
) -> Table:
    """Leave out the rows whose text or label cannot be read.

    Raises:
        DataError: If no row is left.
    """
    bad: dict[int, str] = {}
    if labelled and chosen.label is not None:
        bad |= label_faults(table, chosen.label, names=names, kind=kind)
    for column in (chosen.text_pair, chosen.text):
        if column is not None:
            bad |= text_faults(table, column)
    if len(bad) == table.size:
        raise DataError(
            f"{table.where(0)}: no row has a text and a label that can be read, this one holds "
            f"{bad[0]}. Name the columns with {OPTIONS['text']} and {OPTIONS['label']}."
        )
    return table.without(dict(sorted(bad.items())))


def _one_naming(opened: Opened, table: Table, column: str | None) -> tuple[str, ...] | None:
    if column is None:
        return None
    inside, beside = table.label_names.get(column), opened.label_names
    if inside is not None and beside is not None and inside != beside:
        raise DataError(
            f"{table.title} names its labels {list(inside)}, but the dataset.json beside it "
            f"names them {list(beside)}. Make them agree."
        )
    return beside or inside


def read_splits(settings: DataSettings, opened: Opened) -> Splits | Examples:
    """Read train, dev and test; train alone where there is nothing to evaluate on.

    Args:
        settings: Which splits and columns.
        opened: The source.

    Raises:
        DataError: If a split is missing, has no labels, or they do not fit each other.
    """
    train_split = choose_split(opened.splits, settings.train_split, title=opened.title)
    train = read_split(
        opened, train_split, name="train", columns=settings.columns, kind=settings.kind
    )
    if train.labels is None or train.kind == "unlabelled":
        raise DataError(
            f"{opened.title}: split {train_split!r} has no labels to train on. Its columns are "
            f"{', '.join(opened.splits[train_split]().names)}: give the label's with "
            f"{OPTIONS['label']}; the usual names are label, labels, target, score, class."
        )
    others = {name: read for name, read in opened.splits.items() if name != train_split}
    if settings.eval_split is not None:
        dev_split: str | None = choose_split(others, settings.eval_split, title=opened.title)
    else:
        dev_split = first_split(others, EVALUATION_SPLITS)
    if dev_split is None:
        return train
    dev = read_like(train, opened, dev_split, name="dev", settings=settings)
    if dev.labels is None and settings.eval_split is None and dev_split == "test":
        # A test split without labels is a leaderboard's: nothing can be measured on it.
        return train
    if dev.labels is None:
        raise DataError(
            f"{opened.title}: split {dev_split!r} has no labels to evaluate on. Choose another "
            "with --eval-split (`eval_split`)."
        )
    test = None
    notices: tuple[str, ...] = ()
    if "test" in others and dev_split != "test":
        test = read_like(train, opened, "test", name="test", settings=settings)
    if settings.eval_split is None and dev_split == "test":
        notices = (
            f"{opened.title} has no dev split: its test split is evaluated, and stands as 'dev'.",
        )
    return Splits(train, dev, test, notices)


def read_like(
    train: Examples, opened: Opened, split: str, *, name: str, settings: DataSettings
) -> Examples:
    """Read another split of the source that train came from, with train's labels and columns.

    Args:
        train: The training rows.
        opened: Their source.
        split: One of its splits, by the source's own name.
        name: Name of the set.
        settings: Which columns.

    Raises:
        DataError: If the split does not fit train.
    """
    kind: LabelKind | None = None if train.kind == "unlabelled" else train.kind
    examples = read_split(opened, split, name=name, columns=settings.columns, kind=kind)
    if (examples.text_pair is None) != (train.text_pair is None):
        raise DataError(
            f"{opened.title}: only one of splits {train.source['split']!r} and {split!r} has a "
            "second text. "
            f"Give {OPTIONS['text']} and {OPTIONS['text_pair']}."
        )
    if examples.kind != "classification":
        return examples
    if train.label_names is not None:
        return examples.map_labels(train.label_names)
    if examples.label_names is None and examples.classes > train.classes:
        raise DataError(
            f"{opened.title}: split {split!r} has label {examples.classes - 1}, but the highest "
            f"label of {train.source['split']!r} is {train.classes - 1}. Remove these "
            "rows or name all labels in "
            'the file dataset.json beside the data: {"label_names": [...]}.'
        )
    return examples


def read_set(
    opened: Opened,
    *,
    split: str | None,
    columns: Columns,
    kind: LabelKind | None,
    labelled: bool,
    order: Sequence[str] = STANDALONE_SPLITS,
) -> Examples:
    """Read one set of a source.

    Args:
        opened: The source.
        split: The split; None takes the first of ``order``.
        columns: Names of the columns; None looks for the usual ones.
        kind: What the labels are; None decides by the values.
        labelled: Whether labels are read where there are some.
        order: Splits to look for.

    Returns:
        The set, named after its source.

    Raises:
        DataError: If there is no such split, or it cannot be read.
    """
    name = str(opened.info["name"])
    if split is not None:
        found: str | None = choose_split(opened.splits, split, title=opened.title)
        name = name if opened.single else f"{name}@{found}"
    else:
        found = first_split(opened.splits, order)
    if found is None:
        none = "no split train" if order == ("train",) else "none of the splits test, dev, train"
        raise DataError(
            f"{opened.title} has {none}; it has "
            f"{', '.join(sorted(opened.splits))}. Name one: {opened.title}@SPLIT."
        )
    return read_split(opened, found, name=name, columns=columns, kind=kind, labelled=labelled)
