"""Find the splits of a source and read them into sets: train, dev and test that fit each other."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from temper.data.clones import DESCRIPTIONS, TableFiles
from temper.data.columns import (
    OPTIONS,
    Columns,
    FoundColumns,
    LabelColumn,
    LabelKind,
    Labels,
    find_columns,
    read_names,
    read_texts,
    text_faults,
)
from temper.data.examples import Examples, Splits
from temper.data.formats import TableFile, format_of, stem_of
from temper.data.settings import DataSettings
from temper.data.stored import TextWriter, ValueWriter
from temper.data.table import Table, TableOptions
from temper.errors import DataError, unknown

Value = TypeVar("Value")

# Names of one and the same split; the first is how messages call it.
SAME_SPLIT = (
    ("train", "training"),
    ("dev", "validation", "valid", "val", "eval"),
    ("dev_matched", "validation_matched"),
    ("dev_mismatched", "validation_mismatched"),
)
EVALUATION_SPLITS = ("dev", "dev_matched", "test")
ALL = "all"
"""What rows that are not split are called; they are trained on where there is no train split."""
CARVE = "carve"
"""``eval_split`` that takes rows from train, whatever other splits there are."""
STANDALONE_SPLITS = ("test", "dev", "dev_matched", "train")


def split_files(folder: Path) -> dict[str, Path]:
    """List a folder's data files by split, ``train`` for ``train.csv.gz``.

    Args:
        folder: The folder.

    Returns:
        Files by name without format, sorted.

    Raises:
        DataError: If there are none, or two files claim one split.
    """
    found: dict[str, Path] = {}
    for path in sorted(folder.iterdir()):
        hidden = path.name.startswith(".") or path.name in DESCRIPTIONS
        if hidden or format_of(path) is None or not path.is_file():
            continue
        stem = stem_of(path)
        if stem in found:
            raise DataError(
                f"{folder} holds split {stem!r} twice: {found[stem].name} and {path.name}. "
                "Remove one."
            )
        found[stem] = path
    if not found:
        raise DataError(
            f"{folder} holds no data: expected train.csv, dev.jsonl.gz, test.parquet or the like."
        )
    return found


def choose_split(splits: Mapping[str, Value], name: str, *, title: str) -> str:
    """Find a split by its name or by another name of the same split.

    Args:
        splits: What there is, by name.
        name: The name asked for, for example ``dev`` where the file is ``validation.csv``.
        title: The source, for the error.

    Returns:
        The name as the source has it.

    Raises:
        DataError: If there is none, or ``name`` fits two.
    """
    if name in splits:
        return name
    same = next((group for group in SAME_SPLIT if name in group), (name,))
    found = [other for other in same if other in splits]
    if len(found) > 1:
        raise DataError(f"{title}: split {name!r} could be {' or '.join(found)}. Name one of them.")
    if not found:
        raise DataError(f"{title}: {unknown('split', name, splits)}")
    return found[0]


def first_split(splits: Mapping[str, Value], names: Iterable[str]) -> str | None:
    """Return the first of some splits that is there, under any of its names; None where none is."""
    for name in names:
        same = next((group for group in SAME_SPLIT if name in group), (name,))
        found = next((other for other in same if other in splits), None)
        if found is not None:
            return found
    return None


def named_labels(folder: Path) -> tuple[str, ...] | None:
    """Read ``label_names`` from a folder's ``dataset.json``.

    Args:
        folder: The folder with the data files.

    Returns:
        The names by index; None where there is no such file or it names none.

    Raises:
        DataError: If the file is damaged or the names are not distinct strings.
    """
    path = folder / "dataset.json"
    if not path.is_file():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not valid JSON ({error}). Mend or remove it.") from None
    names = content.get("label_names") if isinstance(content, dict) else None
    if names is None:
        return None
    distinct = isinstance(names, list) and all(isinstance(name, str) for name in names)
    if not distinct or not names or len(set(names)) != len(names):
        raise DataError(
            f"{path}: label_names must be a list of distinct strings, got {names!r:.80}."
        )
    return tuple(names)


@dataclass(frozen=True)
class Opened:
    """A source whose splits are known and not yet read.

    Args:
        title: What messages call it.
        name: Name of the file, folder or configuration.
        splits: Reads a split's table, by name.
        label_names: The classes' names by index, where something beside the rows says them.
        single: Whether it is one file.
        options: How its tables are read.
        known: Names that the columns of other tables of the task have; these are looked for before
            the usual ones.
    """

    title: str
    name: str
    splits: Mapping[str, Callable[[], Table]]
    label_names: tuple[str, ...] | None = None
    single: bool = False
    options: TableOptions = field(default_factory=TableOptions)
    known: tuple[Columns, ...] = ()


def open_folder(folder: Path, options: TableOptions) -> Opened:
    """Open a folder with one file a split.

    Args:
        folder: The folder.
        options: How its tables are read.

    Raises:
        DataError: If it holds no data, or its ``dataset.json`` is wrong.
    """
    splits = {name: TableFile(path, options) for name, path in split_files(folder).items()}
    names = named_labels(folder)
    return Opened(str(folder), folder.resolve().name, splits, names, options=options)


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

    def roles(table: Table) -> FoundColumns:
        return find_columns(table, columns, labelled=labelled, known=opened.known)

    def keep(names: tuple[str, ...]) -> dict[str, TextWriter | ValueWriter]:
        try:
            found = roles(Table(opened.title, names, dict[str, list[object]]().__getitem__, 0))
        except DataError:
            # It is told once the whole table is known to be one.
            return {}
        others: tuple[str | None, ...] = (found.label, found.group, found.pair_id)
        if opened.options.others:
            others = names
        texts = (found.text, found.text_pair)
        return {
            **{name: ValueWriter() for name in others if name is not None},
            **{name: TextWriter() for name in texts if name is not None},
        }

    read = opened.splits[split]
    table = replace(read, keep=keep)() if isinstance(read, TableFile | TableFiles) else read()
    if not table.size:
        raise DataError(f"{table.title} has no rows.")
    chosen = roles(table)
    column: LabelColumn | None = None
    if labelled and chosen.label is not None:
        names = _one_naming(opened, table, chosen.label)
        column = LabelColumn(table, chosen.label, names, kind)
    if opened.options.skip_bad_rows:
        table = _readable(table, chosen, column)
    labels = Labels(None, None, "unlabelled")
    if column is not None:
        labels = replace(column, table=table).read()
    return Examples(
        name=name,
        text=read_texts(table, chosen.text),
        text_pair=None if chosen.text_pair is None else read_texts(table, chosen.text_pair),
        labels=labels.values,
        label_names=labels.names,
        kind=labels.kind,
        source={**table.source, "split": split},
        notices=(*table.notices, *labels.notices),
        group=read_names(table, chosen.group),
        pair=read_names(table, chosen.pair_id),
        numbers=table.numbers,
        others=_others(table, chosen) if opened.options.others else {},
    )


def _others(table: Table, chosen: FoundColumns) -> dict[str, Sequence[object]]:
    """Read the columns that are no texts, as they are; a class by its name."""
    read: dict[str, Sequence[object]] = {}
    for name in table.names:
        if name in (chosen.text, chosen.text_pair):
            continue
        classes = dict(enumerate(table.label_names.get(name, ())))
        values = ValueWriter.of(table.column(name))
        read[name] = [classes.get(v, v) if isinstance(v, int) else v for v in values]
    return read


def _readable(table: Table, chosen: FoundColumns, labels: LabelColumn | None) -> Table:
    """Leave out the rows whose text or label cannot be read.

    Raises:
        DataError: If no row is left.
    """
    bad: dict[int, str] = {} if labels is None else labels.faults()
    for column in (chosen.text_pair, chosen.text):
        if column is not None:
            bad |= text_faults(table, column)
    if len(bad) == table.size:
        raise DataError(
            f"{table.where(0)}: no row has a text and a label that can be read, this one holds "
            f"{bad[0]}. Name the columns with {OPTIONS['text']} and {OPTIONS['label']}."
        )
    return table.without(dict(sorted(bad.items())))


def _one_naming(opened: Opened, table: Table, column: str) -> tuple[str, ...] | None:
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
    # Rows that nobody has split yet are often called so; dev is carved from them.
    alone = ALL in opened.splits and not first_split(opened.splits, ("train", *EVALUATION_SPLITS))
    wanted = ALL if alone and settings.train_split == "train" else settings.train_split
    train_split = choose_split(opened.splits, wanted, title=opened.title)
    train = read_split(
        opened, train_split, name="train", columns=settings.columns, kind=settings.kind
    )
    if train.labels is None or train.kind == "unlabelled":
        raise DataError(
            f"{opened.title}: split {train_split!r} has no labels to train on. Its columns are "
            f"{', '.join(opened.splits[train_split]().names)}: give the label's with "
            f"{OPTIONS['label']}; the usual names are label, labels, target, score, class."
        )
    if settings.eval_split == CARVE:
        return train
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
    check_texts(
        examples,
        pair=train.text_pair is not None,
        rows=f"{opened.title}: rows of split {split!r}",
        like=f"split {train.source['split']!r}",
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


def check_texts(examples: Examples, *, pair: bool, rows: str, like: str) -> None:
    """Refuse rows of one text where two are expected, and the other way round.

    Args:
        examples: The rows.
        pair: Whether a row must have two texts.
        rows: What they are, for the error.
        like: What has rows of this form.

    Raises:
        DataError: If they have another form.
    """
    if (examples.text_pair is not None) is not pair:
        wanted, came = ("two texts", "one") if pair else ("one text", "two")
        raise DataError(
            f"{rows} must have {wanted} as those of {like} do, got {came}. Give {OPTIONS['text']} "
            f"and {OPTIONS['text_pair']}."
        )


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
    name = opened.name
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
