"""Find the columns of a table and read them: texts, labels, groups and contrast pairs."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, cast

from temper.data.examples import Kind
from temper.data.stored import StoredTexts, ValueWriter
from temper.data.table import Table
from temper.errors import DataError, unknown

# Pairs stand before single texts: QNLI has `question` and `sentence`, and `sentence` alone would
# be wrong.
PAIR_NAMES = (
    ("text", "text_pair"),
    ("text1", "text2"),
    ("text_a", "text_b"),
    ("sentence1", "sentence2"),
    ("premise", "hypothesis"),
    ("question1", "question2"),
    ("question", "sentence"),
    ("question", "answer"),
    ("question", "passage"),
)
TEXT_NAMES = (
    "text",
    "sentence",
    "sentence1",
    "premise",
    "question",
    "question1",
    "content",
    "review",
    "comment",
    "tweet",
    "body",
    "document",
)
LABEL_NAMES = (
    "label",
    "labels",
    "target",
    "score",
    "class",
    "gold_label",
    "sentiment",
    "similarity_score",
)
GROUP_NAMES = ("group",)
PAIR_ID_NAMES = ("pair_id",)

OPTIONS = {
    "text": "--text-column (`text_column`)",
    "text_pair": "--text-pair-column (`text_pair_column`)",
    "label": "--label-column (`label_column`)",
    "group": "--group-column (`group_column`)",
}
"""How each column is named: on the command line, and in Python and files of settings."""

# What stands in a column of groups or contrast pairs where a row is in none of them.
_IN_NONE = {"", "-1"}


@dataclass(frozen=True)
class Columns:
    """Names of the columns to read; None means found by the usual names.

    Args:
        text: Column of the text.
        text_pair: Column of the second text. Looked for by itself only where ``text`` is None too.
        label: Column of the label.
        group: Column of the group that a row belongs to.
    """

    text: str | None = None
    text_pair: str | None = None
    label: str | None = None
    group: str | None = None


@dataclass(frozen=True)
class FoundColumns:
    """Names of the columns to read, as the table has them.

    Args:
        text: Column of the text.
        text_pair: Column of the second text, None for single texts.
        label: Column of the label, None where there is none.
        group: Column of the groups, None where there is none.
        pair_id: Column that names contrast pairs, None where there is none.
    """

    text: str
    text_pair: str | None
    label: str | None
    group: str | None = None
    pair_id: str | None = None


def find_columns(
    table: Table, wanted: Columns, *, labelled: bool, known: Sequence[Columns] = ()
) -> FoundColumns:
    """Choose the columns of a table.

    Args:
        table: The table.
        wanted: Names that the user gave.
        labelled: Whether a label column is looked for.
        known: Names that other tables of the task have. The first ones that are here are taken
            where the user gave none; where none is here, the usual names are looked for.

    Returns:
        The names; ``label``, ``group`` and ``pair_id`` are None where none was found.

    Raises:
        DataError: If a given name is not there, no text column is found, or two roles share a
            column.
    """
    for role, option in OPTIONS.items():
        name = getattr(wanted, role)
        if name is not None and name not in table.names:
            raise DataError(f"{table.title}: {unknown('column', name, table.names)} Mend {option}.")
    for others in known:
        wanted = _completed(wanted, others, table)
    text, pair = wanted.text, wanted.text_pair
    taken = {name for name in (wanted.label, pair) if name is not None}
    if text is None and pair is None:
        text, pair = _usual_pair(table, taken)
    if text is None:
        text = _first(table, TEXT_NAMES, taken)
    if text is None:
        raise DataError(
            f"{table.title}: no text column found among {', '.join(map(repr, table.names))}. The "
            f"first line must name the columns; the usual names are {', '.join(TEXT_NAMES[:6])} "
            f"... Rename the column or give its name with {OPTIONS['text']}."
        )
    label = wanted.label
    if label is None and labelled:
        label = _first(table, LABEL_NAMES, {text, *([pair] if pair else [])})
    chosen = [name for name in (text, pair, label, wanted.group) if name is not None]
    if len(set(chosen)) != len(chosen):
        raise DataError(
            f"{table.title}: text, pair, label and group must be different columns, got "
            f"{', '.join(chosen)}."
        )
    group = wanted.group or _first(table, GROUP_NAMES, set(chosen))
    return FoundColumns(text, pair, label, group, _first(table, PAIR_ID_NAMES, set(chosen)))


def _completed(wanted: Columns, known: Columns, table: Table) -> Columns:
    """Take the names that other tables have where nothing else is wanted and they are here."""
    texts = [name for name in (known.text, known.text_pair) if name is not None]
    if wanted.text is None and wanted.text_pair is None and set(texts) <= set(table.names):
        # Both or neither: half a pair would be found beside a usual name of something else.
        wanted = replace(wanted, text=known.text, text_pair=known.text_pair)
    if wanted.label is None and known.label in table.names:
        wanted = replace(wanted, label=known.label)
    return wanted


def _lookup(table: Table, name: str) -> str | None:
    """Find a usual name in any case, the exact one first."""
    if name in table.names:
        return name
    return next((own for own in table.names if own.casefold() == name), None)


def _usual_pair(table: Table, taken: set[str]) -> tuple[str | None, str | None]:
    for first, second in PAIR_NAMES:
        one, two = _lookup(table, first), _lookup(table, second)
        if one is not None and two is not None and not taken & {one, two}:
            return one, two
    return None, None


def _first(table: Table, names: Iterable[str], taken: set[str]) -> str | None:
    found = (_lookup(table, name) for name in names)
    return next((name for name in found if name is not None and name not in taken), None)


_SURROGATE = re.compile("[\ud800-\udfff]")
"""What no UTF-8 can hold."""


def read_texts(table: Table, column: str) -> Sequence[str]:
    """Return a column's texts.

    Args:
        table: The table.
        column: Name of the column.

    Returns:
        One string a row, held outside of Python's objects; an empty one is allowed here.

    Raises:
        DataError: If a value is not a string, or holds half of a surrogate pair (no UTF-8 can hold
            it), or the temporary folder cannot take so many texts.
    """
    texts = table.column(column)
    return texts if isinstance(texts, StoredTexts) else StoredTexts.of(_texts(table, column))


def _texts(table: Table, column: str) -> Iterator[str]:
    """Yield a column's texts, refusing what is none."""
    for index, value in enumerate(table.column(column)):
        fault = _text_fault(value)
        if fault is not None:
            raise DataError(
                f"{table.where(index)}: {column!r} must be a text, got {fault}. Mend or remove "
                "the row, or leave such rows out with --skip-bad-rows (`skip_bad_rows`)."
            )
        yield str(value)


