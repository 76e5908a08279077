"""Find the splits of a source, and read train, dev and test with the same columns and labels."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from temper.data.choices import choice_columns, choice_rows
from temper.data.columns import (
    OPTIONS,
    Columns,
    FoundColumns,
    check_columns,
    find_columns,
    read_names,
    read_texts,
    text_faults,
)
from temper.data.completions import completion_columns, completion_rows
from temper.data.examples import LABELS_OF, NAMED, Examples, Splits, with_codes, without_misfits
from temper.data.formats import format_of, stem_of
from temper.data.labels import LabelColumn, LabelKind, Labels, label_kind
from temper.data.settings import DataSettings
from temper.data.spans import span_columns, span_rows
from temper.data.stored import listed
from temper.data.table import Table, TableOptions
from temper.data.tags import has_words, tagged_rows
from temper.errors import DataError, unknown

Value = TypeVar("Value")

# Names of the same split; messages use the first.
SAME_SPLIT = (
    ("train", "training"),
    ("dev", "validation", "valid", "val", "eval"),
    ("dev_matched", "validation_matched"),
    ("dev_mismatched", "validation_mismatched"),
)
EVALUATION_SPLITS = ("dev", "dev_matched", "test")
ALL = "all"
"""Name of the only split of a source without splits; used as train if there is no train split."""
CARVE = "carve"
"""Value of ``eval_split`` that holds out training rows even if there are other splits."""
# Files that describe a folder and contain no rows.
_DESCRIPTIONS = {"dataset.json", "dataset_info.json", "dataset_infos.json", "dataset_dict.json"}
_SHARD = re.compile(r".+-\d{5}-of-\d{5}(-[0-9a-f]+)?")
STANDALONE_SPLITS = ("test", "dev", "dev_matched", "train")


def split_files(folder: Path) -> dict[str, Path]:
    """Return split -> data file of a folder, sorted: ``train`` for ``train.csv.gz``."""
    result: dict[str, Path] = {}
    for path in sorted(folder.iterdir()):
        hidden = path.name.startswith(".") or path.name in _DESCRIPTIONS
        if hidden or format_of(path) is None or not path.is_file():
            continue
        stem = stem_of(path)
        if _SHARD.fullmatch(stem):
            raise DataError(
                f"{folder} has a split in shards ({path.name}), as a clone of a Hub dataset "
                "does. Pass the dataset's Hub id, or write each split to one file."
            )
        if stem in result:
            raise DataError(
                f"{folder} has split {stem!r} twice: {result[stem].name} and {path.name}. "
                "Remove one."
            )
        result[stem] = path
    if not result:
        raise DataError(
            f"{folder} has no data: expected train.csv, dev.jsonl.gz, test.parquet or the like. "
            "Instead of a clone of a Hub dataset, pass its Hub id."
        )
    return result


def choose_split(splits: Mapping[str, Value], name: str, *, title: str) -> str:
    """Return the source's own name of a split, for example ``validation`` for ``dev``."""
    if name in splits:
        return name
    result = _alike(name, splits)
    if len(result) > 1:
        raise DataError(
            f"{title}: split {name!r} could be {' or '.join(result)}. Name one of them."
        )
    if not result:
        raise DataError(f"{title}: {unknown('split', name, splits)}")
    return result[0]


def first_split(splits: Mapping[str, Value], names: Iterable[str]) -> str | None:
    """Return the first of some splits that exists under any of its names; None if none does."""
    return next((result for name in names for result in _alike(name, splits)), None)


def _alike(name: str, splits: Mapping[str, Value]) -> list[str]:
    same = next((group for group in SAME_SPLIT if name in group), (name,))
    return [other for other in same if other in splits]


def named_labels(folder: Path) -> tuple[str, ...] | None:
    """Read the class names from ``dataset.json`` in a folder; None if it has none."""
    path = folder / "dataset.json"
    if not path.is_file():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not valid JSON ({error}). Fix or remove it.") from None
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
    """A source whose splits are known but not yet read.

    Args:
        title: Name of the source in messages.
        name: Name of the file, folder or configuration.
        splits: Split -> function that reads its table.
        label_names: The classes' names by index, if a ``dataset.json`` has them.
        known: Columns of the task's other tables, looked for before the usual names.
    """

    title: str
    name: str
    splits: Mapping[str, Callable[[], Table]]
    label_names: tuple[str, ...] | None = None
    single: bool = False
    options: TableOptions = field(default_factory=TableOptions)
    known: tuple[Columns, ...] = ()


