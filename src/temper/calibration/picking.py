"""The choice of a question, or the part of its context, that a model predicts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from temper.calibration.answers import Span
from temper.data.choices import choices_of
from temper.evaluation.prediction import Prediction


def picked_choices(
    fields: Sequence[dict[str, Any]], own: Prediction, choices: Sequence[str]
) -> list[dict[str, Any]]:
    """Add to each answer the index of the choice as ``choice``, and its text as ``label``.

    The classes of ``own`` are the choices by their index; ``choices`` are JSON
    (`temper.data.choices`).
    """
    rows = zip(fields, own.prediction.astype(int).tolist(), choices, strict=True)
    return [{**each, "choice": best, "label": choices_of(text)[best]} for each, best, text in rows]


def picked_spans(own: Prediction, contexts: Sequence[str]) -> list[dict[str, Any]]:
    """Return the answer to each question as ``span``, empty if no token of the context was read."""
    assert own.spans is not None
    fields = []
    rows = zip(own.spans.tolist(), own.probabilities[:, 0].tolist(), contexts, strict=True)
    for (start, end), chance, context in rows:
        start, end = max(start, 0), max(end, 0)
        fields.append({"span": Span(context[start:end], start, end, chance)})
    return fields
