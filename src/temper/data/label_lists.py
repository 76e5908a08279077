"""Read a column with several labels per text (multi-label classification)."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

# A list of texts or numbers, written as one string: "['a', 'b']", '["a"]', "[0, 1]", "[]".
LIST = re.compile(r"""[\[({]\s*['"].*['"]\s*,?\s*[\])}]|[\[{][-+\d.,\s]*[\]}]""", re.DOTALL)
SEPARATORS = "|;,/+&"
"""Separators of labels in one cell, in order of preference."""
INDEX_LIMIT = 10_000
"""Limit for indices of labels without names."""
AUTOMATIC = "|;"
"""Separators that show by themselves that cells have several labels; others occur in names, too."""


def label_lists(values: Sequence[object], *, wanted: bool) -> list[list[Any]] | None:
    """Return the list of labels of each row; None if the column has one label per row.

    A cell is a list, a text such as ``['a', 'b']``, or a text such as ``a|b``. If several labels
    are ``wanted``, all `SEPARATORS` are tried, else only `AUTOMATIC`.

    Example:
        >>> label_lists(["a|b", "a", "b"], wanted=False)
        [['a', 'b'], ['a'], ['b']]
        >>> label_lists(["a", "b"], wanted=False)
    """
    if all(isinstance(value, list | tuple) for value in values):
        return [list(value) for value in values]  # type: ignore[call-overload]
    if not all(isinstance(value, str) for value in values):
        return None
    words = [str(value).strip() for value in values]
    if all(LIST.fullmatch(word) for word in words):
        return [_literal(word) for word in words]
    several = words if wanted else several_labels(words)
    signs = SEPARATORS if wanted else AUTOMATIC
    sign = next((sign for sign in signs if any(sign in word for word in several)), None)
    if sign is None and not wanted:
        return None
    parts = ([word] if sign is None else word.split(sign) for word in words)
    return [[part.strip() for part in row if part.strip()] for row in parts]


def indices_of(
    lists: Sequence[Sequence[Any]], names: Sequence[str] | None
) -> tuple[list[tuple[int, ...]], tuple[str, ...]]:
    """Turn lists of labels into zeros and ones, one per label.

    Args:
        lists: Per row, names of labels, their indices from 0, or a 0 or 1 for each label. The last
            form is recognized by repeated values.
        names: The labels' names by index, if known.

    Returns:
        A tuple of L zeros and ones per row, and the L names: ``names``, or else the sorted names or
            indices that occur.

    Raises:
        ValueError: With two arguments: the row's index, and its unknown or invalid label.
    """
    if _are_flags(lists, names):
        width = len(lists[0])
        label_names = tuple(names) if names is not None else tuple(map(str, range(width)))
        return [tuple(int(value) for value in row) for row in lists], label_names
    kinds = {type(label) for row in lists for label in row}
    numbers = kinds <= {int}
    for index, row in enumerate(lists):
        for label in row:
            if not (numbers and 0 <= label < INDEX_LIMIT) and not isinstance(label, str):
                raise ValueError(index, label)
    if numbers:
        count = 1 + max((label for row in lists for label in row), default=0)
        label_names = tuple(names) if names is not None else tuple(map(str, range(count)))
    else:
        label_names = tuple(names or sorted({label for row in lists for label in row}))
    keys: Iterable[object] = range(len(label_names)) if numbers else label_names
    indices = {key: position for position, key in enumerate(keys)}
    rows = []
    for index, row in enumerate(lists):
        applies = [0] * len(label_names)
        for label in row:
            if label not in indices:
                raise ValueError(index, label)
            applies[indices[label]] = 1
        rows.append(tuple(applies))
    return rows, label_names


def _are_flags(lists: Sequence[Sequence[Any]], names: Sequence[str] | None) -> bool:
    """Return whether each list has a 0 or 1 per label instead of indices, which never repeat."""
    width = len(lists[0]) if lists else 0
    if width < 2 or (names is not None and width != len(names)):
        return False
    if any(len(row) != width or any(value not in (0, 1) for value in row) for row in lists):
        return False
    return any(len(set(row)) < len(row) for row in lists)


def _literal(word: str) -> list[Any]:
    try:
        value = ast.literal_eval(word)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        inner = word[1:-1]
        return [part.strip().strip("'\"") for part in inner.split(",") if part.strip()]
    return sorted(value) if isinstance(value, set | frozenset) else list(value)


def several_labels(names: Iterable[str]) -> set[str]:
    """Return the class names that look like several labels joined by a separator.

    Example:
        >>> sorted(several_labels(["a", "b", "a|b", "b|c", "arts, crafts"]))
        ['a|b', 'b|c']
    """
    distinct = set(names)
    several: set[str] = set()
    for sign in SEPARATORS:
        parts = {name: {part.strip() for part in name.split(sign)} for name in distinct}
        counts = Counter(part for item in parts.values() for part in item)
        joined = {name for name, values in parts.items() if len(values) > 1 and all(values)}
        # A real separator: all parts of some label also occur in other labels.
        if any(all(counts[part] > 1 for part in parts[name]) for name in joined):
            several |= joined
    return several
