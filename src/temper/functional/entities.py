"""Entities from tags of words, and their precision, recall and F1.

Tags are written in IOB2: ``B-PER`` begins an entity, ``I-PER`` continues one of the same type,
``O`` is outside. Other schemes are converted by `to_iob2`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from temper.functional.resampling import FloatArray

Entity = tuple[str, int, int]
"""Type, index of the first word, and index after the last word."""

COUNTS = (
    "entities", "predicted", "found", "lenient_predicted", "lenient_found", "words", "right_words",
)  # fmt: skip
"""Columns of `tag_counts`."""

# The ends of entities in BIOES and BILOU.
_PREFIXES = {"E": "I", "L": "I", "S": "B", "U": "B", "M": "I"}


def entities_of(tags: Sequence[str], *, strict: bool = True) -> list[Entity]:
    """Return the entities of a text from one IOB2 tag per word.

    With ``strict`` an ``I-`` tag that does not continue an entity of its type is ignored. Otherwise
    it begins one, as in seqeval's default mode and the script of CoNLL-2000.

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
    """Return whether tags mark entities (some begin with ``B-``), and not parts of speech."""
    return any(name.startswith("B-") for name in names)


def tag_counts(
    labels: Sequence[Sequence[int]], predictions: Sequence[Sequence[int]], names: Sequence[str]
) -> FloatArray:
    """Count entities and words of each text, [n, 7], in the columns `COUNTS`.

    Tags are indices of ``names``. An entity is found if type, start and end are right. If the model
    did not read a word, its prediction is -1 or the list ends before it. Such a word counts as
    ``O`` if tags mark entities, else as wrong.
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

    An ``I-`` tag that does not continue an entity of its type begins one, as in IOB1.

    Returns:
        The tags, and the original scheme (``IOB1`` or ``BIOES``); None if nothing was converted.

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
        tags: list[str] = []
        for index, tag in enumerate(row):
            prefix, dash, kind = tag.partition("-")
            prefix = _PREFIXES.get(prefix, prefix)
            before = tags[-1].partition("-")[2] if index else ""
            if prefix == "I" and before != kind:
                prefix, scheme = "B", scheme or "IOB1"
            tags.append(prefix + dash + kind)
        converted.append(tags)
    return converted, scheme


RATIOS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "entity_f1": (("found", "found"), ("entities", "predicted")),
    "entity_precision": (("found",), ("predicted",)),
    "entity_recall": (("found",), ("entities",)),
    "lenient_entity_f1": (("lenient_found", "lenient_found"), ("entities", "lenient_predicted")),
    "word_accuracy": (("right_words",), ("words",)),
}
"""Scores of tags: the counts that are summed in the numerator and in the denominator.

F1 is ``2 found / (entities + predicted)``.
"""


def tag_score(name: str, counts: Any) -> FloatArray:
    """Return a score of `RATIOS` from the summed `COUNTS` of texts; NaN if its denominator is 0."""
    above, below = (sum(np.asarray(counts[part]) for part in side) for side in RATIOS[name])
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.where(below > 0, above / below, np.nan))