def read_split(
    opened: Opened,
    split: str,
    *,
    name: str,
    columns: Columns,
    kind: LabelKind | None = None,
    labeled: bool = True,
    first: int | None = None,
) -> Examples:
    """Read one split; the set is unlabeled if not ``labeled`` or if no column has labels.

    ``first`` is that of `LabelColumn`.
    """
    table = opened.splits[split]()
    if not table.size:
        raise DataError(f"{table.title} has no rows.")
    check_columns(table, columns)
    read = None
    if replace(columns, group=None) == Columns():
        read = _recognized(opened, table, split, labeled=labeled)
    if read is None:
        read = _by_columns(opened, table, split, columns, kind, labeled=labeled, first=first)
    examples, table = read
    roles = examples.source["columns"]
    return replace(
        examples,
        name=name,
        source={**table.source, **examples.source},
        notices=(*table.notices, *examples.notices),
        group=read_names(table, roles.get("group", columns.group)),
        numbers=table.numbers,
        others=_others(table, opened.options, texts=[roles["text"], roles.get("text_pair")]),
    )


def _recognized(
    opened: Opened, table: Table, split: str, *, labeled: bool
) -> tuple[Examples, Table] | None:
    """Read multiple choice, answer spans or completions, recognized by their columns; else None."""
    for result, read in (
        (choice_columns(table), choice_rows),
        (span_columns(table.names), span_rows),
        (completion_columns(table.names), completion_rows),
    ):
        if result is not None:
            skip = opened.options.skip_bad_rows
            examples, table = read(table, result, labeled=labeled, skip=skip)
            return replace(examples, source={**examples.source, "split": split}), table
    return None


def _by_columns(
    opened: Opened,
    table: Table,
    split: str,
    columns: Columns,
    kind: LabelKind | None,
    *,
    labeled: bool,
    first: int | None,
) -> tuple[Examples, Table]:
    """Read texts, or lists of words, with the labels of one column."""
    skip = opened.options.skip_bad_rows
    chosen = find_columns(table, columns, labeled=labeled, known=opened.known)
    if not labeled:
        chosen = replace(chosen, label=None)
    source = {"split": split, **chosen.record()}
    names = None if chosen.label is None else _one_naming(opened, table, chosen.label)
    if has_words(table, chosen.text):
        if chosen.text_pair is not None:
            raise DataError(
                f"{table.title}: {chosen.text!r} has lists of words, which are not supported in "
                f"text pairs. Name another column with {OPTIONS['text']}."
            )
        examples, table = tagged_rows(table, chosen.text, chosen.label, names, skip=skip)
        return replace(examples, source={"words": True, **source}), table
    column: LabelColumn | None = None
    if chosen.label is not None:
        indices = chosen.label in table.label_names
        column = LabelColumn(table, chosen.label, names, kind, are_indices=indices, first=first)
    if skip:
        table = _readable(table, chosen, column)
    labels = Labels(None, None, "unlabeled")
    doubts = chosen.warnings(table.title)
    if column is not None:
        try:
            labels = replace(column, table=table).read()
        except DataError as error:
            # Another column may be the right one, so the error lists the others.
            raise DataError(" ".join((str(error), *doubts))) from error
    if labels.first:
        source["first_label"] = labels.first
    examples = Examples(
        table.title,
        text=read_texts(table, chosen.text),
        text_pair=None if chosen.text_pair is None else read_texts(table, chosen.text_pair),
        labels=labels.values,
        label_names=labels.names,
        kind=labels.kind,
        source=source,
        notices=(*doubts, *labels.notices),
        pair=read_names(table, chosen.pair_id),
    )
    return examples, table


def _others(
    table: Table, options: TableOptions, *, texts: Sequence[str | None]
) -> dict[str, Sequence[object]]:
    """Return all columns except ``texts`` if wanted, with class names instead of class indices."""
    read: dict[str, Sequence[object]] = {}
    for name in table.names if options.others else ():
        if name in texts:
            continue
        classes = dict(enumerate(table.label_names.get(name, ())))
        values = listed(table.column(name))
        read[name] = [classes.get(v, v) if isinstance(v, int) else v for v in values]
    return read


def _readable(table: Table, chosen: FoundColumns, labels: LabelColumn | None) -> Table:
    bad: dict[int, str] = {} if labels is None else labels.faults()
    for column in (chosen.text_pair, chosen.text):
        if column is not None:
            bad |= text_faults(table, column)
    if len(bad) == table.size:
        raise DataError(
            f"{table.where(0)}: no row has a readable text and a readable label; this row has "
            f"{bad[0]}. Name the columns with {OPTIONS['text']} and {OPTIONS['label']}."
        )
    return table.without(dict(sorted(bad.items())))