def text_faults(table: Table, column: str) -> dict[int, str]:
    """Say which rows of a column hold no text.

    Args:
        table: The table.
        column: Name of the column.

    Returns:
        What each of them holds, by index.
    """
    found = ((index, _text_fault(value)) for index, value in enumerate(table.column(column)))
    return {index: f"{fault} as text" for index, fault in found if fault is not None}


def _text_fault(value: object) -> str | None:
    if not isinstance(value, str):
        return "nothing (null or missing)" if value is None else f"{value!r:.40}"
    return "half of a surrogate pair" if _SURROGATE.search(value) else None


def read_names(table: Table, column: str | None) -> list[str | None] | None:
    """Return a column's names of groups or contrast pairs.

    Args:
        table: The table.
        column: Name of the column, None where there is none.

    Returns:
        One name a row, None where a row is in no group: null, NaN, an empty text, or -1. None
        instead of the list where that holds for all rows.

    Raises:
        DataError: If a value is a list, an object or a number with a fraction.
    """
    if column is None:
        return None
    names: list[str | None] = []
    for index, value in enumerate(table.column(column)):
        if value is None or value != value:  # NaN alone differs from itself
            names.append(None)
            continue
        # pandas writes a column of whole numbers with holes as 1.0.
        whole = int(value) if isinstance(value, float) and value.is_integer() else value
        if not isinstance(whole, str | int):
            raise DataError(
                f"{table.where(index)}: {column!r} must be a word or a whole number that names a "
                f"group, got {value!r:.40}. Mend the row, or rename the column if it holds no "
                "groups."
            )
        name = str(whole).strip()
        if _SURROGATE.search(name):
            raise DataError(
                f"{table.where(index)}: {column!r} holds half of a surrogate pair. Mend the row."
            )
        names.append(None if name in _IN_NONE else name)
    return names if any(name is not None for name in names) else None


