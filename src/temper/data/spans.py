"""Extractive question answering: the answer is a span of a context, as in SQuAD.

A row's text is the question; its second text is the context. The label of a row is all its right
answers with their positions. The model is trained on the first; a prediction is right if it equals
any.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from temper.data.examples import Examples, question_rows
from temper.data.table import Table
from temper.errors import brief
from temper.types import UNLABELED

QUESTION, CONTEXT, ANSWERS = "question", "context", "answers"
"""Usual names of the columns, in lower case."""

Answer = tuple[int, str]
"""Index of the answer's first character in the context, and the answer's text."""


def span_columns(names: Sequence[str]) -> tuple[str, ...] | None:
    """Return the columns of question, context and answers (if any); None for other tables.

    Example:
        >>> span_columns(["id", "question", "context", "answers"])
        ('question', 'context', 'answers')
        >>> span_columns(["question", "answer"])
    """
    known = {name.casefold(): name for name in names}
    if QUESTION not in known or CONTEXT not in known:
        return None
    return tuple(known[name] for name in (QUESTION, CONTEXT, ANSWERS) if name in known)


def span_rows(
    table: Table, columns: Sequence[str], *, labeled: bool, skip: bool
) -> tuple[Examples, Table]:
    """Read questions with their contexts, and with their answers if ``labeled``.

    The table is returned without bad rows.
    """
    columns = columns if labeled else columns[:2]
    return question_rows(table, columns, _row, kind="spans", skip=skip)


def _row(question: object, context: object, *answers: Any) -> Any:
    """Return the question, the context and the answers of a row.

    ``answers`` is a mapping with the lists ``text`` and ``answer_start``, or a list of mappings
    with one of each.
    """
    for what, value in ((QUESTION, question), (CONTEXT, context)):
        if not isinstance(value, str) or not value.strip():
            raise ValueError(f"{what!r} must be a string, got {brief(value)}")
    return question, context, _answers(answers[0], str(context)) if answers else ()


def _answers(value: Any, context: str) -> tuple[Answer, ...]:
    if isinstance(value, list | tuple) and all(isinstance(item, Mapping) for item in value):
        value = {key: [item.get(key) for item in value] for key in ("text", "answer_start")}
    texts, starts = (
        (value.get("text"), value.get("answer_start")) if isinstance(value, Mapping) else ((), ())
    )
    if not isinstance(texts, list | tuple) or not isinstance(starts, list | tuple):
        texts = starts = ()
    if not texts or len(texts) != len(starts):
        raise ValueError(
            '\'answers\' must have one answer or more, {"text": [...], "answer_start": [...]}, '
            f"got {brief(value)} (questions without an answer are not supported)"
        )
    result = []
    for text, start in zip(texts, starts, strict=True):
        fits = isinstance(text, str) and text.strip() and isinstance(start, int) and start >= 0
        if not fits or context[start : start + len(text)] != text:
            raise ValueError(
                f"the answer {brief(text)} is not at character {start!r} of the context"
            )
        result.append((start, text))
    return tuple(result)


def answer_span(item: Mapping[str, Any], first: int, last: int) -> tuple[int, int]:
    """Return start and end of the characters between two tokens in the context; -1 if outside.

    ``item`` is an encoded row, and ``first`` and ``last`` are token indices without padding.
    """
    start, end = item["starts"][first], item["ends"][last]
    return (start, end) if min(start, end) >= 0 else (-1, -1)


def texts_at(indices: Sequence[Sequence[int]], contexts: Sequence[str]) -> list[str]:
    """Cut spans, given as start and exclusive end, out of contexts; empty for -1.

    Example:
        >>> texts_at([(4, 7), (-1, -1)], ["the cat", "the dog"])
        ['cat', '']
    """
    rows = zip(contexts, indices, strict=True)
    return [context[max(start, 0) : max(end, 0)] for context, (start, end) in rows]


def token_positions(
    answers: Sequence[Answer], starts: Sequence[int], ends: Sequence[int]
) -> tuple[int, int]:
    """Return the first and last token of the first answer; -100 for both if it was cut off.

    ``starts`` and ``ends`` have per token its first character in the context and the index after
    its last; -1 for tokens outside the context.

    Example:
        >>> token_positions([(4, "b")], [-1, -1, 0, 4, -1], [-1, -1, 1, 5, -1])
        (3, 3)
        >>> token_positions([(4, "b")], [-1, -1, 0, -1], [-1, -1, 1, -1])
        (-100, -100)
    """
    start, text = answers[0]
    # Some vocabularies include a space in the next word's token, but the offsets here do not.
    end = start + len(text.rstrip())
    start += len(text) - len(text.lstrip())
    inside = [index for index, start in enumerate(starts) if start >= 0]
    touched = [index for index in inside if ends[index] > start and starts[index] < end]
    # Only the end of a context is cut, so the last character decides.
    if not touched or ends[inside[-1]] < end:
        return UNLABELED, UNLABELED
    return touched[0], touched[-1]
