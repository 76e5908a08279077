"""Entities, or tags of words, that a model finds in texts, and how well they are calibrated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import numpy as np

from temper.calibration.answers import TaggedSpan
from temper.data.examples import Examples
from temper.data.tags import words_of
from temper.errors import DataError
from temper.evaluation.predictor import Prediction
from temper.functional.calibration import expected_calibration_error
from temper.functional.entities import Entity, are_entities, entities_of
from temper.functional.resampling import FloatArray


@dataclass(frozen=True)
class WordsInText:
    """Where the words of a text are.

    Args:
        text: The text.
        spans: Start and end of each word in the text, in characters.
    """

    text: str
    spans: Sequence[tuple[int, int]]


def split_words(examples: Examples) -> tuple[Examples, list[WordsInText]]:
    """Split texts into words, as those of the training rows were.

    Args:
        examples: Running texts, or texts whose words a file gives.

    Returns:
        The same rows with words joined by single spaces, and where the words are in the texts.

    Raises:
        DataError: There are two texts per row, or a text has no words.
    """
    if examples.text_pair is not None:
        raise DataError("The model tags the words of single texts, got two texts per row.")
    result, joined = [], []
    for row, text in enumerate(examples.text):
        if examples.source.get("words"):
            ends = accumulate(len(word) + 1 for word in text.split(" "))
            words = text.split(" ")
            spans = [(end - 1 - len(word), end - 1) for word, end in zip(words, ends, strict=True)]
        else:
            spans = words_of(text)
        if not spans:
            raise DataError(f"Row {row + 1} of {examples.origin} has no words: {text!r:.40}.")
        result.append(WordsInText(text, spans))
        joined.append(" ".join(text[start:end] for start, end in spans))
    bare = replace(examples, text=joined, labels=None, label_names=None, kind="unlabeled", rows=())
    return bare, result


def word_labels(rows: Examples, answers: Prediction) -> FloatArray:
    """Return the tags of the words that have answers, as indices, [W].

    Args:
        rows: The texts, with the tags of their words.
        answers: The predicted tags; words behind the end of the model's input may be missing.
    """
    assert rows.labels is not None
    assert answers.words is not None
    counts = answers.words.tolist()
    return np.array(
        [tag for tags, count in zip(rows.labels, counts, strict=True) for tag in tags[:count]],
        dtype=np.float64,
    )


def tagged_words(
    labels: FloatArray, answers: Prediction, names: Sequence[str]
) -> tuple[FloatArray, Prediction]:
    """Return the words that are predicted to be part of an entity, or all if there are none.

    Nearly all words are ``O``, and would decide a temperature and hide the error of the others.

    Args:
        labels: What `word_labels` returns, [W].
        answers: The predicted tags.
        names: Names of the tags.

    Returns:
        Labels and logits of w words, without those that were not read.
    """
    assert answers.logits is not None
    read = ~np.isnan(answers.prediction)
    outside = np.isin(answers.prediction, [names.index("O")] if "O" in names else [])
    kept = read & ~outside
    kept = kept if kept.any() else read
    return labels[kept], Prediction.of_logits(answers.logits[kept])


def tag_errors(rows: Examples, answers: Prediction) -> dict[str, float]:
    """Return the errors of calibration of the tags of words.

    Args:
        rows: The texts, with the tags of their words.
        answers: The predicted tags.

    Returns:
        ``nll`` and ``ece_15`` of `tagged_words`; and ``entity_ece``, that of the predicted
        entities (15 bins). Their confidence is the product over their words, and they are right if
        type, first and last word are. It is left out if none is predicted.
    """
    names = rows.label_names or ()
    labels, words = tagged_words(word_labels(rows, answers), answers, names)
    right, sure = words.prediction == labels, words.probabilities.max(axis=1)
    result = {
        "nll": float(words.loss(labels).mean()),
        "ece_15": float(expected_calibration_error(right, sure, bins=15)),
    }
    truth = [set(entities_of([names[tag] for tag in tags])) for tags in rows.labels or ()]
    scored = [
        (piece in known, chance)
        for known, pieces in zip(truth, pieces_of(answers, names), strict=True)
        for piece, chance in pieces
    ]
    if scored and are_entities(names):
        rights, chances = map(np.array, zip(*scored, strict=True))
        result["entity_ece"] = float(expected_calibration_error(rights, chances, bins=15))
    return result


def pieces_of(answers: Prediction, names: Sequence[str]) -> list[list[tuple[Entity, float]]]:
    """Return the predicted entities of each text with the product of their words' probabilities.

    An ``I-`` that continues no entity of its type begins one. If tags mark no entities, each word
    that was read is a piece.

    Args:
        answers: The tags of the words of each text.
        names: Names of the tags.
    """
    sure = answers.probabilities.max(axis=1, initial=0.0)
    result = []
    parts = zip(answers.by_example(answers.prediction), answers.by_example(sure), strict=True)
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


def tags_of(
    answers: Prediction, names: Sequence[str], texts: Sequence[WordsInText]
) -> list[dict[str, Any]]:
    """Return the entities of each text, or its words with their tags if tags mark no entities.

    Args:
        answers: The tags of the words of each text.
        names: Names of the tags.
        texts: Where the words are.
    """
    fields = []
    for pieces, text in zip(pieces_of(answers, names), texts, strict=True):
        spans = []
        for (label, first, end), chance in pieces:
            start, stop = text.spans[first][0], text.spans[end - 1][1]
            spans.append(TaggedSpan(label, text.text[start:stop], start, stop, chance))
        fields.append({"entities": tuple(spans)})
    return fields
