"""Bring labels into the order of the predictor's classes, and three NLI classes into two."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from temper.data.examples import Examples
from temper.errors import DataError
from temper.evaluation.predictor import Prediction
from temper.functional.calibration import probabilities_of

_TWO = {"not_entailment", "non_entailment", "nonentailment", "notentailment"}
_THREE = {"entailment", "neutral", "contradiction"}


@dataclass(frozen=True)
class Aligned:
    """A set whose labels fit the predictor.

    Args:
        examples: The set, labels renumbered.
        entailment: Class of the predictor that stands for entailment, where the set tells it only
            from all others (its labels then are 0 entailment, 1 not); None otherwise.
    """

    examples: Examples
    entailment: int | None = None


def align(examples: Examples, label_names: Sequence[str] | None) -> Aligned:
    """Renumber a set's labels by name.

    Args:
        examples: The set.
        label_names: The predictor's classes by index, None where it names none.

    Returns:
        The set as it is where it has no class labels, has the same names, or the predictor names
        none.

    Raises:
        DataError: A label of the set is unknown to the predictor.
    """
    if examples.kind != "classification" or label_names is None:
        return Aligned(examples)
    if examples.label_names is not None and tuple(examples.label_names) == tuple(label_names):
        return Aligned(examples)
    classes = [_plain(name) for name in label_names]
    own = [_plain(name) for name in examples.label_names or ()]
    if set(classes) == _THREE and len(own) == 2 and own.count("entailment") == 1:
        other = next(name for name in own if name != "entailment")
        if other in _TWO:
            entailment = own.index("entailment")
            labels = [int(label != entailment) for label in examples.labels or []]
            two = replace(examples, labels=labels, label_names=("entailment", "not_entailment"))
            return Aligned(two, classes.index("entailment"))
    return Aligned(examples.map_labels(label_names))


def merge(prediction: Prediction, entailment: int, *, how: Literal["sum", "argmax"]) -> Prediction:
    """Answer "entailment or not" with a model of three classes.

    Args:
        prediction: Answers over three classes.
        entailment: Which of them is entailment.
        how: ``sum`` adds the others' probabilities before choosing; ``argmax`` chooses among three
            and then merges (RoAST). Both give the same probabilities; they differ in the
            prediction.

    Returns:
        Answers over two classes: 0 entailment, 1 not.

    Raises:
        DataError: The prediction is not over three classes.

    Example:
        >>> three = Prediction.of_probabilities([[0.4, 0.3, 0.3]])
        >>> merge(three, 0, how="sum").prediction.tolist()
        [1.0]
        >>> merge(three, 0, how="argmax").prediction.tolist()
        [0.0]
    """
    if prediction.probabilities.shape[1] != 3:
        raise DataError(
            "Only three NLI classes can be merged into two, the model has "
            f"{prediction.probabilities.shape[1]}."
        )
    others = [index for index in range(3) if index != entailment]
    logits = None
    if prediction.logits is not None:
        # The logarithm of a sum of exponentials: losses stay finite where the sum of probabilities
        # is 0.
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
