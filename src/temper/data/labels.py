"""Read a label column: decide whether it holds classes or targets, and check every value."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, cast

from temper.data.examples import Kind
from temper.data.table import Table
from temper.errors import DataError, unknown

_INTEGER = re.compile(r"[+-]?\d+")
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
        raw = list(self.table.column(self.name))
        words = [str(value).strip() for value in raw if not _is_missing(value)]
        commas = self.table.decimal_comma and self.names is None and any("," in w for w in words)
        if not commas or not all(_COMMA.fullmatch(w) or _NOT_FINITE.fullmatch(w) for w in words):
            return raw, ()
        said = f"{self.table.title}: the commas in {self.name!r} are read as decimal points."
        return [v.replace(",", ".") if isinstance(v, str) else v for v in raw], (said,)

    def _of_one_type(self, raw: list[object]) -> list[str] | list[int | float]:
        """Return all labels as words or all as numbers, numerals turned into numbers."""
        first: dict[str, int] = {}
        for index, value in enumerate(raw):
            first.setdefault(_family(value), index)
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
        numerals = [_NUMBER.fullmatch(word) is not None for word in words]
        odd = [index for index, numeral in enumerate(numerals) if not numeral]
        if len(odd) == len(words):
            return words
        bad = next((index for index in odd if not _NOT_FINITE.fullmatch(words[index])), None)
        if bad is not None:
            raise self._mixed({"number": numerals.index(True), "string": bad}, raw)
        # int() and float() also take "1_000", " 1" and non-ASCII digits; the patterns above have
        # sorted these out.
        whole = all(_INTEGER.fullmatch(word) for word in words)
        return [int(word) if whole else float(word) for word in words]

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
        for index, word in enumerate(words):
            if word not in place:
                raise DataError(f"{self.table.where(index)}: {unknown('label', word, names)}")
        return Labels([place[word] for word in words], names, "classification")

    def _from_numbers(self, numbers: Sequence[int | float], notices: tuple[str, ...]) -> Labels:
        for index, number in enumerate(numbers):
            # Comparing works for integers of any size, where math.isfinite overflows.
            if not -_LARGEST <= number <= _LARGEST:
                came = f"{number!s:.40}. Mend or remove the row."
                raise self._bad(index, f"must be finite (in 32 bits), got {came}")
        targets = Labels([float(number) for number in numbers], None, "regression", notices)
        if self.kind == "regression":
            return targets
        whole = [int(number) for number in numbers]
        if not all(isinstance(number, int) for number in numbers):
            part = next((i for i, number in enumerate(numbers) if number != whole[i]), None)
            gapless = min(whole) == 0 and 1 <= max(whole) == len(set(whole)) - 1
            if self.kind is None and self.names is None and (part is not None or not gapless):
                return targets
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
