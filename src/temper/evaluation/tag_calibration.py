"""Calibration of tags: ECE of predicted entities, and of the words in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from temper.data.examples import Examples
from temper.evaluation.binned import binned_error, gap_columns, gaps_by_bin
from temper.evaluation.prediction import Prediction
from temper.evaluation.rows import Block, Condition
from temper.evaluation.scoring import ratio_of
from temper.functional.calibration import expected_calibration_error
from temper.functional.conformal import BooleanArray
from temper.functional.entities import Entity, are_entities, entities_of
from temper.functional.intervals import Statistic
from temper.functional.resampling import FloatArray, IntegerArray

WORDS, ENTITIES, LOSS = "tagged_words", "predicted_entities", "tagged_loss"
"""Columns of a text: number of scored words, number of predicted entities, the words' loss."""


def tag_block(condition: Condition, rows: Examples, predictions: Prediction) -> Block:
    """Return rows with the values of each text from which `tag_statistics` are computed."""
    names = rows.label_names or ()
    assert predictions.words is not None
    kept = in_entities(predictions, names)
    owners = np.repeat(np.arange(len(rows)), predictions.words)[kept]
    labels, words = tagged_words(word_labels(rows, predictions), predictions, names)
    right = words.prediction == labels
    loss = np.bincount(owners, words.loss(labels), minlength=len(rows)).astype(np.float64)
    sure = words.probabilities.max(axis=1)
    measured = {LOSS: loss, **_by_bin(WORDS, owners, right, sure, len(rows))}
    if are_entities(names):
        measured |= _by_bin(ENTITIES, *_entities(rows, predictions, names), len(rows))
    block = Block.of_values(condition, rows.rows, np.arange(len(rows)), np.full(len(rows), np.nan))
    return replace(block, value=None, measured=measured)


def _by_bin(
    units: str, owners: IntegerArray, right: BooleanArray, sure: FloatArray, rows: int
) -> dict[str, FloatArray]:
    count = np.bincount(owners, minlength=rows).astype(np.float64)
    gaps = gaps_by_bin(owners, right, sure, rows=rows)
    return {units: count, **dict(zip(gap_columns(units), gaps.T, strict=True))}


def _entities(
    rows: Examples, predictions: Prediction, names: Sequence[str]
) -> tuple[IntegerArray, BooleanArray, FloatArray]:
    """Return each predicted entity's text index, whether it is right, and its confidence."""
    truth = [set(entities_of([names[tag] for tag in tags])) for tags in rows.labels or ()]
    scored = [
        (row, piece in truth[row], chance)
        for row, pieces in enumerate(pieces_of(predictions, names))
        for piece, chance in pieces
    ]
    table = np.array(scored, dtype=np.float64).reshape(-1, 3)
    return table[:, 0].astype(np.int64), table[:, 1] == 1, table[:, 2]


def tag_statistics(block: Block) -> dict[str, Statistic]:
    """Return the scores of a `tag_block` by name, as functions of resample counts of texts."""
    measured = block.measured
    scores = {
        "ece_10": binned_error(WORDS, measured),
        "nll": ratio_of(measured[LOSS], measured[WORDS]),
    }
    if ENTITIES in measured:
        scores["entity_ece"] = binned_error(ENTITIES, measured)
    return scores


def word_labels(rows: Examples, predictions: Prediction) -> FloatArray:
    """Return the indices of the right tags of all words with predictions, [W].

    Words behind the end of the model's input may have no prediction.
    """
    assert rows.labels is not None
    assert predictions.words is not None
    counts = predictions.words.tolist()
    return np.array(
        [tag for tags, count in zip(rows.labels, counts, strict=True) for tag in tags[:count]],
        dtype=np.float64,
    )


def in_entities(predictions: Prediction, names: Sequence[str]) -> BooleanArray:
    """Return which words are predicted to be in an entity, [W]; if none are, all words read.

    Most words are ``O``: they would dominate a temperature and hide the errors of other words.
    """
    read = ~np.isnan(predictions.prediction)
    kept = read & ~np.isin(predictions.prediction, [names.index("O")] if "O" in names else [])
    return kept if kept.any() else read


def tagged_words(
    labels: FloatArray, predictions: Prediction, names: Sequence[str]
) -> tuple[FloatArray, Prediction]:
    """Return labels and predictions of the words that `in_entities` selects."""
    assert predictions.logits is not None
    kept = in_entities(predictions, names)
    return labels[kept], Prediction.of_logits(predictions.logits[kept])


def tag_errors(rows: Examples, predictions: Prediction) -> dict[str, float]:
    """Return calibration errors of tags: ``nll`` and ``ece_15`` of words, and ``entity_ece``.

    The words are `tagged_words`. ``entity_ece`` is the ECE (15 bins) of predicted entities, and is
    left out if there are none. An entity's confidence is the product of its words' probabilities;
    it is right if its type, first and last word are.
    """
    names = rows.label_names or ()
    labels, words = tagged_words(word_labels(rows, predictions), predictions, names)
    right, sure = words.prediction == labels, words.probabilities.max(axis=1)
    result = {
        "nll": float(words.loss(labels).mean()),
        "ece_15": float(expected_calibration_error(right, sure, bins=15)),
    }
    if are_entities(names):
        _, rights, chances = _entities(rows, predictions, names)
        if len(rights):
            result["entity_ece"] = float(expected_calibration_error(rights, chances, bins=15))
    return result


def pieces_of(predictions: Prediction, names: Sequence[str]) -> list[list[tuple[Entity, float]]]:
    """Return the predicted entities of each text, and the product of their words' probabilities.

    An ``I-`` tag that does not continue an entity of its type starts a new one. If tags mark no
    entities, each word that the model read counts as one.
    """
    sure = predictions.probabilities.max(axis=1, initial=0.0)
    result = []
    parts = zip(
        predictions.by_example(predictions.prediction), predictions.by_example(sure), strict=True
    )
    for tags, chances in parts:
        # Words behind the end of the model's input have no tag.
        tag_names = ["O" if np.isnan(tag) else names[int(tag)] for tag in tags]
        if are_entities(names):
            pieces = entities_of(tag_names, strict=False)
        else:
            known = np.flatnonzero(~np.isnan(tags)).tolist()
            pieces = [(tag_names[index], index, index + 1) for index in known]
        result.append([(piece, float(np.prod(chances[piece[1] : piece[2]]))) for piece in pieces])
    return result