def _one_naming(opened: Opened, table: Table, column: str) -> tuple[str, ...] | None:
    inside, outside = table.label_names.get(column), opened.label_names
    if inside is not None and outside is not None and inside != outside:
        raise DataError(
            f"{table.title} names its labels {list(inside)}, but the dataset.json next to it "
            f"names them {list(outside)}. Correct dataset.json."
        )
    return outside or inside


def read_splits(settings: DataSettings, opened: Opened) -> Splits | Examples:
    """Read train, dev and test; return only train if there is no split to evaluate on."""
    # Rows without splits often have this name; dev is held out from them.
    alone = ALL in opened.splits and not first_split(opened.splits, ("train", *EVALUATION_SPLITS))
    wanted = ALL if alone and settings.train_split == "train" else settings.train_split
    train_split = choose_split(opened.splits, wanted, title=opened.title)
    train = read_split(
        opened, train_split, name="train", columns=settings.columns, kind=settings.kind
    )
    if train.labels is None or train.kind == "unlabeled":
        if label := train.source.get("columns", {}).get("label"):
            raise DataError(
                f"{opened.title}: split {train_split!r} has no labels to train on: each cell of "
                f"column {label!r} is empty or -1. Fill in the labels, or name another column with "
                f"{OPTIONS['label']}."
            )
        raise DataError(
            f"{opened.title}: split {train_split!r} has no labels to train on. Its columns are "
            f"{', '.join(opened.splits[train_split]().names)}: name the label column with "
            f"{OPTIONS['label']}; the usual names are label, labels, target, score, class."
        )
    train = _with_named_codes(train, opened, settings.kind)
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
        # A test split without labels is for a leaderboard and cannot be evaluated.
        return train
    if dev.labels is None:
        raise DataError(
            f"{opened.title}: split {dev_split!r} has no labels to evaluate on. Choose another "
            "with --set data.eval_split=NAME."
        )
    test = None
    if "test" in others and dev_split != "test":
        # Only its texts are used, to find overlap with the training rows.
        test = read_split(
            _like(opened, train), "test", name="test", columns=settings.columns, labeled=False
        )
    at_test = settings.eval_split is None and dev_split == "test"
    return Splits(train, dev, test, (evaluated_as_dev(opened),) if at_test else ())


def evaluated_as_dev(opened: Opened) -> str:
    """Return the notice that the test split is used as dev split, and how to avoid it."""
    return (
        f"{opened.title} has no dev split: its test split is evaluated under the name 'dev'. "
        "--set data.eval_split=carve holds out validation rows from train instead."
    )


def read_like(
    train: Examples, opened: Opened, split: str, *, name: str, settings: DataSettings
) -> Examples:
    """Read a further split of train's source, with train's columns and label indices."""
    examples = read_split(
        _like(opened, train),
        split,
        name=name,
        columns=settings.columns,
        kind=label_kind(train.kind),
        first=train.source.get("first_label", 0),
    )
    check_texts(
        examples,
        pair=train.text_pair is not None,
        rows=f"{opened.title}: rows of split {split!r}",
        like=f"split {train.source['split']!r}",
    )
    if examples.labels is not None and examples.kind != train.kind:
        raise DataError(
            f"{opened.title}: split {split!r} must have {LABELS_OF[train.kind]}, as split "
            f"{train.source['split']!r} has; it has {LABELS_OF[examples.kind]}. Name the column "
            f"with {OPTIONS['label']}."
        )
    if examples.kind not in NAMED:
        return examples
    names = train.label_names or tuple(map(str, range(train.classes)))
    if examples.label_names is None and any(name.lstrip("-").isdigit() for name in names):
        examples = with_codes(examples)
    if opened.options.skip_bad_rows:
        examples = without_misfits(examples, lambda rows: rows.map_labels(names))
    try:
        mapped = examples.map_labels(names)
    except DataError as error:
        raise DataError(
            f"{error} The labels must be those of split {train.source['split']!r}, which is "
            "trained on. Leave other rows out with --set data.skip_bad_rows=true."
        ) from error
    return replace(mapped, label_names=train.label_names)


def _like(opened: Opened, train: Examples) -> Opened:
    """Return the source so that its splits are read with train's columns."""
    return replace(opened, known=(Columns.of(train.source), *opened.known))


