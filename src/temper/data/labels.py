"""Read a column of labels and recognize its kind: classes, several labels, or a regression."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal, cast, get_args

from temper.data.columns import SURROGATE
from temper.data.examples import Kind
from temper.data.label_lists import LIST, indices_of, label_lists, several_labels
from temper.data.stored import listed
from temper.data.table import Table
from temper.errors import DataError, unknown

# Maximum length of a number as label; Python raises on numerals with thousands of digits.
_INTEGER = re.compile(r"[+-]?\d{1,40}")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
# A number with a decimal comma, as in spreadsheets with semicolons between columns.
_COMMA = re.compile(r"[+-]?\d*,?\d+([eE][+-]?\d+)?")
_NOT_FINITE = re.compile(r"[+-]?(nan|inf|infinity)", re.IGNORECASE)
# pandas writes these for a missing value in a column of text.
_MISSING = frozenset({"nan", "<na>"})
# These may mean a missing value, but are also classes of real tasks.
_PERHAPS_MISSING = ("None", "none", "null", "NULL", "NA", "N/A", "n/a")

_FAMILIES = ("truth value", "number", "string")

# Targets become float32.
_LARGEST = 3.4e38

LabelKind = Literal["classification", "regression", "multi_label"]


def label_kind(kind: str) -> LabelKind | None:
    """Return the kind if a column of labels can have it; None for kinds with several columns."""
    return next((known for known in get_args(LabelKind) if known == kind), None)


@dataclass(frozen=True)
class Labels:
    """The labels of a column, as `Examples` has them.

    Args:
        values: Class indices, targets, or zeros and ones for several labels; None if no row has a
            label.
        first: Number in the file that means the first of ``names``, 0 or 1.
    """

    values: list[Any] | None
    names: tuple[str, ...] | None
    kind: Kind
    notices: tuple[str, ...] = ()
    first: int = 0


@dataclass(frozen=True)
class Fault:
    """Why a label cannot be read, in short and as the text of an error."""

    short: str
    error: str


@dataclass(frozen=True)
class LabelColumn:
    """A column of labels in a table, and how to read it.

    Unless ``kind`` is given, the values decide:

    - Words are classes, in sorted order.
    - Numbers with a fraction are targets of a regression.
    - Whole numbers are classes.
    - Whole numbers written as floats (1.0, as pandas writes integers with missing values) are
      classes if they run from 0 to C - 1 without a gap, else targets.

    Text that is a numeral counts as a number. Whole numbers are class indices, without names. If
    one cannot be an index (negative, or with leading zeros as in 007), all become names. 1.0 gets
    the name 1, so that files with either form agree.

    Args:
        names: The classes' names by index, from ``dataset.json`` or the file's own features.
        kind: Kind of the labels; None recognizes it.
        are_indices: Whether whole numbers are indices even if ``names`` are numerals, as in a
            `datasets.ClassLabel` column.
        first: Number in the file that means the first of ``names``; None for 0, or 1 if the
            labels run from 1 to the number of names.
    """

    table: Table
    name: str
    names: tuple[str, ...] | None = None
    kind: LabelKind | None = None
    are_indices: bool = False
    first: int | None = None

    def __post_init__(self) -> None:
        names = self.names or ()
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise DataError(
                f"{self.table.title}: two classes of {self.name!r} are named {twice!r:.40}. Give "
                "each class a different name (dataset.json, or the features of the file)."
            )

    def read(self) -> Labels:
        """Read all labels; the values are None if no row has one.

        A missing label is null, an empty text or NaN, or -1 in all rows, as in GLUE.

        Raises:
            DataError: Only some labels are missing, or labels are of mixed types, out of range or
                not finite.
        """
        raw, notices = self._with_points()
        if (lists := self._lists(raw)) is not None:
            return self._from_lists(lists)
        if self._unlabeled(raw):
            return Labels(None, self.names, "unlabeled")
        if faults := self._faults(raw):
            index, fault = next(iter(faults.items()))
            message = (
                f"{self.table.where(index)}: {fault.error} Labels that cannot be read: "
                f"{len(faults):,} of {len(raw):,} rows"
            )
            if len(faults) == len(raw):
                raise DataError(f"{message}.")
            raise DataError(f"{message}; --set data.skip_bad_rows=true leaves them out.")
        values = self._of_one_type(raw)
        if isinstance(values[0], bool):
            named = replace(self, names=self.names or ("false", "true"))
            labels = named._from_numbers([int(value) for value in values], values)
        elif not isinstance(values[0], str):
            labels = self._from_numbers(values, values)
        elif (numbers := self._numbers(values)) is None:
            labels = self._from_words(values)
        else:
            labels = self._from_numbers(numbers, values)
        return replace(labels, notices=(*notices, *labels.notices))

    def _unlabeled(self, raw: list[object]) -> bool:
        """Return whether no row has a label: all are missing, or -1, which is not a name."""
        if all(map(self._is_missing, raw)):
            return True
        texts = {str(value).strip() for value in raw}
        return "-1" not in (self.names or ()) and texts <= {"-1", "-1.0"}

    def _lists(self, raw: list[object]) -> list[list[Any]] | None:
        wanted = self.kind == "multi_label"
        if self.kind not in (None, "multi_label") or all(map(self._is_missing, raw)):
            return None
        if wanted:
            # An empty cell means that no label applies.
            empty: object = [] if any(isinstance(value, list) for value in raw) else ""
            raw = [empty if _is_blank(value) else value for value in raw]
        return label_lists(raw, wanted=wanted)

    def _from_lists(self, lists: list[list[Any]]) -> Labels:
        try:
            values, names = indices_of(lists, self.names)
        except ValueError as error:
            index, label = error.args
            if self.names is not None:
                where = self.table.where(index)
                raise DataError(f"{where}: {unknown('label', str(label), self.names)}") from None
            raise self._bad(
                index, f"must have names or indices of labels, got {label!r:.40}. Fix the row."
            ) from None
        if len(names) < 2:
            raise DataError(
                f"{self.table.title}: {self.name!r} has one label only, {', '.join(names)}. Use "
                "rows with at least two labels."
            )
        notice = (
            f"{self.table.title}: a text may have several labels ({len(names)} labels in "
            f"{self.name!r}, {sum(map(sum, values)) / len(values):.2f} per row on average)."
        )
        return Labels(values, names, "multi_label", (notice,))

    def faults(self) -> dict[int, str]:
        """Return row index -> fault for the labels that cannot be read; empty without any label.

        Mixed types are not reported, because it is unknown which of them are wrong.
        """
        raw, _ = self._with_points()
        if self._lists(raw) is not None or self._unlabeled(raw):
            return {}
        return {index: fault.short for index, fault in self._faults(raw).items()}

    def _faults(self, raw: list[object]) -> dict[int, Fault]:
        texts = {value.strip() for value in raw if isinstance(value, str)} - {""}
        words = (text for text in texts if not _like_number(text) and not LIST.fullmatch(text))
        # A class may be called "inf" if the others are words.
        if self.names is None:
            may_be_words = self.kind != "regression"
        else:
            may_be_words = self.kind == "classification" and not texts.isdisjoint(self.names)
        as_words = may_be_words and any(words)
        # A 0 shows that labels are not counted from 1.
        counted = replace(self, first=0) if self.first is None and _has_zero(raw) else self
        # Only distinct labels are looked at, because there are few of them.
        of_label: dict[tuple[type, object], Fault | None] = {}
        result = {}
        for index, value in enumerate(raw):
            comparable = value is None or _family(value) in _FAMILIES
            label = type(value), value if comparable else index
            if label not in of_label:
                of_label[label] = counted._fault(value, as_words=as_words)
            if fault := of_label[label]:
                result[index] = fault
        return result

    def _is_missing(self, value: object) -> bool:
        """Return whether a label is missing: null, NaN, an empty text, or "nan" as of pandas."""
        if _is_blank(value):
            return True
        word = value.strip() if isinstance(value, str) else ""
        return word.casefold() in _MISSING and word not in (self.names or ())

    def _fault(self, value: object, *, as_words: bool) -> Fault | None:
        """Return the fault of a label; with ``as_words``, texts are classes even if numerals."""
        word = str(value).strip()
        if value is None or not word:
            return Fault("no label", f"{self.name!r} must be a label, got nothing.")
        if self._is_missing(value):
            return self._must("a label", value, "This means a missing label.")
        if _family(value) not in _FAMILIES:
            return self._must("a string or a number", value, shown=f"a {_family(value)}")
        if isinstance(value, str):
            if SURROGATE.search(value):
                return self._must("a string", value, shown="half of a surrogate pair")
            if word in (self.names or ()) and self.kind != "regression":
                return None
            if LIST.fullmatch(word):
                return self._must("one label", value, "Pass one label per row.", shown="a list")
            if as_words:
                return None if self.names is None else self._unnamed(value)
            if self.kind == "regression" and not _like_number(word):
                return self._must("a number for a regression", value)
            if self.names is not None and not _NUMBER.fullmatch(word):
                return self._unnamed(value)
        return self._number_fault(value, float(word) if isinstance(value, str) else value)

    def _number_fault(self, value: object, number: Any) -> Fault | None:
        if not -_LARGEST <= number <= _LARGEST:
            return self._must("finite (in 32 bits)", value)
        if self.kind == "regression" or (self.names is None and self.kind != "classification"):
            return None
        if number % 1:
            advice = "If these are targets, pass --set data.kind=regression and no label names."
            return self._must("a class index", value, advice)
        if self.names is None:
            return None
        if self._by_name():
            code = value.strip() if isinstance(value, str) else value
            return None if _code(code) in self.names else self._unnamed(value)
        first = self.first or 0
        # Labels may be counted from 1, unless `first` or the column's type excludes it.
        last = first + len(self.names) - (self.first is not None or self.are_indices)
        if number in range(first, last + 1):
            return None
        return self._must(
            f">= {first} and <= {first + len(self.names) - 1} ({', '.join(self.names)})",
            value,
            "Renumber the labels, write them as words, or pass --set data.kind=regression if they "
            "are targets.",
        )

    def _must(self, rule: str, value: object, fix: str = "Fix the row.", shown: str = "") -> Fault:
        short = f"{shown} as label" if shown else f"label {str(value).strip():.40}"
        return Fault(short, f"{self.name!r} must be {rule}, got {shown or f'{value!r:.40}'}. {fix}")

    def _unnamed(self, value: object) -> Fault:
        code = _code(value.strip() if isinstance(value, str) else value)
        return Fault(f"label {value!r:.40}", unknown("label", code, self.names or ()))

    def _by_name(self) -> bool:
        """Return whether numbers in the file are names of classes instead of indices."""
        return not self.are_indices and any(map(_NUMBER.fullmatch, self.names or ()))

    def _bad(self, index: int, fault: str) -> DataError:
        return DataError(f"{self.table.where(index)}: {self.name!r} {fault}")

    def _with_points(self) -> tuple[list[object], tuple[str, ...]]:
        """Replace decimal commas by points if all labels are numbers; return the notice, too."""
        raw = listed(self.table.column(self.name))
        if not self.table.decimal_comma or self.names is not None:
            return raw, ()
        words = [str(value).strip() for value in raw if not self._is_missing(value)]
        commas = any("," in word for word in words)
        if not commas or not all(_COMMA.fullmatch(w) or _NOT_FINITE.fullmatch(w) for w in words):
            return raw, ()
        notice = f"{self.table.title}: the commas in {self.name!r} are read as decimal points."
        return [v.replace(",", ".") if isinstance(v, str) else v for v in raw], (notice,)

    def _of_one_type(self, raw: list[object]) -> list[str] | list[int | float]:
        """Return the labels if they are all texts, all numbers or all booleans, else raise."""
        first: dict[str, int] = {}
        for kind in dict.fromkeys(map(type, raw)):
            index = next(index for index, value in enumerate(raw) if type(value) is kind)
            first.setdefault(_family(raw[index]), index)
        if len(first) > 1:
            raise self._mixed(first, raw)
        if "string" not in first:
            return cast("list[int | float]", raw)
        return [cast(str, value).strip() for value in raw]

    def _numbers(self, words: list[str]) -> list[int | float] | None:
        """Convert labels to numbers if all are numerals; return None if they are words."""
        # Only distinct labels are matched, because there are few of them.
        distinct = {word: _NUMBER.fullmatch(word) is not None for word in dict.fromkeys(words)}
        if self.names is not None and distinct.keys() <= set(self.names):
            return None
        numeral = next((word for word, is_number in distinct.items() if is_number), None)
        if numeral is None:
            return None
        odd = (word for word, is_number in distinct.items() if not is_number)
        bad = next((word for word in odd if not _NOT_FINITE.fullmatch(word)), None)
        # With kind classification, a mixture of words and numerals is a list of words.
        if bad is not None and self.kind == "classification":
            return None
        if bad is not None:
            first = {"number": words.index(numeral), "string": words.index(bad)}
            raise self._mixed(first, words, "--set data.kind=classification, ")
        # int() and float() also accept "1_000", " 1" and non-ASCII digits; the patterns above do
        # not.
        whole = all(map(_INTEGER.fullmatch, distinct))
        values = {word: int(word) if whole else float(word) for word in distinct}
        return [values[word] for word in words]

    def _mixed(self, first: dict[str, int], raw: Sequence[object], way: str = "") -> DataError:
        came = [f"a {kind}, {raw[i]!r:.40}, at {self.table.where(i)}" for kind, i in first.items()]
        return DataError(
            f"{self.name!r} has labels of mixed types: {'; '.join(came)}. Use one type, {way}or "
            'name all labels in the file dataset.json next to the data: {"label_names": [...]}.'
        )

    def _from_words(self, words: list[str]) -> Labels:
        names = tuple(sorted(set(words))) if self.names is None else self.names
        index_of = {name: index for index, name in enumerate(names)}
        notices = () if self.names is not None else self._doubts(words, names)
        return Labels([index_of[word] for word in words], names, "classification", notices)

    def _doubts(self, words: list[str], names: tuple[str, ...]) -> tuple[str, ...]:
        """Warn of doubtful classes: similar names, several labels in one, missing values."""
        title = self.table.title
        notices = [
            f"{title}: the labels {' and '.join(map(ascii, group))} are read as different "
            "classes, but look the same. Fix the file if they are the same class."
            for group in look_alikes(names)
        ]
        several = several_labels(names)
        rows = [index for index, word in enumerate(words) if word in several]
        if rows:
            notices.append(
                f"{title}: {len(rows):,} of {len(words):,} rows ({len(rows) / len(words):.0%}) "
                f"seem to have several labels in {self.name!r}, for example "
                f"{words[rows[0]]!r:.60} at {self.table.where(rows[0])}. Each combination is read "
                "as a separate class. Set --set data.kind=multi_label to read them as several."
            )
        for name in set(names) & set(_PERHAPS_MISSING):
            notices.append(
                f"{title}: {name!r} in {self.name!r} is read as a class ({words.count(name):,} "
                "rows). If it means a missing label, leave these cells empty."
            )
        return tuple(notices)

    def _from_numbers(self, numbers: Sequence[int | float], written: Sequence[object]) -> Labels:
        def targets(*notices: str) -> Labels:
            return Labels([float(number) for number in numbers], None, "regression", notices)

        whole = [int(number) for number in numbers]
        if self.kind == "regression" or whole != list(numbers):
            return targets()
        title = self.table.title
        notices: tuple[str, ...] = ()
        guessed = self.kind is None and self.names is None
        if guessed and not all(isinstance(number, int) for number in numbers):
            such = f"{title}: labels such as {float(numbers[0])} in {self.name!r} are whole numbers"
            if min(whole) != 0 or not 1 <= max(whole) == len(set(whole)) - 1:
                return targets(
                    f"{such} and are read as the targets of a regression; pass "
                    "--set data.kind=classification if they are classes."
                )
            notices += (
                f"{such} from 0 to {max(whole)} and are read as classes; pass "
                "--set data.kind=regression if they are targets.",
            )
        if self.names is not None:
            return self._from_codes(whole, written)
        negative = next((index for index, label in enumerate(whole) if label < 0), None)
        if guessed and negative is not None:
            raise self._bad(
                negative,
                f"must be >= 0, got {whole[negative]}, which may be a class, a target or a missing "
                "label. Pass --set data.kind=classification or --set data.kind=regression, or "
                "remove such rows.",
            )
        codes = {value: _code(value) for value in dict.fromkeys(written)}
        if negative is None and all(map(_is_index, codes.values())):
            return Labels(whole, None, "classification", notices)
        if guessed:
            shown = next(code for code in codes.values() if not _is_index(code))
            notices += (
                f"{title}: numbers such as {shown} in {self.name!r} are read as class names; "
                "--set data.kind=regression if they are targets.",
            )
        names = tuple(sorted(set(codes.values()), key=lambda code: (int(code), code)))
        notices += tuple(
            f"{title}: the labels {a!r} and {b!r} in {self.name!r} are read as different classes, "
            "but are the same number. Fix the file if they are the same class."
            for a, b in pairwise(names)
            if int(a) == int(b)
        )
        index_of = {name: index for index, name in enumerate(names)}
        indices = [index_of[codes[value]] for value in written]
        return Labels(indices, names, "classification", notices)

    def _from_codes(self, whole: list[int], written: Sequence[object]) -> Labels:
        """Read whole numbers as names if the known names are numerals, else as indices."""
        names = self.names or ()
        notices: tuple[str, ...] = ()
        if self._by_name():
            index_of = {_code(name): index for index, name in enumerate(names)}
            codes = [_code(value) for value in written]
            return Labels([index_of[code] for code in codes], names, "classification")
        first = self.first or 0
        if self.first is None and not self.are_indices and min(whole) > 0:
            first = int(max(whole) == len(names))
        if first and self.first is None:
            notices += (
                f"{self.table.title}: the labels 1 to {len(names)} in {self.name!r} are read as "
                f"{', '.join(names[:5])}{' ...' if len(names) > 5 else ''}, the classes that "
                "dataset.json names, in this order.",
            )
        values = [label - first for label in whole]
        return Labels(values, names, "classification", notices, first)


def _code(value: object) -> str:
    """Return the name of a class that is a whole number: its text in the file, but 1 for 1.0.

    Example:
        >>> _code("007"), _code("1.0"), _code(2.0), _code(True)
        ('007', '1', '2', '1')
    """
    if not isinstance(value, str):
        return str(int(cast(float, value)))
    if _INTEGER.fullmatch(value) or not _NUMBER.fullmatch(value):
        return value
    number = float(value)
    return str(int(number)) if number.is_integer() else value


def _has_zero(labels: Iterable[object]) -> bool:
    """Return whether a label is the number 0, in any form: 0, "0", "00", 0.0, False."""
    return any(
        _NUMBER.fullmatch(label.strip()) is not None and float(label) == 0
        if isinstance(label, str)
        else label == 0
        for label in labels
    )


def _is_blank(value: object) -> bool:
    if isinstance(value, str):
        return not value.strip()
    return value is None or value != value  # only NaN differs from itself


def _like_number(text: str) -> bool:
    return bool(_NUMBER.fullmatch(text) or _NOT_FINITE.fullmatch(text))


def _is_index(code: str) -> bool:
    """Return whether a number in text form can be an index: no sign and no leading zeros."""
    return code.isascii() and code.isdigit() and (code == "0" or code[0] != "0")


def _family(value: object) -> str:
    if isinstance(value, bool):
        return "truth value"
    if isinstance(value, (int, float)):
        return "number"
    return "string" if isinstance(value, str) else type(value).__name__


def look_alikes(names: Iterable[str]) -> list[list[str]]:
    """Group labels that differ only in case, Unicode normal form, spaces or invisible characters.

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
