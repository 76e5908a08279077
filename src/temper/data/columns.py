"""Find the text, pair and label columns of a table, and check that texts are texts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

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


@dataclass(frozen=True)
class Columns:
    """Names of the columns to read; None means found by the usual names.

    Args:
        text: Column of the text.
        text_pair: Column of the second text. Looked for by itself only where ``text`` is None too.
        label: Column of the label.
    """

    text: str | None = None
    text_pair: str | None = None
    label: str | None = None


@dataclass(frozen=True)
class FoundColumns:
    """Names of the columns to read, as the table has them.

    Args:
        text: Column of the text.
        text_pair: Column of the second text, None for single texts.
        label: Column of the label, None where there is none.
    """

    text: str
    text_pair: str | None
    label: str | None


def find_columns(table: Table, wanted: Columns, *, labelled: bool) -> FoundColumns:
    """Choose the columns of a table.

    Args:
        table: The table.
        wanted: Names that the user gave.
        labelled: Whether a label column is looked for.

    Returns:
        The names; ``label`` is None where none was found.

    Raises:
        DataError: If a given name is not there, no text column is found, or two roles share a
            column.
    """
    for name in (wanted.text, wanted.text_pair, wanted.label):
        if name is not None and name not in table.names:
            raise DataError(f"{table.title}: {unknown('column', name, table.names)}")
    text, pair = wanted.text, wanted.text_pair
    taken = {name for name in (wanted.label, pair) if name is not None}
    if text is None and pair is None:
        text, pair = _usual_pair(table, taken)
    if text is None:
        text = _first(table, TEXT_NAMES, taken)
    if text is None:
        raise DataError(
            f"{table.title}: no text column found among {', '.join(map(repr, table.names))}. The "
            "first line "
            f"must name the columns; the usual names are {', '.join(TEXT_NAMES[:6])} ... "
            "Rename the column or give its name as text_column."
        )
    label = wanted.label
    if label is None and labelled:
        label = _first(table, LABEL_NAMES, {text, *([pair] if pair else [])})
    chosen = [name for name in (text, pair, label) if name is not None]
    if len(set(chosen)) != len(chosen):
        raise DataError(
            f"{table.title}: text, pair and label must be different columns, got "
            f"{', '.join(chosen)}."
        )
    return FoundColumns(text, pair, label)


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


def read_texts(table: Table, column: str) -> list[str]:
    """Return a column's texts.

    Args:
        table: The table.
        column: Name of the column.

    Returns:
        One string a row; an empty one is allowed here.

    Raises:
        DataError: If a value is not a string, or holds half of a surrogate pair (no UTF-8 can hold
            it).
    """
    texts: list[str] = []
    for index, value in enumerate(table.column(column)):
        if not isinstance(value, str):
            came = "nothing (null or missing)" if value is None else f"{value!r:.40}"
            raise DataError(
                f"{table.where(index)}: {column!r} must be a text, got {came}. Mend or remove "
                "the row."
            )
        if not value.isascii() and any("\ud800" <= letter <= "\udfff" for letter in value):
            raise DataError(
                f"{table.where(index)}: {column!r} holds half of a surrogate pair, which is not "
                "text. "
                "Mend or remove the row."
            )
        texts.append(value)
    return texts