def _with_named_codes(train: Examples, opened: Opened, kind: LabelKind | None) -> Examples:
    """Name classes by their numbers in the file if these are not 0 to C - 1 (1 to 5, 0 and 4)."""
    if train.kind != "classification" or train.label_names is not None:
        return train
    named = with_codes(train)
    codes = named.label_names or ()
    if len(codes) < 2 or codes == tuple(map(str, range(len(codes)))):
        return train
    column = train.source.get("columns", {}).get("label")
    shown = f"{', '.join(codes[:8])}{' ...' if len(codes) > 8 else ''}"
    # Without `kind`, so many classes in so few rows may be targets.
    if kind is None and len(train) < 2 * len(codes):
        raise DataError(
            f"{opened.title}: {column!r} has {len(codes)} different whole numbers in "
            f"{len(train)} rows ({shown}), which may be classes or targets. Pass "
            "--set data.kind=classification or --set data.kind=regression."
        )
    notice = (
        f"{opened.title}: the whole numbers {shown} in {column!r} are read as {len(codes)} "
        "classes; --set data.kind=regression if they are targets.",
    )
    return replace(named, notices=(*named.notices, *(notice if kind is None else ())))


def read_as(examples: Examples) -> str:
    """Describe the columns and the kind of labels of a set; empty if its columns are unknown.

    Example:
        >>> source = {"path": "a.csv", "columns": {"text": "review", "label": "stars"}}
        >>> read_as(Examples("a", ["good"], labels=[4.0], kind="regression", source=source))
        "a.csv: text from 'review', label from 'stars' (regression, 4 to 4)"
    """
    source = examples.source
    files = [part for part in (source, *source.get("files", ())) if "columns" in part]
    if not files:
        return ""
    columns: dict[str, str] = files[0]["columns"]
    title = files[0].get("path") or f"{files[0].get('id')}@{files[0].get('split')}"
    roles = {"text_pair": "second text", "pair_id": "contrast pairs"}
    kind: str = examples.kind
    if examples.labels is not None and examples.kind == "regression":
        kind += f", {min(examples.labels):g} to {max(examples.labels):g}"
    elif examples.kind in NAMED:
        names = examples.label_names or tuple(map(str, sorted(set(examples.labels or ()))))
        noun = {"multi_label": "labels", "tokens": "tags"}.get(examples.kind, "classes")
        kind += f", {len(names)} {noun}: {', '.join(names[:8])}{' ...' if names[8:] else ''}"
    read = [f"{roles.get(role, role)} from {name!r}" for role, name in columns.items()]
    if "label" in columns:
        index = list(columns).index("label")
        read[index] += f" ({kind})"
    return f"{title}: {', '.join(read)}"


def splits_read_as(splits: Splits) -> list[str]:
    """Describe the columns of train, and those of dev if they differ."""
    sets = [splits.train, splits.dev]
    if splits.dev.source.get("columns") == splits.train.source.get("columns"):
        sets.pop()
    return [sentence for sentence in map(read_as, sets) if sentence]


def check_texts(examples: Examples, *, pair: bool, rows: str, like: str) -> None:
    """Raise a `DataError` unless the rows are text pairs (``pair``) or single texts (else).

    ``rows`` and ``like`` name the rows and their model in the error.
    """
    if (examples.text_pair is not None) is not pair:
        wanted, came = ("two texts", "one") if pair else ("one text", "two")
        raise DataError(
            f"{rows} must have {wanted} as those of {like} do, got {came}. Pass {OPTIONS['text']} "
            f"and {OPTIONS['text_pair']}."
        )


def read_set(
    opened: Opened,
    *,
    split: str | None,
    columns: Columns,
    kind: LabelKind | None,
    labeled: bool,
    order: Sequence[str] = STANDALONE_SPLITS,
) -> Examples:
    """Read one set of a source: ``split``, or else the first split in ``order`` that exists."""
    name = opened.name
    if split is not None:
        result: str | None = choose_split(opened.splits, split, title=opened.title)
        name = name if opened.single else f"{name}@{result}"
    else:
        result = first_split(opened.splits, order)
    if result is None:
        none = "no split train" if order == ("train",) else "none of the splits test, dev, train"
        raise DataError(
            f"{opened.title} has {none}; it has "
            f"{', '.join(sorted(opened.splits))}. Name one: {opened.title}@SPLIT."
        )
    return read_split(opened, result, name=name, columns=columns, kind=kind, labeled=labeled)
