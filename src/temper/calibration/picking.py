"""Predictions for questions: the predicted choice, or the predicted part of the context."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from temper.calibration.predictions import Span
from temper.data.choices import choices_of
from temper.evaluation.prediction import Prediction


def picked_choices(
    fields: Sequence[dict[str, Any]], predictions: Prediction, choices: Sequence[str]
) -> list[dict[str, Any]]:
    """Add the index of the predicted choice as ``choice``, and its text as ``label``.

    ``fields`` are those of `CalibratedPrediction`, one mapping per question. Each of ``choices`` is
    a JSON list (`temper.data.choices`).
    """
    rows = zip(fields, predictions.prediction.astype(int).tolist(), choices, strict=True)
    return [{**item, "choice": best, "label": choices_of(text)[best]} for item, best, text in rows]


def picked_spans(predictions: Prediction, contexts: Sequence[str]) -> list[dict[str, Any]]:
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
