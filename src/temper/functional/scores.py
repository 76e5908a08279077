"""Scores of predictions, computed for a dataset or for all its bootstrap resamples at once.

Every function takes ``counts``: how often each row is drawn, [n] or [R, n] (once by default). With
[R, n] it returns [R] values, so a bootstrap is one matrix product instead of 1,000 calls. An
undefined score is NaN; `SCORES` says when. Labels and predictions are class indices [n], targets
are numbers [n]. Letters: n rows, R resamples, C classes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from temper.errors import SettingError, unknown
from temper.functional.multi_label import exact_match, label_f1, mean_average_precision, micro_f1
from temper.functional.resampling import (
    Counts,
    FloatArray,
    IntegerArray,
    divide,
    group_sums,
    pair,
    row_counts,
    stretches,
    weighted_mean,
)
from temper.functional.units import HUNDREDTHS, PERCENT, PLAIN, Unit

Measure = Callable[..., FloatArray]
"""Function from arrays, such as labels [n] and predictions [n], and ``counts`` to a score."""
NO_ROWS = "there are no rows"


@dataclass(frozen=True)
class ScoreFacts:
    """Name, direction, unit and function of a score.

    Args:
        name: The score's name in ``scores.json``.
        title: Name in reports.
        higher_is_better: Direction; None if a score has none.
        perfect: Best possible value; None without a direction.
        undefined: When the score is undefined, to follow "undefined: ".
        unit: Unit in reports; None uses that of the task's metric.
        guessing: Score of predictions that ignore the text: a number, ``class`` for 1 / number of
            classes, ``metric`` for that of the task's metric, None if unknown.
        measure: Function that computes it from arrays [n, ...] and ``counts``; None if it is
            computed elsewhere.
        kinds: Kinds of labels whose tasks can use it as their metric.
        usual: Whether tasks of these kinds also report it next to another metric.
    """

    name: str
    title: str
    higher_is_better: bool | None
    perfect: float | None
    undefined: str
    unit: Unit | None = PERCENT
    guessing: float | Literal["class", "metric"] | None = None
    # Not compared: a user's file may be imported twice, which creates a new function.
    measure: Measure | None = field(default=None, compare=False)
    kinds: tuple[str, ...] = ()
    usual: bool = True

    def statistic(self, *arrays: ArrayLike) -> Callable[[FloatArray], FloatArray]:
        """Return the score of these arrays as a function of resample counts, from [R, n] to [R]."""
        measure = self.measure
        if measure is None:
            raise ValueError(
                f"The score {self.name!r} cannot be computed from labels and predictions."
            )
        return lambda counts: measure(*arrays, counts=counts)

    def guessed(self, classes: int, metric: str) -> float | None:
        """Return the score of predictions that ignore the text; None if it is unknown.

        Example:
            >>> facts("accuracy").guessed(4, "accuracy"), facts("area").guessed(0, "pearson")
            (0.25, 0.0)
        """
        if self.guessing == "metric":
            score = SCORES.get(metric)
            return None if score is None or score is self else score.guessed(classes, metric)
        if self.guessing == "class":
            return 1.0 / classes if classes else None
        return self.guessing


def accuracy(labels: ArrayLike, predictions: ArrayLike, *, counts: Counts = None) -> FloatArray:
    """Fraction of rows whose predicted class is the label."""
    first, second = pair(labels, predictions)
    return weighted_mean(first == second, counts)


def least_accuracy(correct: ArrayLike, groups: ArrayLike, *, counts: Counts = None) -> FloatArray:
    """Lowest accuracy of any group.

    ``correct`` [n] is 0 or 1; ``groups`` [n] are whole numbers from 0. A group without rows in a
    resample is ignored. NaN without rows.
    """
    fractions, present = _group_accuracies(correct, groups, counts)
    least = np.where(present, fractions, np.inf).min(axis=-1, initial=np.inf)
    return np.where(np.isinf(least), np.nan, least)[()]


def mean_group_accuracy(
    correct: ArrayLike, groups: ArrayLike, *, counts: Counts = None
) -> FloatArray:
    """Unweighted mean of the groups' accuracies.

    Arguments are those of `least_accuracy`. A group without rows in a resample is ignored. NaN
    without rows.
    """
    fractions, present = _group_accuracies(correct, groups, counts)
    number = present.sum(axis=-1)
    mean = np.where(present, fractions, 0.0).sum(axis=-1) / np.where(number > 0, number, 1)
    return np.where(number > 0, mean, np.nan)[()]


def _group_accuracies(
    correct: ArrayLike, groups: ArrayLike, counts: Counts
) -> tuple[FloatArray, NDArray[np.bool_]]:
    right, indices = pair(correct, groups)
    size = _highest_class(indices) + 1
    indices = indices.astype(np.int64)
    weights = row_counts(len(right), counts)
    totals = group_sums(np.ones(len(right)), indices, size, weights)
    hits = group_sums(right, indices, size, weights)
    present = totals > 0
    return hits / np.where(present, totals, 1.0), present


def macro_f1(labels: ArrayLike, predictions: ArrayLike, *, counts: Counts = None) -> FloatArray:
    """Unweighted mean of the F1 of each class that occurs as a label or a prediction."""
    confusion = _confusion(labels, predictions, counts)
    hits, missed, false = _class_sums(confusion)
    support = 2 * hits + missed + false
    f1_values = 2 * hits / np.where(support > 0, support, 1)
    return divide(f1_values.sum(axis=-1), (support > 0).sum(axis=-1))


def f1(labels: ArrayLike, predictions: ArrayLike, *, counts: Counts = None) -> FloatArray:
    """F1 of class 1, ``2 TP / (2 TP + FP + FN)`` (GLUE's measure of MRPC and QQP).

    NaN if class 1 is neither a label nor a prediction.
    """
    confusion = _confusion(labels, predictions, counts)
    if confusion.shape[-1] > 2:
        raise ValueError("`f1` is for two classes, got a class above 1. Use `macro_f1`.")
    hits, missed, false = (part[..., 1] for part in _class_sums(confusion))
    return divide(2 * hits, 2 * hits + missed + false)


def matthews(labels: ArrayLike, predictions: ArrayLike, *, counts: Counts = None) -> FloatArray:
    """Matthews correlation coefficient for any number of classes (Gorodkin's R_K).

    In [-1, 1]; 0 if all predictions are one class (as GLUE scores CoLA), NaN if all labels are one
    class.

    References:
        Gorodkin, "Comparing two K-category assignments by a K-category correlation coefficient",
        2004.
    """
    confusion = _confusion(labels, predictions, counts)
    actual, predicted = confusion.sum(axis=-1), confusion.sum(axis=-2)
    total = actual.sum(axis=-1)
    hits = np.trace(confusion, axis1=-2, axis2=-1)
    covariance = hits * total - (actual * predicted).sum(axis=-1)
    actual_spread = total**2 - (actual**2).sum(axis=-1)
    predicted_spread = total**2 - (predicted**2).sum(axis=-1)
    value = divide(covariance, np.sqrt(actual_spread * predicted_spread))
    value = np.where(predicted_spread == 0, 0.0, value)
    return np.where(actual_spread == 0, np.nan, value)[()]


def mean_squared_error(
    targets: ArrayLike, predictions: ArrayLike, *, counts: Counts = None
) -> FloatArray:
    """Mean of ``(prediction - target)^2``."""
    first, second = pair(targets, predictions)
    return weighted_mean((first.astype(np.float64) - second.astype(np.float64)) ** 2, counts)


def pearson(targets: ArrayLike, predictions: ArrayLike, *, counts: Counts = None) -> FloatArray:
    """Pearson correlation; NaN if one side is constant."""
    first, second = (side.astype(np.float64) for side in pair(targets, predictions))
    weights = row_counts(len(first), counts)
    return _correlation(first, second, weights)


def spearman(targets: ArrayLike, predictions: ArrayLike, *, counts: Counts = None) -> FloatArray:
    """Spearman correlation: Pearson correlation of the ranks, with mid-ranks for ties.

    Ranks are recomputed in each resample. NaN if one side is constant.
    """
    first, second = pair(targets, predictions)
    weights = row_counts(len(first), counts)
    return _correlation(_middle_ranks(first, weights), _middle_ranks(second, weights), weights)


def _highest_class(values: NDArray[Any]) -> int:
    """Return the highest class index, 0 without rows; raise on values that are not indices."""
    highest = 0
    for rows in stretches(len(values)):
        integers = values[rows].astype(np.int64)
        if bool((integers != values[rows]).any()) or int(integers.min()) < 0:
            raise ValueError(
                "Labels and predictions must be class indices: whole numbers from 0 on."
            )
        highest = max(highest, int(integers.max()))
    return highest


def _confusion(labels: ArrayLike, predictions: ArrayLike, counts: Counts) -> FloatArray:
    first, second = pair(labels, predictions)
    weights = row_counts(len(first), counts)
    classes = max(_highest_class(first), _highest_class(second), 1) + 1

    def cells(rows: slice) -> IntegerArray:
        return first[rows].astype(np.int64) * classes + second[rows].astype(np.int64)

    occurring = np.zeros(classes * classes, dtype=np.bool_)
    for rows in stretches(len(first)):
        occurring[cells(rows)] = True
    # Only cells that occur are summed: of 119 classes' 14,161 a few hundred are in use.
    used, indices = np.flatnonzero(occurring), np.cumsum(occurring) - 1
    sums = np.zeros((*weights.shape[:-1], len(used)))
    for rows in stretches(len(first), width=max(len(used), 1)):
        numbers = indices[cells(rows)]
        sums += group_sums(np.ones(len(numbers)), numbers, len(used), weights[..., rows])
    confusion = np.zeros((*weights.shape[:-1], classes * classes))
    confusion[..., used] = sums
    return confusion.reshape(*weights.shape[:-1], classes, classes)


def _class_sums(confusion: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    hits = np.diagonal(confusion, axis1=-2, axis2=-1)
    return hits, confusion.sum(axis=-1) - hits, confusion.sum(axis=-2) - hits


def _constant(values: FloatArray, weights: FloatArray) -> NDArray[np.bool_]:
    """Return whether all drawn rows have the same value, exactly and without a variance."""
    highest = np.where(weights > 0, values, -np.inf).max(axis=-1, initial=-np.inf)
    lowest = np.where(weights > 0, values, np.inf).min(axis=-1, initial=np.inf)
    return np.asarray((highest <= lowest) | (weights.sum(axis=-1) == 0), dtype=np.bool_)


def _correlation(first: FloatArray, second: FloatArray, weights: FloatArray) -> FloatArray:
    total = weights.sum(axis=-1, keepdims=True)
    safe = np.where(total > 0, total, 1.0)
    one = first - (weights * first).sum(axis=-1, keepdims=True) / safe
    two = second - (weights * second).sum(axis=-1, keepdims=True) / safe
    # Scale before squaring: targets near 1e-200 would underflow to a variance of 0. Rows that are
    # not in a resample must not affect its scale.
    one, two = (np.where(weights > 0, side, 0.0) for side in (one, two))
    one, two = one / _scale(one), two / _scale(two)
    spread = np.sqrt((weights * one**2).sum(axis=-1) * (weights * two**2).sum(axis=-1))
    value = np.clip(divide((weights * one * two).sum(axis=-1), spread), -1.0, 1.0)
    return np.where(_constant(first, weights) | _constant(second, weights), np.nan, value)[()]


def _scale(values: FloatArray) -> FloatArray:
    """Return the largest magnitude in each resample; 1 if all values are 0."""
    largest = np.abs(values).max(axis=-1, keepdims=True, initial=0.0)
    return np.where(largest > 0, largest, 1.0)


def _middle_ranks(values: NDArray[Any], weights: FloatArray) -> FloatArray:
    """Return the mid-rank of each row within each resample, counting repeated rows."""
    if not len(values):
        return np.zeros(weights.shape)
    _, starts, inverse = np.unique(np.sort(values), return_index=True, return_inverse=True)
    order = np.argsort(values, kind="stable")
    sizes = np.add.reduceat(weights[..., order], starts, axis=-1)
    ranks = np.cumsum(sizes, axis=-1) - sizes + (sizes + 1) / 2
    return ranks[..., inverse[np.argsort(order, kind="stable")]]


_CLASSES, _NUMBERS = ("classification",), ("regression",)
_LABELS, _TAGS, _ANSWERS = ("multi_label",), ("tokens",), ("spans",)
_CONSTANT = "the targets or the predictions are all equal"
_NO_ENTITY = "no text has an entity, and none is predicted"
_NO_LABEL = "no label applies or is predicted"

SCORES: dict[str, ScoreFacts] = {
    facts.name: facts
    for facts in (
        ScoreFacts("accuracy", "Accuracy", True, 1.0, NO_ROWS, guessing="class",
                   measure=accuracy, kinds=("classification", "choices")),
        ScoreFacts("macro_f1", "Macro-F1", True, 1.0, NO_ROWS, measure=macro_f1, kinds=_CLASSES),
        ScoreFacts("mcc", "MCC", True, 1.0, "all labels are the same class", HUNDREDTHS, 0.0,
                   measure=matthews, kinds=_CLASSES, usual=False),
        ScoreFacts("f1", "F1", True, 1.0, "class 1 is neither a label nor a prediction",
                   measure=f1, kinds=_CLASSES, usual=False),
        ScoreFacts("pearson", "Pearson", True, 1.0, _CONSTANT, HUNDREDTHS, 0.0,
                   measure=pearson, kinds=_NUMBERS),
        ScoreFacts("spearman", "Spearman", True, 1.0, _CONSTANT, HUNDREDTHS, 0.0,
                   measure=spearman, kinds=_NUMBERS),
        ScoreFacts("mse", "Mean squared error", False, 0.0, NO_ROWS, PLAIN,
                   measure=mean_squared_error, kinds=_NUMBERS),
        ScoreFacts("map", "mAP", True, 1.0, "every label applies to no row or to all rows",
                   measure=mean_average_precision, kinds=_LABELS),
        ScoreFacts("micro_f1", "Micro-F1", True, 1.0, _NO_LABEL, measure=micro_f1, kinds=_LABELS),
        ScoreFacts("label_f1", "Macro-F1 over labels", True, 1.0, _NO_LABEL,
                   measure=label_f1, kinds=_LABELS),
        ScoreFacts("exact_match", "Exact match", True, 1.0, NO_ROWS,
                   measure=exact_match, kinds=_LABELS),
        ScoreFacts("entity_f1", "Entity F1", True, 1.0, _NO_ENTITY, guessing=0.0, kinds=_TAGS),
        ScoreFacts("entity_precision", "Entity precision", True, 1.0, "no entity is predicted",
                   kinds=_TAGS),
        ScoreFacts("entity_recall", "Entity recall", True, 1.0, "no text has an entity",
                   kinds=_TAGS),
        ScoreFacts("lenient_entity_f1", "Entity F1, lenient", True, 1.0, _NO_ENTITY,
                   guessing=0.0, kinds=_TAGS),
        ScoreFacts("word_accuracy", "Accuracy over words", True, 1.0, NO_ROWS, kinds=_TAGS),
        ScoreFacts("span_f1", "F1 of answers", True, 1.0, NO_ROWS, kinds=_ANSWERS),
        ScoreFacts("span_exact_match", "Exact answers", True, 1.0, NO_ROWS, kinds=_ANSWERS),
        ScoreFacts("completion_loss", "Loss per token", False, 0.0, NO_ROWS, PLAIN,
                   kinds=("completions",)),
        ScoreFacts("drop", "Drop from the clean score", False, 0.0, "the metric is undefined",
                   None),
        ScoreFacts("area", "Area under the curve", True, 1.0, "a point is undefined", None,
                   "metric"),
    )
}  # fmt: skip
"""Facts of each score by name, including those that perspectives add with `add_scores`."""


def add_scores(*scores: ScoreFacts) -> None:
    """Add scores to `SCORES`; raise a `ValueError` if a name has other facts already."""
    for facts in scores:
        if SCORES.setdefault(facts.name, facts) != facts:
            raise ValueError(
                f"A score named {facts.name!r} exists already, with other properties. Rename it."
            )


def metrics_of(kind: str) -> tuple[str, ...]:
    """Return the metrics that tasks with this kind of labels can use, the default first.

    Example:
        >>> metrics_of("regression")
        ('pearson', 'spearman', 'mse')
    """
    return tuple(name for name, score in SCORES.items() if kind in score.kinds)


def measure_of(name: str) -> Measure:
    """Return the function that computes a score from labels and predictions."""
    measures = {known: score.measure for known, score in SCORES.items() if score.measure}
    if name not in measures:
        raise SettingError(unknown("score of predictions", name, measures))
    return measures[name]


def facts(name: str) -> ScoreFacts:
    """Return the `ScoreFacts` of a score; raise a `SettingError` if it is unknown."""
    if name not in SCORES:
        raise SettingError(unknown("score", name, SCORES))
    return SCORES[name]
