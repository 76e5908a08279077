"""Give the labels of a set the order of the predictor's classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from temper.data.examples import Examples, without_misfits
from temper.errors import DataError, shortened
from temper.evaluation.common_settings import Merge
from temper.evaluation.prediction import Prediction
from temper.functional.calibration import probabilities_of
from temper.functional.label_names import are_indices, are_named

_TWO = {"not_entailment", "non_entailment", "nonentailment", "notentailment"}
_THREE = {"entailment", "neutral", "contradiction"}
HOW_TO_MATCH = (
    "If the model has different names for these labels, map them to the data's: --label-map "
    "MODEL=DATA,... (`label_map`); or name its outputs in their order: --label-names A,B "
    "(`label_names`). In `compare` and `tune` rename the labels of the set."
)
"""Advice if a model's class names and a dataset's labels differ."""


def align(examples: Examples, label_names: Sequence[str] | None) -> tuple[Examples, int | None]:
    """Renumber a set's labels by name, in the order of the predictor's ``label_names``.

    A set without label names is unchanged.

    Returns:
        The set, and the index of the predictor's class entailment if the predictor has three NLI
        classes and the set two labels, 0 entailment and 1 not; else None.

    Raises:
        DataError: The predictor does not know a label of the set, or has no label names while the
            set has some.
    """
    if examples.kind in ("multi_label", "tokens") and label_names is not None:
        return examples.map_labels(label_names), None
    if examples.kind != "classification":
        return examples, None
    class_names = examples.label_names
    if label_names is None:
        if class_names is None or not are_named(class_names) or are_indices(class_names):
            return examples, None
        names = shortened(", ".join(class_names), longest=300)
        raise DataError(
            f"Set {examples.name!r} has the labels {names}, but the model does not name its "
            "classes. Pass these labels in the order of the model's outputs: --label-names A,B "
            "(`label_names`)."
        )
    if class_names is not None and tuple(class_names) == tuple(label_names):
        return examples, None
    classes = [_plain(name) for name in label_names]
    plain = [_plain(name) for name in class_names or ()]
    if set(classes) == _THREE and len(plain) == 2 and plain.count("entailment") == 1:
        other = next(name for name in plain if name != "entailment")
        if other in _TWO:
            entailment = plain.index("entailment")
            labels = [int(label != entailment) for label in examples.labels or []]
            two = replace(examples, labels=labels, label_names=("entailment", "not_entailment"))
            return two, classes.index("entailment")
    try:
        return examples.map_labels(label_names), None
    except DataError as error:
        raise DataError(f"{error} {HOW_TO_MATCH}") from error


def without_unknown(examples: Examples, label_names: Sequence[str] | None) -> Examples:
    """Leave out rows with a label that is not in ``label_names``, with a notice."""
    return without_misfits(examples, lambda rows: align(rows, label_names))


def merge(prediction: Prediction, entailment: int, *, how: Merge) -> Prediction:
    """Merge predictions of three NLI classes into two: 0 entailment, 1 not.

    Both ways give the same probabilities. ``sum`` predicts the more probable of the two merged
    classes; ``argmax`` predicts one of the three classes, and then merges it (RoAST).

    Example:
        >>> three = Prediction.of_probabilities([[0.4, 0.3, 0.3]])
        >>> merge(three, 0, how="sum").prediction.tolist()
        [1.0]
        >>> merge(three, 0, how="argmax").prediction.tolist()
        [0.0]
    """
    if prediction.probabilities.shape[1] != 3:
        raise DataError(
            "Only three NLI classes can be merged into two, and the model has "
            f"{prediction.probabilities.shape[1]}. Pass sets with the model's labels."
        )
    others = [index for index in range(3) if index != entailment]
    logits = None
    if prediction.logits is not None:
        # logsumexp keeps the losses finite if the probabilities sum to 0.
        rest = np.logaddexp(*(prediction.logits[:, index] for index in others))
        logits = np.stack([prediction.logits[:, entailment], rest], axis=1)
        merged = probabilities_of(logits)
    else:
        rest = prediction.probabilities[:, others].sum(axis=1)
        merged = np.stack([prediction.probabilities[:, entailment], rest], axis=1)
    chosen = (prediction.prediction != entailment).astype(np.float64)
    if how == "sum":
        chosen = (merged if logits is None else logits).argmax(axis=1).astype(np.float64)
    return Prediction(merged, chosen, logits, prediction.truncated)


def _plain(name: str) -> str:
    return name.casefold().replace("-", "_").replace(" ", "_")
