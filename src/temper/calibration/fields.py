"""The fields of `CalibratedPrediction` that a prediction sets, by the model's kind of output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, compress
from typing import Any

from temper.calibration.predictions import Span, TaggedSpan
from temper.data.choices import choices_of
from temper.data.examples import Examples
from temper.data.tags import words_of
from temper.errors import DataError
from temper.evaluation.prediction import Prediction
from temper.evaluation.predictor import Gives
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


def fields_of(
    predictions: Prediction,
    names: Sequence[str],
    second_texts: Sequence[str],
    tagged: Sequence[WordsInText] | None,
    *,
    gives: Gives,
) -> list[dict[str, Any]]:
    """Return the fields of each prediction, without those of a calibration.

    ``names`` are the class names, ``second_texts`` the contexts, or the choices of each
    question as a JSON list. ``tagged`` are the words of texts to tag.
    """
    if predictions.spans is not None:
        return _spans(predictions, second_texts)
    if tagged is not None:
        return _entities(predictions, names, tagged)
    if predictions.regression:
        return [{"value": value} for value in predictions.prediction.tolist()]
    if predictions.applies is not None:
        both = zip(predictions.applies.tolist(), predictions.probabilities.tolist(), strict=True)
        return [
            {
                "labels": tuple(compress(names, applies)),
                "probabilities": dict(zip(names, chances, strict=True)),
            }
            for applies, chances in both
        ]
    fields: list[dict[str, Any]] = []
    chosen = predictions.prediction.astype(int).tolist()
    for row, (best, chances) in enumerate(
        zip(chosen, predictions.probabilities.tolist(), strict=True)
    ):
        picked: dict[str, Any] = {"label": names[best]}
        if gives == "choices":
            picked = {"label": choices_of(second_texts[row])[best], "choice": best}
        probabilities = dict(zip(names, chances, strict=True))
        fields.append({**picked, "probabilities": probabilities, "anomaly": 1.0 - max(chances)})
    return fields


def _spans(predictions: Prediction, contexts: Sequence[str]) -> list[dict[str, Any]]:
    """Return ``span`` of each prediction; its text is empty if the model read no context."""
    assert predictions.spans is not None
    fields = []
    rows = zip(
        predictions.spans.tolist(), predictions.probabilities[:, 0].tolist(), contexts, strict=True
    )
    for (start, end), chance, context in rows:
        start, end = max(start, 0), max(end, 0)
        fields.append({"span": Span(context[start:end], start, end, chance)})
    return fields


def _entities(
    predictions: Prediction, names: Sequence[str], texts: Sequence[WordsInText]
) -> list[dict[str, Any]]:
    """Return ``entities`` of each prediction; see `TaggedSpan`."""
    fields = []
    for pieces, text in zip(pieces_of(predictions, names), texts, strict=True):
        spans = []
        for (label, first, end), chance in pieces:
            start, stop = text.spans[first][0], text.spans[end - 1][1]
            spans.append(TaggedSpan(label, text.text[start:stop], start, stop, chance))
        fields.append({"entities": tuple(spans)})
    return fields
