"""Token classification: texts whose words have tags (named entities, parts of speech).

The words are joined by single spaces, so that other code sees an ordinary text; ``text.split(" ")``
returns the words.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import regex
from numpy.typing import NDArray

from temper.data.examples import Examples
from temper.data.stored import StoredTexts
from temper.data.table import Table, read_rows
from temper.errors import unknown
from temper.functional.entities import to_iob2

WORD_COLUMNS = ("tokens", "words")
"""Usual names of the column with lists of words, in lower case."""
TAG_COLUMNS = ("ner_tags", "tags", "ner", "labels", "label", "pos_tags", "upos")
"""Usual names of the column with lists of tags."""

# What treebanks split into words: abbreviations, numbers, words, clitics, signs.
_WORD = regex.compile(
    r"(?:\p{L}\.){2,}"
    r"|\p{N}+(?:[.,:/\-]\p{N}+)*"
    r"|[\p{L}\p{M}\p{N}_]+?(?=['\u2019](?:s|re|ve|ll|d|m)\b)|['\u2019](?:s|re|ve|ll|d|m)\b"
    r"|[\p{L}\p{M}\p{N}_]+(?:[\-&.'\u2019][\p{L}\p{M}\p{N}_]+)*"
    r"|([^\s\p{L}\p{M}\p{N}_])\1*",
    regex.IGNORECASE,
)


def has_words(table: Table, column: str) -> bool:
    """Return whether a column has lists of words instead of texts, judged by its first row."""
    return isinstance(next(iter(table.column(column)), None), list | tuple)


def tagged_rows(
    table: Table, column: str, tags: str | None, names: Sequence[str] | None, *, skip: bool
) -> tuple[Examples, Table]:
    """Read lists of words, and their tags if there is a column ``tags``.

    Tags may be indices of ``names``. Entity schemes such as IOB1 are converted to IOB2. The table
    is returned without bad rows.
    """
    columns = (column,) if tags is None else (column, tags)

    def read(words: object, *row_tags: object) -> tuple[list[str], list[str]]:
        if not isinstance(words, list | tuple) or not words or not all(map(_is_text, words)):
            raise ValueError(f"{column!r} must be a list of words, got {words!r:.60}")
        # A word with a space inside, or an empty one, would break the split of the joined text.
        plain = ["_".join(word.split()) or "_" for word in words]
        return plain, [tag for item in row_tags for tag in _tags(item, len(words), names)]

    rows, table = read_rows(table, columns, read, skip=skip)
    text = StoredTexts.of(" ".join(words) for words, _ in rows)
    if tags is None:
        return Examples(table.title, text), table
    converted, scheme = to_iob2([row for _, row in rows])
    if scheme is None and names is not None:
        ordered = tuple(names)
    else:
        occurring = {tag for row in converted for tag in row}
        kept = {name for name in names or () if name == "O" or name.startswith(("B-", "I-"))}
        order = sorted(occurring | kept, key=lambda tag: (tag != "O", tag.partition("-")[::-1]))
        ordered = tuple(order)
    notice = f"{table.title}: the tags are converted from {scheme} to IOB2."
    notices = () if scheme is None else (notice,)
    indices = {name: position for position, name in enumerate(ordered)}
    labels = [tuple(indices[tag] for tag in row) for row in converted]
    examples = Examples(
        table.title, text, labels=labels, label_names=ordered, kind="tokens", notices=notices
    )
    return examples, table


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _tags(value: object, words: int, names: Sequence[str] | None) -> list[str]:
    """Return the names of a row's tags; raise a `ValueError` if they are invalid."""
    if not isinstance(value, list | tuple) or len(value) != words:
        came = f"{len(value)} tags" if isinstance(value, list | tuple) else f"{value!r:.40}"
        raise ValueError(f"expected one tag for each of the {words} words, got {came}")
    tags = []
    for tag in value:
        if isinstance(tag, int) and not isinstance(tag, bool):
            if names is None:
                raise ValueError(
                    "expected names of tags, got numbers. Name them in dataset.json next to the "
                    'data: {"label_names": ["O", "B-PER", "I-PER"]}'
                )
            if not 0 <= tag < len(names):
                raise ValueError(f"expected indices of tags, 0 to {len(names) - 1}, got {tag}")
            tags.append(names[tag])
        elif not isinstance(tag, str) or not tag.strip():
            raise ValueError(f"expected a tag for every word, got {tag!r:.40}")
        elif names is not None and tag not in names:
            raise ValueError(unknown("tag", tag, names).rstrip("."))
        else:
            tags.append(tag)
    return tags


def words_of(text: str) -> list[tuple[int, int]]:
    """Split an ordinary text into words and punctuation marks, as treebanks do.

    Returns:
        Start and end of each word in the text, in characters.

    Example:
        >>> text = "Merkel's U.S. trip cost $1,000."
        >>> [text[start:end] for start, end in words_of(text)]
        ['Merkel', "'s", 'U.S.', 'trip', 'cost', '$', '1,000', '.']
    """
    return [result.span() for result in _WORD.finditer(text)]


def first_tokens(text: str, offsets: Sequence[tuple[int, int]]) -> list[int]:
    """Return, per token, the index of the word of which it is the first token, else -1.

    The words of ``text`` are joined by single spaces. ``offsets`` has start and end of each token
    in characters, 0 and 0 for special tokens.

    Example:
        >>> first_tokens("ab c", [(0, 0), (0, 1), (1, 2), (3, 4), (0, 0)])
        [-1, 0, -1, 1, -1]
    """
    word_at, word = [], 0
    for sign in text:
        word += sign == " "
        word_at.append(-1 if sign == " " else word)
    result, last = [], -1
    for start, end in offsets:
        # The last character decides, because some vocabularies include the space before a word.
        last_word = word_at[end - 1] if end > start else -1
        result.append(last_word if last_word > last else -1)
        last = max(last, last_word)
    return result


def of_words(
    values: NDArray[Any], begins: Iterable[int], words: Iterable[Sequence[int]], *, missing: float
) -> list[NDArray[Any]]:
    """Pick the values of words' first tokens: [W, ...] for each row of W words.

    Args:
        values: Values of each token of a batch, [B, T, ...].
        begins: Position of each row's first token that is not padding, B numbers.
        words: Output of `first_tokens` for each row.
        missing: Value of words without a token.

    Example:
        >>> of_words(np.array([[7, 1, 2, 3, 7]]), [0], [[-1, 0, -1, 2, -1]], missing=-1)[0].tolist()
        [1, -1, 3]
    """
    result = []
    for row, begin, of_tokens in zip(values, begins, words, strict=True):
        indices = np.asarray(of_tokens)
        begun = indices >= 0
        shape = (indices.max(initial=-1) + 1, *row.shape[1:])
        of_row = np.full(shape, missing, dtype=values.dtype)
        of_row[indices[begun]] = row[begin : begin + len(indices)][begun]
        result.append(of_row)
    return result
