"""Entities in the tags of words, and the counts from which precision, recall and F1 follow.

Tags are written in IOB2: ``B-PER`` begins an entity, ``I-PER`` continues one of the same type,
``O`` is outside. Other schemes are converted by `to_iob2`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from temper.functional.resampling import FloatArray

Entity = tuple[str, int, int]
"""Type, first word, and the word after the last."""

COUNTS = (
    "entities", "predicted", "found", "lenient_predicted", "lenient_found", "words", "right_words",
)  # fmt: skip
"""Columns of `tag_counts`."""

# The ends of entities in BIOES and BILOU.
_PREFIXES = {"E": "I", "L": "I", "S": "B", "U": "B", "M": "I"}


def entities_of(tags: Sequence[str], *, strict: bool = True) -> list[Entity]:
    """Return the entities of a text with one IOB2 tag per word.

    If not ``strict``, an ``I-`` that continues no entity of its type begins one (seqeval's default
    mode, the script of CoNLL-2000).

    Example:
        >>> entities_of(["B-PER", "I-PER", "O", "I-LOC"])
        [('PER', 0, 2)]
        >>> entities_of(["B-PER", "I-PER", "O", "I-LOC"], strict=False)
        [('PER', 0, 2), ('LOC', 3, 4)]
    """
    result: list[Entity] = []
    kind, start = None, 0
    for index, tag in enumerate([*tags, "O"]):
        prefix, _, tag_kind = tag.partition("-")
        if prefix == "I" and tag_kind == kind:
            continue
        if kind is not None:
            result.append((kind, start, index))
        begins = prefix == "B" or (prefix == "I" and not strict)
        kind, start = (tag_kind, index) if begins else (None, index)
    return result


def are_entities(names: Sequence[str]) -> bool:
    """Return whether the names of tags mark entities (``B-PER``), unlike parts of speech."""
    return any(name.startswith("B-") for name in names)


def tag_counts(
    labels: Sequence[Sequence[int]], predictions: Sequence[Sequence[int]], names: Sequence[str]
) -> FloatArray:
    """Count entities and words of each of n texts, [n, 7]; see `COUNTS`.

    Tags are indices of ``names``. An entity is found if type, start and end are right. Words that
    the model did not read are -1, or after the end of a shorter list of predictions. They count as
    wrong, or as ``O`` if tags mark entities.
    """
    marked = are_entities(names)
    rows = []
    for wanted, given in zip(labels, predictions, strict=True):
        known = [names[tag] for tag in wanted]
        unread = "O" if marked else ""
        predicted = [names[tag] if tag >= 0 else unread for tag in given]
        predicted += [unread] * (len(wanted) - len(given))
        right = sum(true == other for true, other in zip(known, predicted, strict=True))
        row = [0, 0, 0, 0, 0, len(known), right]
        if marked:
            truth = set(entities_of(known))
            strict, lenient = set(entities_of(predicted)), set(entities_of(predicted, strict=False))
            row[:3] = [len(truth), len(strict), len(truth & strict)]
            row[3:5] = [len(lenient), len(truth & lenient)]
        rows.append(row)
    return np.array(rows, dtype=np.float64).reshape(-1, len(COUNTS))


def to_iob2(rows: Sequence[Sequence[str]]) -> tuple[list[list[str]], str | None]:
    """Convert tags (IOB1, IOB2, BIOES, BILOU or BMES) to IOB2.

    An ``I-`` that continues no entity of its type begins one, as in IOB1. The scheme that was
    converted is returned too; None if nothing was, as for tags that mark no entities.

    Example:
        >>> to_iob2([["I-PER", "I-PER", "B-PER"], ["O"]])
        ([['B-PER', 'I-PER', 'B-PER'], ['O']], 'IOB1')
        >>> to_iob2([["S-PER", "B-LOC", "E-LOC"]])
        ([['B-PER', 'B-LOC', 'I-LOC']], 'BIOES')
    """
    prefixes = {tag.partition("-")[0] for row in rows for tag in row if "-" in tag}
    plain = {tag for row in rows for tag in row if "-" not in tag}
    if not prefixes or not prefixes <= {"B", "I", *_PREFIXES} or not plain <= {"O"}:
        return [list(row) for row in rows], None
    scheme = "BIOES" if prefixes & set(_PREFIXES) else None
    converted = []
    for row in rows:
        made: list[str] = []
        for index, tag in enumerate(row):
            prefix, dash, kind = tag.partition("-")
            prefix = _PREFIXES.get(prefix, prefix)
            before = made[-1].partition("-")[2] if index else ""
            if prefix == "I" and before != kind:
                prefix, scheme = "B", scheme or "IOB1"
            made.append(prefix + dash + kind)
        converted.append(made)
    return converted, scheme


RATIOS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "entity_f1": (("found", "found"), ("entities", "predicted")),
    "entity_precision": (("found",), ("predicted",)),
    "entity_recall": (("found",), ("entities",)),
    "lenient_entity_f1": (("lenient_found", "lenient_found"), ("entities", "lenient_predicted")),
    "word_accuracy": (("right_words",), ("words",)),
}
"""Scores of tags: the counts in the numerator and in the denominator.

F1 is ``2 found / (entities + predicted)``, so each score is a ratio of two sums over texts.
"""


def tag_score(name: str, counts: Any) -> FloatArray:
    """Return a score of `RATIOS` from sums over texts of `COUNTS`; NaN if its denominator is 0."""
    above, below = (sum(np.asarray(counts[part]) for part in side) for side in RATIOS[name])
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.where(below > 0, above / below, np.nan))
