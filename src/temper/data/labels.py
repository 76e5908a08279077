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


def read_labels(
    table: Table,
    column: str,
    *,
    names: tuple[str, ...] | None = None,
    kind: LabelKind | None = None,
) -> Labels:
    """Read a label column.

    Strings are classes, sorted into indices; strings that are all numerals are read as numbers (a
    CSV file holds nothing else). Integers are class indices. Floats are targets of a regression,
    except where all of them are whole and run from 0 to C - 1 without a gap (1.0 as pandas writes
    an integer column with holes): these are classes, and a notice says so.

    Args:
        table: The table.
        column: Name of the label column.
        names: The classes' names by index, from ``dataset.json`` or the file's own features.
        kind: What the labels are, where the caller knows.

    Returns:
        The labels; values None where every row is without one (empty, null, or GLUE's -1).

    Raises:
        DataError: If labels are missing in part, of mixed types, out of range, NaN or infinite.
    """
    raw, notices = _with_points(list(table.column(column)), names, table=table, column=column)
    missing = [index for index, value in enumerate(raw) if _is_missing(value)]
    if len(missing) == len(raw):
        return Labels(None, names, "unlabelled")
    if missing:
        raise DataError(
            f"{table.where(missing[0])}: {column!r} must be a label, got nothing "
            f"({len(missing)} of {len(raw)} rows). Give every row a label or none, or leave such "
            "rows out with --skip-bad-rows (`skip_bad_rows`)."
        )
    values = _one_type(raw, table=table, column=column, names=names)
    if all(isinstance(value, (int, float)) and value == -1 for value in values):
        return Labels(None, names, "unlabelled")
    if isinstance(values[0], str):
        return _from_words(values, table=table, column=column, names=names, kind=kind)
    if isinstance(values[0], bool):
        numbers: Sequence[int | float] = [int(value) for value in values]
        names = names or ("false", "true")
    else:
        numbers = cast(list[float], values)
    read = _from_numbers(numbers, table=table, column=column, names=names, kind=kind)
    return replace(read, notices=(*notices, *read.notices))


def label_faults(
    table: Table,
    column: str,
    *,
    names: tuple[str, ...] | None = None,
    kind: LabelKind | None = None,
) -> dict[int, str]:
    """Say which rows have no label that can be read, beside others that have one.

    Labels of mixed types are no such fault: which of them are wrong is not known.

    Args:
        table: The table.
        column: Name of the label column.
        names: The classes' names by index, where they are known.
        kind: What the labels are, where the caller knows.

    Returns:
        What is wrong with each, by index; empty where no row has a label.
    """
    raw, _ = _with_points(list(table.column(column)), names, table=table, column=column)
    if all(map(_is_missing, raw)):
        return {}
    faults = {}
    for index, value in enumerate(raw):
        if _is_missing(value):
            faults[index] = "no label"
        elif _family(value) not in _FAMILIES:
            faults[index] = f"a {_family(value)} as label"
        elif isinstance(value, bool):
            continue
        elif not isinstance(value, str) and not -_LARGEST <= cast(float, value) <= _LARGEST:
            faults[index] = f"label {value!s:.40}"
        elif isinstance(value, str) and _NOT_FINITE.fullmatch(value.strip()):
            if value.strip() not in (names or ()):
                faults[index] = f"label {value.strip()}"
        elif names is not None and kind != "regression" and not _is_class(value, names):
            faults[index] = f"label {value!r:.40}"
    words = {index: value for index, value in enumerate(raw) if index not in faults}
    if words and all(isinstance(value, str) for value in words.values()) and names is None:
        # A class may be called "nan" where the others are words.
        plain = any(not _NUMBER.fullmatch(str(value).strip()) for value in words.values())
        faults = {i: why for i, why in faults.items() if not plain or _is_unread(raw[i])}
    return faults


def _is_unread(value: object) -> bool:
    return _is_missing(value) or _family(value) not in _FAMILIES


def _is_missing(value: object) -> bool:
    return value is None or (isinstance(value, str) and not value.strip())


def _is_class(value: object, names: tuple[str, ...]) -> bool:
    """Say whether a label is a name, or the number of one."""
    word = str(value).strip()
    return word in names or (
        _NUMBER.fullmatch(word) is not None and float(word) in range(len(names))
    )


def _with_points(
    raw: list[object], names: tuple[str, ...] | None, *, table: Table, column: str
) -> tuple[list[object], tuple[str, ...]]:
    """Write a decimal comma as a point where all labels are numbers, and say so."""
    words = [str(value).strip() for value in raw if not _is_missing(value)]
    if not table.decimal_comma or names is not None or not any("," in word for word in words):
        return raw, ()
    if not all(_COMMA.fullmatch(word) or _NOT_FINITE.fullmatch(word) for word in words):
        return raw, ()
    told = f"{table.title}: the commas in {column!r} are read as decimal points."
    return [value.replace(",", ".") if isinstance(value, str) else value for value in raw], (told,)


