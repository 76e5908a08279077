"""Load pipelines of other libraries: text classification of Transformers, and scikit-learn (skops).

Nothing is unpickled. Types in a skops file are loaded only if skops considers them harmless, or if
the user names them.
"""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from temper.errors import ModelError, SettingError, install_command, shortened, unknown
from temper.heads import MultiLabel
from temper.models.folders import check_names
from temper.models.kinds import check_outputs, head_of
from temper.models.modes import in_mode

FunctionToApply = Literal["none", "softmax"]
_APPLIED = get_args(FunctionToApply)
# Tokenizers without a known limit have a number far above any real one.
_NO_LIMIT = 10**6


def is_text_pipeline(thing: object) -> bool:
    from transformers import TextClassificationPipeline

    return isinstance(thing, TextClassificationPipeline)


class TextPipeline:
    """Runs a text-classification pipeline; the output has one column per class in label order.

    Args:
        pipeline: The result of ``transformers.pipeline("text-classification", ...)``.
        function_to_apply: ``none`` for logits, ``softmax`` for probabilities.
        max_length: Maximum number of tokens of a text; None takes the tokenizer's limit.
    """

    def __init__(
        self,
        pipeline: Any,
        *,
        function_to_apply: FunctionToApply = "none",
        max_length: int | None = None,
    ) -> None:
        if not is_text_pipeline(pipeline):
            raise ModelError(
                "A text-classification pipeline of Transformers is needed, got "
                f"{type(pipeline).__name__}. Wrap other functions in CallablePredictor."
            )
        if function_to_apply not in _APPLIED:
            raise ModelError(unknown("function_to_apply", function_to_apply, _APPLIED))
        config = pipeline.model.config
        head = head_of(config)
        if head is MultiLabel:
            raise ModelError(
                "The pipeline's model predicts several labels per text (problem_type "
                "'multi_label_classification'), which is not supported here. Pass a model with one "
                "class per text."
            )
        self.pipeline = pipeline
        check_outputs(config, model="the pipeline's model")
        self.regression = not head.has_classes
        self.function_to_apply = "none" if self.regression else function_to_apply
        self.labels = [str(config.id2label[index]) for index in range(config.num_labels)]
        check_names(self.labels, "the pipeline's model")
        limit = int(pipeline.tokenizer.model_max_length) if max_length is None else max_length
        if max_length is None and limit > _NO_LIMIT:
            raise ModelError(
                "The maximum length of the pipeline's tokenizer is unknown. Pass `max_length`, or "
                "set `model_max_length` of the tokenizer."
            )
        self.max_length = limit
        if self.max_length < 1:
            raise ModelError(f"`max_length` must be >= 1, got {max_length}.")

    def scores(self, rows: Sequence[Any]) -> NDArray[np.float64]:
        """Predict n >= 1 texts, or tuples ``(text, text_pair)``, in one forward pass.

        The result is [n, C] in the order of the model's labels, or [n] for a regression.
        """
        inputs = [
            {"text": row[0], "text_pair": row[1]} if isinstance(row, tuple) else row for row in rows
        ]
        model = self.pipeline.model
        # Otherwise a pipeline around a model that was just trained would predict with dropout.
        mode = in_mode(model, training=False) if isinstance(model, nn.Module) else nullcontext()
        # Pipelines draw the seed of a data loader from the global generator.
        with mode, torch.random.fork_rng(devices=[]):
            result = self.pipeline(
                inputs,
                top_k=None,
                function_to_apply=self.function_to_apply,
                truncation=True,
                max_length=self.max_length,
                batch_size=len(rows),
            )
        indices = {label: index for index, label in enumerate(self.labels)}
        scores = np.full((len(rows), len(indices)), np.nan)
        for index, scored in enumerate(result):
            for item in scored:
                scores[index, indices[item["label"]]] = item["score"]
        return scores[:, 0] if self.regression else scores


def load_skops(path: Path, *, trusted: Sequence[str] = ()) -> Any:
    """Load an object that ``skops.io.dump`` saved.

    Args:
        path: The file.
        trusted: Full names of types to load although skops does not consider them harmless.

    Raises:
        ModelError: skops is not installed, the file is missing or damaged, or a type cannot be
            imported.
        SettingError: The file has further untrusted types, or lacks a type in ``trusted``.
    """
    if not path.is_file():
        raise ModelError(f"There is no file {path}. Save a pipeline there with skops.io.dump.")
    try:
        from skops.io import get_untrusted_types, load
    except ImportError:
        raise ModelError(
            f"Reading {path} needs skops and scikit-learn, which are not installed. "
            f"Run: {install_command('sklearn')}"
        ) from None
    try:
        result = list(get_untrusted_types(file=path))
    except (zipfile.BadZipFile, KeyError, ValueError, TypeError, OSError) as error:
        raise ModelError(
            f"{path} is not a skops file, or is damaged ({error}). Save it again with "
            "skops.io.dump."
        ) from error
    asked = [name for name in result if name not in trusted]
    if asked:
        raise SettingError(
            f"{path} contains types that skops does not know to be harmless: {', '.join(asked)}. "
            f"If you trust its author, add {' '.join(f'--trust {name}' for name in asked)} "
            "(in Python, trusted=[...])."
        )
    idle = [name for name in trusted if name not in result]
    if idle:
        raise SettingError(
            f"{path} has no untrusted type {', '.join(idle)}; it has "
            f"{', '.join(result) or 'none'}. Leave --trust out for the others."
        )
    try:
        return load(path, trusted=result)
    except (ImportError, AttributeError) as error:
        raise ModelError(
            f"{path} has a type that cannot be imported here ({error}). Install its package, or "
            "put its module on PYTHONPATH."
        ) from error
    except Exception as error:
        # Arrays of objects are pickles, which skops does not open.
        raise ModelError(
            f"{path} contains objects that skops cannot build ({shortened(str(error))}). Save a "
            "pipeline without arrays of objects, with skops.io.dump."
        ) from error


def estimator_classes(estimator: Any) -> list[Any] | None:
    """Return the classes of a fitted scikit-learn classifier or pipeline; None for a regressor.

    Raises:
        ModelError: It predicts several outputs, or neither probabilities nor a value.
    """
    name = type(estimator).__name__
    if not hasattr(estimator, "predict_proba"):
        from sklearn.base import is_regressor

        if is_regressor(estimator):
            return None
        raise ModelError(
            f"{name} has no probabilities (no predict_proba). Wrap its last step in "
            "sklearn.calibration.CalibratedClassifierCV and fit it again."
        )
    classes = getattr(estimator, "classes_", None)
    if classes is None or isinstance(classes, list) or np.ndim(classes) != 1 or len(classes) < 2:
        raise ModelError(
            f"{name} must be fitted on one label per text, of two classes or more; its classes_ "
            f"are {classes}. Fit it on such labels."
        )
    return list(classes)
