"""Find the columns of texts, labels and groups in a table, and read them."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from temper.data.stored import SharedWords, StoredTexts, TextWriter
from temper.data.table import Table, TableOptions
from temper.data.tags import TAG_COLUMNS, WORD_COLUMNS, has_words
from temper.errors import DataError, unknown
from temper.files import asset

_USUAL = tomllib.loads(asset("temper.data", "columns.toml"))
TEXT_NAMES: tuple[str, ...] = tuple(_USUAL["text"])
LABEL_NAMES: tuple[str, ...] = tuple(_USUAL["label"])
# Columns that are probably read, as texts or as other values.
_TEXTS = {*TEXT_NAMES, *(name for pair in _USUAL["pairs"] for name in pair)}
_VALUES = {*LABEL_NAMES, *_USUAL["group"], *_USUAL["pair_id"]}

OPTIONS = {
    "text": "--text-column (`text_column`)",
    "text_pair": "--set data.text_pair_column=NAME",
    "label": "--label-column (`label_column`)",
    "group": "--set data.group_column=NAME",
}
"""Role of a column -> the option that names it, on the command line and in Python."""

SURROGATE = re.compile("[\ud800-\udfff]")
"""Matches surrogates, which UTF-8 cannot encode."""

# Values of rows without a group or a contrast pair.
_IN_NONE = {"", "-1", "nan", "<na>"}


@dataclass(frozen=True)
class Columns:
    """Column names by role; None means a name is looked for among the usual ones.

    The column of second texts is looked for only if ``text`` is None, too.
    """

    text: str | None = None
    text_pair: str | None = None
    label: str | None = None
    group: str | None = None

    @classmethod
    def of(cls, source: Mapping[str, Any]) -> Columns:
        """Return the columns of a set, given its `Examples.source`, for reading related sets.

        The group column is left out, because it differs by set. Text columns are included only if
        there were several candidates: otherwise each set finds its own, and a set with pairs among
        sets without is an error.
        """
        read = source.get("columns", {})
        if "text" in source.get("other_columns", {}):
            return cls(read.get("text"), read.get("text_pair"), read.get("label"))
        return cls(label=read.get("label"))


class KeptColumns:
    """Stores likely columns while a text file is first read, to avoid reading it again.

    Not stored, and so read again: columns with an unusual name, columns missing in the first row,
    and text columns with values other than texts.
    """

    def __init__(self, names: Iterable[str], options: TableOptions) -> None:
        self._texts: dict[str, TextWriter] = {}
        self._values: dict[str, list[object]] = {}
        self._words = SharedWords()
        for name in names:
            if name in options.named or name.casefold() in _TEXTS:
                self._texts[name] = TextWriter()
            elif options.others or name.casefold() in _VALUES:
                self._values[name] = []

    def add(self, row: Mapping[str, object] | None) -> None:
        """Store the values of a row; None means a bad row, which is removed later."""
        for name, values in self._values.items():
            values.append(self._words.of(None if row is None else row.get(name)))
        for name, writer in list(self._texts.items()):
            value = "" if row is None else row.get(name)
            if isinstance(value, str) and (value.isascii() or not SURROGATE.search(value)):
                writer.append(value)
            else:
                del self._texts[name]

    def reader(self, read_again: Callable[[str], Iterable[object]]) -> Callable[[str], Any]:
        """Return the function that returns a column: as stored, or else read again."""
        texts = {name: writer.texts() for name, writer in self._texts.items()}
        columns: dict[str, Iterable[object]] = {**self._values, **texts}
        return lambda name: columns[name] if name in columns else read_again(name)


@dataclass(frozen=True)
class FoundColumns:
    """Column names of a table by role; None if the table has none for a role.

    ``others`` has role (``text`` or ``label``) -> further candidate columns, if the name was
    guessed.
    """

    text: str
    text_pair: str | None
    label: str | None
    group: str | None = None
    pair_id: str | None = None
    others: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def record(self) -> dict[str, Any]:
        """Return metadata: ``columns`` by role, and ``other_columns`` if there are any."""
        columns = {role: name for role, name in vars(self).items() if isinstance(name, str)}
        others = {role: list(names) for role, names in self.others.items()}
        return {"columns": columns, **({"other_columns": others} if others else {})}

    def warnings(self, title: str) -> tuple[str, ...]:
        """Warn of each guess among several columns, with the option that names another."""
        warnings = []
        for role, others in self.others.items():
            option = OPTIONS[role]
            read = repr(self.label if role == "label" else self.text)
            if role == "text" and self.text_pair is not None:
                read += f" and {self.text_pair!r}, a pair"
            elif role == "text":
                option += f", or a pair with {OPTIONS['text_pair']} too"
            warnings.append(
                f"{title}: the {role} is read from {read}, but {' and '.join(map(repr, others))} "
                f"would fit too. Choose with {option}."
            )
        return tuple(warnings)


def check_columns(table: Table, wanted: Columns) -> None:
    """Raise a `DataError` if a table lacks a column that the user named."""
    for role, option in OPTIONS.items():
        name = getattr(wanted, role)
        if name is not None and name not in table.names:
            raise DataError(f"{table.title}: {unknown('column', name, table.names)} Fix {option}.")


def find_columns(
    table: Table, wanted: Columns, *, labeled: bool, known: Sequence[Columns] = ()
) -> FoundColumns:
    """Choose the columns of a table by role.

    Names in ``wanted`` come first. Then come the first ``known`` columns, those of the task's other
    tables, that this table has. Then come the usual names.
    """
    for others in known:
        wanted = _completed(wanted, others, table)
    if wanted.text is None and wanted.text_pair is None and labeled:
        wanted = _of_words(table, wanted)
    text, pair = wanted.text, wanted.text_pair
    guessed = [] if text is not None or pair is not None else ["text"]
    taken = {name for name in (wanted.label, pair) if name is not None}
    if text is None and pair is None:
        text, pair = _usual_pair(table, taken)
    if text is None:
        text = _first(table, (*TEXT_NAMES, *WORD_COLUMNS), taken)
    if text is None:
        raise DataError(
            f"{table.title}: no text column found among {', '.join(map(repr, table.names))}. The "
            f"first line must name the columns; the usual names are {', '.join(TEXT_NAMES[:6])} "
            f"... Rename the column or pass its name with {OPTIONS['text']}."
        )
    label = wanted.label
    if label is None and labeled:
        label = _first(table, LABEL_NAMES, {text, *([pair] if pair else [])})
        guessed += [] if label is None else ["label"]
    chosen = [name for name in (text, pair, label, wanted.group) if name is not None]
    if len(set(chosen)) != len(chosen):
        raise DataError(
            f"{table.title}: text, pair, label and group must be different columns, got "
            f"{', '.join(chosen)}."
        )
    group = wanted.group or _first(table, _USUAL["group"], set(chosen))
    return FoundColumns(
        text,
        pair,
        label,
        group,
        _first(table, _USUAL["pair_id"], set(chosen)),
        {role: names for role in guessed if (names := _others(table, role, {*chosen, group}))},
    )


def _of_words(table: Table, wanted: Columns) -> Columns:
    """Choose the columns with lists of words and lists of tags if the table has both."""
    words = _first(table, WORD_COLUMNS, set())
    tags = wanted.label or _first(table, TAG_COLUMNS, set())
    if words is None or tags is None or not all(has_words(table, item) for item in (words, tags)):
        return wanted
    return replace(wanted, text=words, label=tags)


def _others(table: Table, role: str, taken: set[str | None]) -> tuple[str, ...]:
    """Return the unused columns whose names are usual for a role."""
    usual = set(LABEL_NAMES if role == "label" else TEXT_NAMES)
    present = {name.casefold() for name in table.names}
    if role == "text":
        usual |= {name for pair in _USUAL["pairs"] if set(pair) <= present for name in pair}
    return tuple(name for name in table.names if name.casefold() in usual and name not in taken)


def _completed(wanted: Columns, known: Columns, table: Table) -> Columns:
    """Fill in ``known`` column names if the user gave none and the table has them."""
    texts = [name for name in (known.text, known.text_pair) if name is not None]
    if wanted.text is None and wanted.text_pair is None and set(texts) <= set(table.names):
        # Both or neither: half a pair could be combined with an unrelated column.
        wanted = replace(wanted, text=known.text, text_pair=known.text_pair)
    named = (wanted.text, wanted.text_pair, wanted.group)
    if wanted.label is None and known.label in table.names and known.label not in named:
        wanted = replace(wanted, label=known.label)
    return wanted


def _lookup(table: Table, name: str) -> str | None:
    """Return the column with a name, exactly or else ignoring case; None if there is none."""
    if name in table.names:
        return name
    return next((column for column in table.names if column.casefold() == name), None)


def _usual_pair(table: Table, taken: set[str]) -> tuple[str | None, str | None]:
    for first, second in _USUAL["pairs"]:
        one, two = _lookup(table, first), _lookup(table, second)
        if one is not None and two is not None and not taken & {one, two}:
            return one, two
    return None, None


def _first(table: Table, names: Iterable[str], taken: set[str]) -> str | None:
    result = (_lookup(table, name) for name in names)
    return next((name for name in result if name is not None and name not in taken), None)


def read_texts(table: Table, column: str) -> Sequence[str]:
    """Return the texts of a column in compact storage; empty texts are allowed."""
    texts = table.column(column)
    return texts if isinstance(texts, StoredTexts) else StoredTexts.of(_texts(table, column))


def _texts(table: Table, column: str) -> Iterator[str]:
    for index, value in enumerate(table.column(column)):
        fault = _text_fault(value)
        if fault is not None:
            raise DataError(
                f"{table.where(index)}: {column!r} must be a string, got {fault}. Fix or remove "
                "the row, or leave such rows out with --set data.skip_bad_rows=true."
            )
        yield str(value)


def text_faults(table: Table, column: str) -> dict[int, str]:
    """Return row index -> what the row has instead of a text."""
    result = ((index, _text_fault(value)) for index, value in enumerate(table.column(column)))
    return {index: f"{fault} as text" for index, fault in result if fault is not None}


def _text_fault(value: object) -> str | None:
    if not isinstance(value, str):
        return "nothing (null or missing)" if value is None else f"{value!r:.40}"
    return "half of a surrogate pair" if SURROGATE.search(value) else None


def read_names(table: Table, column: str | None) -> list[str | None] | None:
    """Return each row's group or contrast pair, None for rows without; None if no row has one.

    Missing values are null, NaN (also the text "nan", as pandas writes it), an empty text and -1. A
    list, an object or a number with a fraction raises a `DataError`.
    """
    if column is None:
        return None
    names: list[str | None] = []
    for index, value in enumerate(table.column(column)):
        if value is None or value != value:  # NaN alone differs from itself
            names.append(None)
            continue
        # pandas writes a column of whole numbers with missing values as 1.0.
        whole = int(value) if isinstance(value, float) and value.is_integer() else value
        if not isinstance(whole, str | int):
            raise DataError(
                f"{table.where(index)}: {column!r} must be a word or a whole number that names a "
                f"group, got {value!r:.40}. Fix the row, or rename the column if it has no "
                "groups."
            )
        name = str(whole).strip()
        if SURROGATE.search(name):
            raise DataError(
                f"{table.where(index)}: {column!r} has half of a surrogate pair. Fix the row."
            )
        names.append(None if name.casefold() in _IN_NONE else name)
    return names if any(name is not None for name in names) else None