def _family(value: object) -> str:
    if isinstance(value, bool):
        return "truth value"
    if isinstance(value, (int, float)):
        return "number"
    return "string" if isinstance(value, str) else type(value).__name__


def _one_type(
    raw: list[object], *, table: Table, column: str, names: tuple[str, ...] | None
) -> list[str] | list[int | float]:
    """Return all labels as words or all as numbers, numerals turned into numbers."""
    first: dict[str, int] = {}
    for index, value in enumerate(raw):
        first.setdefault(_family(value), index)
    alien = next((name for name in first if name not in _FAMILIES), None)
    if alien is not None:
        raise DataError(
            f"{table.where(first[alien])}: {column!r} must be a string or a number, got a {alien}. "
            "Give one label a row."
        )
    if len(first) > 1:
        raise _mixed(first, raw, table=table, column=column)
    if "string" not in first:
        return cast("list[int | float]", raw)
    words = [cast(str, value).strip() for value in raw]
    if names is not None and set(words) <= set(names):
        return words
    numerals = [_NUMBER.fullmatch(word) is not None for word in words]
    odd = [index for index, numeral in enumerate(numerals) if not numeral]
    if len(odd) == len(words):
        return words
    bad = next((index for index in odd if not _NOT_FINITE.fullmatch(words[index])), None)
    if bad is not None:
        kinds = {"number": numerals.index(True), "string": bad}
        raise _mixed(kinds, raw, table=table, column=column)
    # int() and float() also take "1_000", " 1" and non-ASCII digits; the patterns above have
    # sorted these out.
    whole = all(_INTEGER.fullmatch(word) for word in words)
    return [int(word) if whole else float(word) for word in words]


def _mixed(first: dict[str, int], raw: list[object], *, table: Table, column: str) -> DataError:
    found = "; ".join(f"a {kind}, {raw[i]!r:.40}, at {table.where(i)}" for kind, i in first.items())
    return DataError(
        f"{column!r} holds labels of mixed types: {found}. Use one type, or name all labels in the "
        'file dataset.json beside the data: {"label_names": [...]}.'
    )


def _from_words(
    words: list[str],
    *,
    table: Table,
    column: str,
    names: tuple[str, ...] | None,
    kind: LabelKind | None,
) -> Labels:
    if kind == "regression":
        raise DataError(
            f"{table.where(0)}: {column!r} must be a number for a regression, got {words[0]!r:.40}."
        )
    if names is None:
        names = tuple(sorted(set(words)))
    place = {name: index for index, name in enumerate(names)}
    for index, word in enumerate(words):
        if word not in place:
            raise DataError(f"{table.where(index)}: {unknown('label', word, names)}")
    return Labels([place[word] for word in words], names, "classification")


def _from_numbers(
    numbers: Sequence[int | float],
    *,
    table: Table,
    column: str,
    names: tuple[str, ...] | None,
    kind: LabelKind | None,
) -> Labels:
    for index, number in enumerate(numbers):
        # Comparing works for integers of any size, where math.isfinite overflows.
        if not -_LARGEST <= number <= _LARGEST:
            raise DataError(
                f"{table.where(index)}: {column!r} must be finite (in 32 bits), got "
                f"{number!s:.40}. "
                "Mend or remove the row."
            )
    if kind == "regression":
        return Labels([float(number) for number in numbers], None, "regression")
    integers = all(isinstance(number, int) for number in numbers)
    whole = [int(number) for number in numbers]
    part = next((i for i, number in enumerate(numbers) if number != whole[i]), None)
    notices: tuple[str, ...] = ()
    if not integers:
        gapless = min(whole) == 0 and 1 <= max(whole) == len(set(whole)) - 1
        if kind is None and names is None and (part is not None or not gapless):
            return Labels([float(number) for number in numbers], None, "regression")
        if part is not None:
            raise DataError(
                f"{table.where(part)}: {column!r} must be a class index, got {numbers[part]}. "
                "Use kind regression without label names if these are targets."
            )
        notices = (
            f"{table.title}: labels such as {float(numbers[0])} are whole numbers from 0 to "
            f"{max(whole)} "
            "and are read as classes; set kind to regression if they are targets.",
        )
    _check_range(whole, table=table, column=column, names=names)
    return Labels(whole, names, "classification", notices)


def _check_range(
    labels: list[int], *, table: Table, column: str, names: tuple[str, ...] | None
) -> None:
    for index, label in enumerate(labels):
        if label < 0 or (names is not None and label >= len(names)):
            top = "" if names is None else f" and <= {len(names) - 1} ({', '.join(names)})"
            raise DataError(
                f"{table.where(index)}: {column!r} must be >= 0{top}, got {label}. Renumber the "
                "labels, write "
                "them as words, or set kind to regression if they are targets."
            )
