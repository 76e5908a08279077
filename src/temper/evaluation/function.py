"""Predict with any Python function from texts to answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from temper.data.examples import Examples
from temper.errors import ModelError
from temper.evaluation.prediction import Prediction
from temper.evaluation.predictor import Gives


class CallablePredictor:
    """Predict with a Python function, for instance ``pipeline.predict_proba`` of scikit-learn.

    Args:
        function: From a list of n texts (of pairs ``(text, text_pair)`` for pair tasks) to an
            array: logits or probabilities [n, C], or values [n].
        gives: Which of these it returns.
        label_names: The classes by index, None where unknown.

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
        self.gives: Gives = gives
        self.label_names = None if label_names is None else tuple(label_names)

    def predict(self, examples: Examples, *, batch_size: int | None = None) -> Prediction:
        """Answer examples, in their order.

        Args:
            examples: Texts; labels are not looked at.
            batch_size: Texts handed over at a time, None for all at once.

        Returns:
            The function's answers.

        Raises:
            ModelError: They are not what ``gives`` promises, or not one a text.
        """
        texts: list[Any] = list(examples.text)
        if examples.text_pair is not None:
            texts = list(zip(examples.text, examples.text_pair, strict=True))
        size = max(1, len(texts)) if batch_size is None else batch_size
        parts = [
            np.asarray(self.function(texts[start : start + size]), dtype=np.float64)
            for start in range(0, len(texts), size)
        ]
        answers = np.concatenate(parts) if parts else np.zeros((0, 0))
        if not len(texts) or len(answers) != len(texts):
            raise ModelError(
                f"The predictor gave {len(answers)} answers for the {len(texts)} texts of set "
                f"{examples.name!r}. It must give one a text, and the set must have texts."
            )
        if self.gives == "logits":
            return Prediction.of_logits(answers)
        if self.gives == "probabilities":
            return Prediction.of_probabilities(answers)
        return Prediction.of_values(answers)
