"""Predicted entities, or tagged words, of texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

from temper.calibration.predictions import TaggedSpan
from temper.data.examples import Examples
from temper.data.tags import words_of
from temper.errors import DataError
from temper.evaluation.prediction import Prediction
from temper.evaluation.tag_calibration import pieces_of


@dataclass(frozen=True)
class WordsInText:
    """A text, and the start and end of each of its words in characters."""

    text: str
    spans: Sequence[tuple[int, int]]


def split_words(examples: Examples) -> tuple[Examples, list[WordsInText]]:
    """Split texts into words as in training; return them joined by spaces, and their positions.

    Raises:
        DataError: There are two texts per row, or a text has no words.
    """
    if examples.text_pair is not None:
        raise DataError(
            "The model tags the words of single texts, got two texts per row. Leave the second out."
        )
    result, joined = [], []
    for row, text in enumerate(examples.text):
        if examples.source.get("words"):
            ends = accumulate(len(word) + 1 for word in text.split(" "))
            words = text.split(" ")
            spans = [(end - 1 - len(word), end - 1) for word, end in zip(words, ends, strict=True)]
        else:
            spans = words_of(text)
        if not spans:
            raise DataError(
                f"Row {row + 1} of {examples.origin} has no words: {text!r:.40}. Remove the row."
            )
        result.append(WordsInText(text, spans))
        joined.append(" ".join(text[start:end] for start, end in spans))
    bare = replace(examples, text=joined, labels=None, label_names=None, kind="unlabeled", rows=())
    return bare, result


def tags_of(
    predictions: Prediction, names: Sequence[str], texts: Sequence[WordsInText]
) -> list[dict[str, Any]]:
    """Return ``entities`` of each `CalibratedPrediction`; see `TaggedSpan`."""
    fields = []
    for pieces, text in zip(pieces_of(predictions, names), texts, strict=True):
        spans = []
        for (label, first, end), chance in pieces:
            start, stop = text.spans[first][0], text.spans[end - 1][1]
            spans.append(TaggedSpan(label, text.text[start:stop], start, stop, chance))
        fields.append({"entities": tuple(spans)})
    return fields
