"""A predictor whose output is written in the text, and sets of such texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from temper.data.examples import Examples
from temper.evaluation.function import CallablePredictor
from temper.evaluation.run import Evaluation


def speaker() -> CallablePredictor:
    """Return a predictor whose probabilities are written in the text, before a mark."""

    def predict(texts: list[str]) -> list[list[float]]:
        return [[float(word) for word in text.split("#")[0].split()] for text in texts]

    return CallablePredictor(predict, gives="probabilities")


def spoken(
    name: str, probabilities: Sequence[Sequence[float]], labels: Sequence[int] | None, **more: Any
) -> Examples:
    """Return texts that say these probabilities, each another one.

    Args:
        name: Name of the set.
        probabilities: [n, C].
        labels: Class indices, [n]; None of an unlabeled set.
        more: Other fields of `Examples`.
    """
    texts = [
        f"{' '.join(map(repr, map(float, row)))} # {name} {index}"
        for index, row in enumerate(probabilities)
    ]
    kind: Any = "unlabeled" if labels is None else "classification"
    given = None if labels is None else [int(label) for label in labels]
    return Examples(name, texts, labels=given, kind=kind, **more)


def calibrated(name: str, rows: int, *, seed: int, classes: int = 4, **more: Any) -> Examples:
    """Return rows whose labels are drawn by the probabilities that they say."""
    draws = np.random.default_rng(seed)
    weights = np.exp(1.5 * draws.normal(size=(rows, classes)))
    probabilities = weights / weights.sum(axis=1, keepdims=True)
    labels = (probabilities.cumsum(axis=1) < draws.uniform(size=(rows, 1))).sum(axis=1)
    return spoken(name, probabilities.tolist(), labels.clip(max=classes - 1).tolist(), **more)


def values(result: Evaluation, perspective: str, **where: Any) -> dict[tuple[str, ...], Any]:
    """Return the scores of a perspective by set, condition and name, of entries that fit."""
    return {
        (entry["set"], entry["condition"], entry["name"]): entry["value"]
        for entry in result.scores
        if entry["perspective"] == perspective
        and all(entry[key] == value for key, value in where.items())
    }
