"""Predictions as rows of ``rows.parquet``."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from temper.data.examples import Examples
from temper.data.spans import texts_at
from temper.errors import DataError
from temper.evaluation.prediction import Prediction
from temper.evaluation.rows import ANSWER, LABEL, PREDICTED, TARGETS, Block, Condition
from temper.functional.answers import SPAN_SCORES, answer_scores
from temper.functional.entities import COUNTS, tag_counts
from temper.functional.resampling import FloatArray, IntegerArray


def labels_of(examples: Examples, *, labeled: bool = True) -> FloatArray:
    """Return labels as float64 [n], or [n, L] for several labels; NaN if there are none."""
    if not labeled or examples.labels is None:
        return np.full(len(examples), np.nan)
    return np.asarray(examples.labels, dtype=np.float64)


def block_of(
    condition: Condition,
    examples: Examples,
    prediction: Prediction,
    *,
    index: IntegerArray | None = None,
    labeled: bool = True,
) -> Block:
    """Return predictions as rows; ``index`` are their positions in the set, None for 0..n-1.

    Raises:
        DataError: A label is outside the predictor's classes.
    """
    nothing = np.full(len(examples), np.nan)
    block = Block(
        condition=condition,
        row=examples.rows,
        index=np.arange(len(examples)) if index is None else index,
        label=nothing,
        prediction=nothing,
        probabilities=np.empty((len(examples), 0)),
        loss=nothing,
        group=_named(examples.group),
    )
    units = (prediction.applies, prediction.words, prediction.spans, prediction.targets)
    if any(unit is not None for unit in units):
        measured = _counted(examples, prediction, labeled=labeled)
        if prediction.applies is None:
            return replace(block, measured=measured)
        loss = prediction.loss(labels_of(examples)) if measured else nothing
        probabilities = prediction.probabilities
        return replace(block, probabilities=probabilities, loss=loss, measured=measured)
    labels = labels_of(examples, labeled=labeled)
    classes = prediction.probabilities.shape[1]
    # NaN if no label is known, which compares false.
    least, most = np.fmin.reduce(labels, initial=np.nan), np.fmax.reduce(labels, initial=np.nan)
    if classes and (least < 0 or most >= classes):
        raise DataError(
            f"Set {condition.set!r} has the label {most:g}, but the model has {classes} "
            f"classes (0..{classes - 1}). Evaluate on data with the model's labels."
        )
    return replace(
        block,
        label=labels,
        prediction=prediction.prediction,
        probabilities=prediction.probabilities,
        loss=prediction.loss(labels),
        pair=_named(examples.pair),
    )


def _counted(examples: Examples, prediction: Prediction, *, labeled: bool) -> dict[str, FloatArray]:
    """Return `Block.measured` for several labels, tags, answers in contexts or completions.

    It is empty without labels.
    """
    if not labeled or examples.labels is None:
        return {}
    if prediction.targets is not None:
        # Predictions under perturbations lack the bins of confidence, which ECE needs.
        return dict(zip(TARGETS, prediction.targets.T, strict=False))
    if prediction.spans is not None:
        result = texts_at(prediction.spans.tolist(), examples.text_pair or ())
        right = ([text for _, text in answers] for answers in examples.labels)
        scores = dict(zip(SPAN_SCORES, answer_scores(result, right).T, strict=True))
        return {**scores, ANSWER: prediction.probabilities[:, 0]}
    if prediction.words is None:
        assert prediction.applies is not None
        known = examples.label_names or ()
        names = [f"{prefix}{name}" for prefix in (LABEL, PREDICTED) for name in known]
        values = np.concatenate([np.array(examples.labels), prediction.applies], axis=1)
        return dict(zip(names, values.T.astype(np.float64), strict=True))
    tags = prediction.by_example(np.nan_to_num(prediction.prediction, nan=-1.0))
    predicted = [row.astype(int).tolist() for row in tags]
    counts = tag_counts(examples.labels, predicted, examples.label_names or ())
    return dict(zip(COUNTS, counts.T, strict=True))


def _named(names: list[str | None] | None) -> list[str | None] | None:
    return names if any(name is not None for name in names or ()) else None