# No number of a label is longer, and Python turns no text of thousands of digits into a number.
_INTEGER = re.compile(r"[+-]?\d{1,40}")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
# A number with a decimal comma, as spreadsheets write it where a semicolon stands between columns.
_COMMA = re.compile(r"[+-]?\d*,?\d+([eE][+-]?\d+)?")
_NOT_FINITE = re.compile(r"[+-]?(nan|inf|infinity)", re.IGNORECASE)

_FAMILIES = ("truth value", "number", "string")

# Targets become float32.
_LARGEST = 3.4e38

LabelKind = Literal["classification", "regression"]


@dataclass(frozen=True)
class Labels:
    """Labels as `Examples` holds them.

    Args:
        values: Class indices or targets; None where no row has a label.
        names: The classes' names by index, where known.
        kind: What the values are.
        notices: What was decided on the way.
    """

    values: list[int] | list[float] | None
    names: tuple[str, ...] | None
    kind: Kind
    notices: tuple[str, ...] = ()


@dataclass(frozen=True)
class LabelColumn:
    """A column of a table that holds labels.

    Strings are classes, sorted into indices; strings that are all numerals are read as numbers (a
    CSV file holds nothing else). Integers are class indices. Floats are targets of a regression,
    except where all of them are whole and run from 0 to C - 1 without a gap (1.0 as pandas writes
    an integer column with holes): these are classes, and a notice says so.

    Args:
        table: The table.
        name: Name of the column.
        names: The classes' names by index, from ``dataset.json`` or the file's own features.
        kind: What the labels are, where the caller knows.
    """

    table: Table
    name: str
    names: tuple[str, ...] | None = None
    kind: LabelKind | None = None

    def __post_init__(self) -> None:
        """Refuse two classes of one name.

        Raises:
            DataError: A name stands twice.
        """
        names = self.names or ()
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise DataError(
                f"{self.table.title}: two classes of {self.name!r} are named {twice!r:.40}. Give "
                "each class a name of its own (dataset.json, or the features of the file)."
            )

    def read(self) -> Labels:
        """Read all labels.

        Returns:
            The labels; values None where every row is without one (empty, null, or GLUE's -1).

        Raises:
            DataError: If labels are missing in part, of mixed types, out of range, NaN or infinite.
        """
        raw, notices = self._with_points()
        missing = [index for index, value in enumerate(raw) if _is_missing(value)]
        if len(missing) == len(raw):
            return Labels(None, self.names, "unlabelled")
        if missing:
            raise self._bad(
                missing[0],
                f"must be a label, got nothing ({len(missing)} of {len(raw)} rows). Give every row "
                "a label or none, or leave such rows out with --skip-bad-rows (`skip_bad_rows`).",
            )
        values = self._of_one_type(raw)
        if all(isinstance(value, (int, float)) and value == -1 for value in values):
            return Labels(None, self.names, "unlabelled")
        if isinstance(values[0], str):
            return self._from_words(values)
        if isinstance(values[0], bool):
            named = replace(self, names=self.names or ("false", "true"))
            return named._from_numbers([int(value) for value in values], notices)
        return self._from_numbers(values, notices)

    def faults(self) -> dict[int, str]:
        """Say which rows have no label that can be read, beside others that have one.

        Labels of mixed types are no such fault: which of them are wrong is not known.

        Returns:
            What is wrong with each, by index; empty where no row has a label.
        """
        raw, _ = self._with_points()
        if all(map(_is_missing, raw)):
            return {}
        faults = {i: fault for i, value in enumerate(raw) if (fault := self._fault(value))}
        words = [value for index, value in enumerate(raw) if index not in faults]
        if self.names is None and all(isinstance(value, str) for value in words):
            # A class may be called "nan" where the others are words.
            plain = any(not _NUMBER.fullmatch(str(value).strip()) for value in words)
            faults = {i: fault for i, fault in faults.items() if not plain or _is_unread(raw[i])}
        return faults

    def _fault(self, value: object) -> str:
        """Say what is wrong with a label; empty where nothing is."""
        if _is_missing(value):
            return "no label"
        if _family(value) not in _FAMILIES:
            return f"a {_family(value)} as label"
        if isinstance(value, str) and _SURROGATE.search(value):
            return "half of a surrogate pair as label"
        if isinstance(value, bool):
            return ""
        word = str(value).strip()
        finite = isinstance(value, str) or -_LARGEST <= cast(float, value) <= _LARGEST
        if not finite or (_NOT_FINITE.fullmatch(word) and word not in (self.names or ())):
            return f"label {word:.40}"
        if self.names is None or self.kind == "regression" or word in self.names:
            return ""
        numbered = _NUMBER.fullmatch(word) is not None and float(word) in range(len(self.names))
        return "" if numbered else f"label {value!r:.40}"

    def _bad(self, index: int, fault: str) -> DataError:
        return DataError(f"{self.table.where(index)}: {self.name!r} {fault}")

    def _with_points(self) -> tuple[list[object], tuple[str, ...]]:
        """Write a decimal comma as a point where all labels are numbers, and say so."""
        raw = ValueWriter.of(self.table.column(self.name))
        if not self.table.decimal_comma or self.names is not None:
            return raw, ()
        words = [str(value).strip() for value in raw if not _is_missing(value)]
        commas = any("," in word for word in words)
        if not commas or not all(_COMMA.fullmatch(w) or _NOT_FINITE.fullmatch(w) for w in words):
            return raw, ()
        said = f"{self.table.title}: the commas in {self.name!r} are read as decimal points."
        return [v.replace(",", ".") if isinstance(v, str) else v for v in raw], (said,)

    def _of_one_type(self, raw: list[object]) -> list[str] | list[int | float]:
        """Return all labels as words or all as numbers, numerals turned into numbers."""
        first: dict[str, int] = {}
        for kind in dict.fromkeys(map(type, raw)):
            index = next(index for index, value in enumerate(raw) if type(value) is kind)
            first.setdefault(_family(raw[index]), index)
        alien = next((family for family in first if family not in _FAMILIES), None)
        if alien is not None:
            raise self._bad(
                first[alien], f"must be a string or a number, got a {alien}. Give one label a row."
            )
        if len(first) > 1:
            raise self._mixed(first, raw)
        if "string" not in first:
            return cast("list[int | float]", raw)
        words = [cast(str, value).strip() for value in raw]
        if self.names is not None and set(words) <= set(self.names):
            return words
        # Few labels differ, whatever the number of rows.
        distinct = {word: _NUMBER.fullmatch(word) is not None for word in dict.fromkeys(words)}
        numeral = next((word for word, is_number in distinct.items() if is_number), None)
        if numeral is None:
            return words
        odd = (word for word, is_number in distinct.items() if not is_number)
        bad = next((word for word in odd if not _NOT_FINITE.fullmatch(word)), None)
        if bad is not None:
            first = {"number": words.index(numeral), "string": words.index(bad)}
            raise self._mixed(first, raw)
        # int() and float() also take "1_000", " 1" and non-ASCII digits; the patterns above have
        # sorted these out.
        whole = all(map(_INTEGER.fullmatch, distinct))
        values = {word: int(word) if whole else float(word) for word in distinct}
        return [values[word] for word in words]

    def _mixed(self, first: dict[str, int], raw: list[object]) -> DataError:
        came = [f"a {kind}, {raw[i]!r:.40}, at {self.table.where(i)}" for kind, i in first.items()]
        return DataError(
            f"{self.name!r} holds labels of mixed types: {'; '.join(came)}. Use one type, or name "
            'all labels in the file dataset.json beside the data: {"label_names": [...]}.'
        )

    def _from_words(self, words: list[str]) -> Labels:
        if self.kind == "regression":
            raise self._bad(0, f"must be a number for a regression, got {words[0]!r:.40}.")
        names = tuple(sorted(set(words))) if self.names is None else self.names
        place = {name: index for index, name in enumerate(names)}
        for word in dict.fromkeys(words):
            if _SURROGATE.search(word):
                raise self._bad(
                    words.index(word),
                    "must be a text, got half of a surrogate pair. Mend the row.",
                )
            if word not in place:
                where = self.table.where(words.index(word))
                raise DataError(f"{where}: {unknown('label', word, names)}")
        alike = look_alikes(names) if self.names is None else []
        notices = tuple(
            f"{self.table.title}: the labels {' and '.join(map(ascii, group))} are classes of "
            "their own, though they look alike. Mend the file where they are one."
            for group in alike
        )
        return Labels([place[word] for word in words], names, "classification", notices)

    def _from_numbers(self, numbers: Sequence[int | float], notices: tuple[str, ...]) -> Labels:
        for index, number in enumerate(numbers):
            # Comparing works for integers of any size, where math.isfinite overflows.
            if not -_LARGEST <= number <= _LARGEST:
                came = f"{number!s:.40}. Mend or remove the row."
                raise self._bad(index, f"must be finite (in 32 bits), got {came}")

        def targets() -> Labels:
            return Labels([float(number) for number in numbers], None, "regression", notices)

        if self.kind == "regression":
            return targets()
        whole = [int(number) for number in numbers]
        if not all(isinstance(number, int) for number in numbers):
            part = next((i for i, number in enumerate(numbers) if number != whole[i]), None)
            gapless = min(whole) == 0 and 1 <= max(whole) == len(set(whole)) - 1
            if self.kind is None and self.names is None and (part is not None or not gapless):
                return targets()
            if part is not None:
                raise self._bad(
                    part,
                    f"must be a class index, got {numbers[part]}. Use kind regression without "
                    "label names if these are targets.",
                )
            notices = (
                *notices,
                f"{self.table.title}: labels such as {float(numbers[0])} are whole numbers from 0 "
                f"to {max(whole)} and are read as classes; set kind to regression if they are "
                "targets.",
            )
        for index, label in enumerate(whole):
            if label < 0 or (self.names is not None and label >= len(self.names)):
                names = self.names or ()
                top = f" and <= {len(names) - 1} ({', '.join(names)})" if names else ""
                raise self._bad(
                    index,
                    f"must be >= 0{top}, got {label}. Renumber the labels, write them as words, or "
                    "set kind to regression if they are targets.",
                )
        return Labels(whole, self.names, "classification", notices)


def _is_missing(value: object) -> bool:
    return value is None or (isinstance(value, str) and not value.strip())


def _is_unread(value: object) -> bool:
    return _is_missing(value) or _family(value) not in _FAMILIES


def _family(value: object) -> str:
    if isinstance(value, bool):
        return "truth value"
    if isinstance(value, (int, float)):
        return "number"
    return "string" if isinstance(value, str) else type(value).__name__


def look_alikes(names: Iterable[str]) -> list[list[str]]:
    """Return labels that differ by case, normal form, spaces or signs that nobody sees.

    Example:
        >>> look_alikes(["good", "Good ", "bad"])
        [['good', 'Good ']]
    """
    groups: dict[str, list[str]] = {}
    for name in names:
        folded = unicodedata.normalize("NFKC", name).casefold()
        seen = "".join(sign for sign in folded if unicodedata.category(sign) not in ("Cf", "Zs"))
        groups.setdefault(seen, []).append(name)
    return [group for group in groups.values() if len(group) > 1]
