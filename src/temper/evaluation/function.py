"""Predictors that are not checkpoints: a Python function, a pipeline, a scikit-learn estimator.

They only accept texts, so perspectives that change tokens or embeddings are skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from temper.data.encode import encode
from temper.data.examples import Examples
from temper.errors import ModelError, TemperError, unknown
from temper.evaluation.classifier import label_names_of
from temper.evaluation.prediction import Prediction
from temper.evaluation.predictor import Gives
from temper.functional.resampling import FloatArray
from temper.importing import location_of
from temper.models.pipelines import FunctionToApply, TextPipeline, estimator_classes

OF_FUNCTIONS: tuple[Gives, ...] = ("logits", "probabilities", "values")
"""Kinds of output that a function can have."""


class CallablePredictor:
    """Predict with a Python function, for instance ``pipeline.predict_proba`` of scikit-learn.

    Args:
        function: Maps a list of n texts (of tuples ``(text, text_pair)`` for pair tasks) to an
            array: logits or probabilities [n, C], or values [n].
        gives: Output type of the function: ``logits``, ``probabilities`` or ``values``.
        label_names: Class names in the order of the columns, None if unknown.

    Raises:
        ModelError: ``gives`` is unknown, or there are fewer than two different names.

    Example:
        >>> from temper.data.examples import Examples
        >>> examples = Examples("toy", ["good", "bad"])
        >>> sure = CallablePredictor(lambda texts: [[0.1, 0.9]] * len(texts), gives="probabilities")
        >>> sure.predict(examples).prediction.tolist()
        [1.0, 1.0]
    """

    def __init__(
        self,
        function: Callable[[list[Any]], ArrayLike],
        *,
        gives: Gives,
        label_names: Sequence[str] | None = None,
    ) -> None:
        self.function = function
        self.gives = known_gives(gives)
        self.label_names = known_names(label_names, gives=self.gives)

    def predict(self, examples: Examples, *, batch_size: int | None = None) -> Prediction:
        """Predict examples, in their order; in one call of the function if ``batch_size`` is None.

        Raises:
            ModelError: The function fails, or its output is not as declared by ``gives``, not one
                row per text, or not one column per class name.
        """
        texts: list[Any] = list(examples.text)
        if examples.text_pair is not None:
            texts = list(zip(examples.text, examples.text_pair, strict=True))
        if not texts:
            raise ModelError(f"Set {examples.name!r} has no texts to predict.")
        size = len(texts) if batch_size is None else batch_size
        parts = [
            self._call(texts[start : start + size], start, examples.name)
            for start in range(0, len(texts), size)
        ]
        shapes = sorted({part.shape[1:] for part in parts})
        if len(shapes) > 1:
            raise ModelError(
                f"The predictor returned rows of different widths for set {examples.name!r}: "
                f"{' and '.join(str(list(shape)) for shape in shapes)}. It must return the same "
                "classes for every text."
            )
        outputs = np.concatenate(parts)
        if self.gives != "values" and outputs.ndim == 1:
            raise ModelError(
                f"The predictor returned one number per text for set {examples.name!r}, but "
                f"{self.gives} need one column per class, [{len(outputs)}, C]. Return a column for "
                "each class (for two classes: 1 - p and p), or declare gives='values' (--gives "
                "values) for a regression."
            )
        if self.label_names is not None and outputs.shape[-1] != len(self.label_names):
            raise ModelError(
                f"The predictor names {len(self.label_names)} classes, {list(self.label_names)}, "
                f"and returned {outputs.shape[-1]} columns. Pass one name per column, in order."
            )
        if self.gives == "logits":
            return Prediction.of_logits(outputs)
        if self.gives == "probabilities":
            return Prediction.of_probabilities(outputs)
        return Prediction.of_values(outputs)

    def _call(self, texts: list[Any], start: int, name: str) -> FloatArray:
        """Call the function on some texts; ``start`` is the row of the first one in its set."""
        try:
            result = np.asarray(self.function(texts), dtype=np.float64)
        except TemperError:
            raise
        except Exception as error:
            form = "(text, text_pair) tuples" if isinstance(texts[0], tuple) else "texts"
            raise ModelError(
                f"The predictor failed on rows {start} to {start + len(texts) - 1} of set "
                f"{name!r}: {type(error).__name__}: {error} ({location_of(error)}). It gets a list "
                f"of {form} and must return an array of numbers."
            ) from error
        given = len(result) if result.ndim else 1
        if given != len(texts) or not result.ndim:
            raise ModelError(
                f"The predictor returned {given} rows for the {len(texts)} texts of set {name!r}, "
                f"from row {start} on. It must return one row per text."
            )
        return result


class PipelinePredictor(CallablePredictor):
    """Predict with a text-classification pipeline of Transformers.

    Args:
        pipeline: The result of ``transformers.pipeline("text-classification", ...)``; its
            ``top_k`` and ``truncation`` are ignored.
        function_to_apply: ``none`` for the model's logits, ``softmax`` for the pipeline's
            probabilities; a regression returns values.
        max_length: Maximum number of tokens of a text; None uses the tokenizer's limit.
        batch_size: Default number of rows of a forward pass, >= 1.

    Raises:
        ModelError: The pipeline is not for text classification, predicts several labels per text,
            has two classes with the same name, or no maximum length.

    Embedding attacks and other perspectives that need the model itself are available with
    ``ClassifierPredictor(pipeline.model, pipeline.tokenizer)``.
    """

    def __init__(
        self,
        pipeline: Any,
        *,
        function_to_apply: FunctionToApply = "none",
        max_length: int | None = None,
        batch_size: int = 32,
    ) -> None:
        if batch_size < 1:
            raise ModelError(f"`batch_size` must be >= 1, got {batch_size}.")
        scorer = TextPipeline(pipeline, function_to_apply=function_to_apply, max_length=max_length)
        self.pipeline = pipeline
        self.max_length = scorer.max_length
        self.batch_size = batch_size
        classes: Gives = "logits" if scorer.function_to_apply == "none" else "probabilities"
        super().__init__(
            scorer.scores,
            gives="values" if scorer.regression else classes,
            label_names=None if scorer.regression else label_names_of(pipeline.model.config),
        )

    def predict(self, examples: Examples, *, batch_size: int | None = None) -> Prediction:
        result = super().predict(examples, batch_size=batch_size or self.batch_size)
        bare = replace(examples, labels=None, label_names=None, kind="unlabeled")
        encoded = encode(bare, self.pipeline.tokenizer, max_length=self.max_length)
        return replace(result, truncated=encoded.truncated)


class EstimatorPredictor(CallablePredictor):
    """Predict with a fitted scikit-learn estimator of texts.

    Args:
        estimator: A classifier with ``predict_proba`` or a regressor, usually a pipeline that
            starts with a vectorizer. For pairs it gets tuples ``(text, text_pair)``.
        label_names: Names of the classes 0..C-1; None uses ``classes_``.

    Raises:
        ModelError: A classifier has no ``predict_proba``, or ``classes_`` has different names.
    """

    def __init__(self, estimator: Any, *, label_names: Sequence[str] | None = None) -> None:
        self.estimator = estimator
        classes = estimator_classes(estimator)
        if classes is None:
            super().__init__(estimator.predict, gives="values", label_names=label_names)
            return
        # Numbers from 0 to C - 1 are no names.
        known = None if classes == list(range(len(classes))) else tuple(map(str, classes))
        if known is not None and label_names is not None and known != tuple(label_names):
            raise ModelError(
                f"The estimator's classes are {list(known)}, and `label_names` "
                f"{list(label_names)}. Leave `label_names` out."
            )
        if label_names is not None and len(classes) != len(label_names):
            raise ModelError(
                f"The estimator has {len(classes)} classes, and `label_names` are "
                f"{list(label_names)}. Pass one name per class."
            )
        names = known or label_names
        super().__init__(estimator.predict_proba, gives="probabilities", label_names=names)


def known_gives(gives: str) -> Gives:
    """Return ``gives``; raise a `ModelError` if it is not a known type of output."""
    if gives not in OF_FUNCTIONS:
        raise ModelError(unknown("output type (`gives`)", gives, OF_FUNCTIONS))
    return gives


def known_names(label_names: Sequence[str] | None, *, gives: Gives) -> tuple[str, ...] | None:
    """Return class names as a tuple; raise a `ModelError` unless two or more are different."""
    if label_names is None:
        return None
    if gives == "values":
        raise ModelError(
            f"A regression has no classes, got `label_names` {label_names!r}. Leave them out."
        )
    names = () if isinstance(label_names, str) else tuple(label_names)
    plain = all(isinstance(name, str) and name for name in names)
    if not plain or len(names) < 2 or len(set(names)) < len(names):
        raise ModelError(f"`label_names` must be two or more different texts, got {label_names!r}.")
    return names
