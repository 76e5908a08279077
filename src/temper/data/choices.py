"""Multiple choice: questions with several answers, of which one is right.

A row's text is the question. Its second text is a JSON list of the choices. Each choice is encoded
as a text pair with the question.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from temper.data.examples import Examples, question_rows
from temper.data.table import Table
from temper.errors import DataError, brief

QUESTION_COLUMNS = ("question", "prompt", "ctx")
CHOICE_COLUMNS = ("choices", "options", "endings")
ANSWER_COLUMNS = ("answer", "label", "answerkey")
"""Usual names of the column with the right answer, in lower case."""
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def choice_columns(table: Table) -> tuple[str, ...] | None:
    """Return the columns of question, choices and answer (if any); None for other tables."""
    known = {name.casefold(): name for name in table.names}
    roles = (QUESTION_COLUMNS, CHOICE_COLUMNS, ANSWER_COLUMNS)
    result = [next((known[name] for name in role if name in known), None) for role in roles]
    if result[0] is None or result[1] is None:
        return None
    first = next(iter(table.column(result[1])), None)
    if not isinstance(first, list | tuple | Mapping):
        return None
    return tuple(name for name in result if name is not None)


def choice_rows(
    table: Table, columns: Sequence[str], *, labeled: bool, skip: bool
) -> tuple[Examples, Table]:
    """Read questions with their choices; return the table without bad rows, too.

    All rows must have the same number of choices.
    """
    question, choices, *answers = columns
    if not labeled or all(v in (None, "", -1) for answer in answers for v in table.column(answer)):
        answers = []
    sizes = Counter(map(_size, table.column(choices)))
    read = partial(_row, size=sizes.most_common(1)[0][0])
    return question_rows(table, (question, choices, *answers), read, kind="choices", skip=skip)


def as_text(choices: Sequence[str]) -> str:
    return json.dumps(list(choices), ensure_ascii=False)


def choices_of(text: str) -> list[str]:
    """Parse the choices from the second text of a row, a JSON list of two or more texts.

    Example:
        >>> choices_of('["yes", "no"]')
        ['yes', 'no']
    """
    try:
        return _texts(json.loads(text))
    except ValueError as error:
        raise DataError(
            f'A question needs its choices as a JSON list such as ["yes", "no"], got {brief(text)}.'
        ) from error


def _size(value: object) -> int:
    texts = value.get("text") if isinstance(value, Mapping) else value
    return len(texts) if isinstance(texts, list | tuple) else 0


def _texts(value: object) -> list[str]:
    texts = list(value) if isinstance(value, list | tuple) else []
    if len(texts) > 1 and all(isinstance(text, str) and text for text in texts):
        return texts
    raise ValueError(f"choices must be a list of two or more texts, got {brief(value)}")


def _row(question: object, choices: object, *answer: Any, size: int) -> Any:
    """Return the question, its choices as a JSON list, and the index of the right choice.

    ``choices`` is a list of texts, or a mapping with the lists ``text`` and ``label``. ``answer``
    is the index, the label, the letter or the text of the right choice.
    """
    if not isinstance(question, str) or not question:
        raise ValueError(f"the question must be a string, got {brief(question)}")
    labels: list[Any] = []
    if isinstance(choices, Mapping):
        labels = [*choices.get("label", ())]
        choices = choices.get("text")
    texts = _texts(choices)
    if len(texts) != size:
        raise ValueError(f"expected {size} choices as most rows have, got {len(texts)}")
    return question, as_text(texts), _index(answer[0], texts, labels) if answer else None


def _index(answer: Any, texts: Sequence[str], labels: Sequence[Any]) -> int:
    if isinstance(answer, int | float) and not isinstance(answer, bool):
        index = int(answer)
        if index == answer and 0 <= index < len(texts):
            return index
    word = answer.strip() if isinstance(answer, str) else None
    # Labels of the row come first, because a text may look like a letter or a number.
    for known in (labels, texts, _LETTERS[: len(texts)], [*map(str, range(len(texts)))]):
        if word is not None and list(known).count(word) == 1:
            return list(known).index(word)
    raise ValueError(
        f"the answer must be the index from 0, the letter or the text of one of {len(texts)} "
        f"choices, got {brief(answer)}"
    )
