"""What a predictor answers, in one form: class probabilities and losses, or predicted values."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from temper.errors import ModelError
from temper.functional.calibration import negative_log_likelihood, probabilities_of
from temper.functional.resampling import FloatArray, stretches

BROKEN = (
    "The model is broken, or its precision too low. Where its own training spoiled it, train it "
    "again at a lower learning rate."
)


@dataclass(frozen=True)
class Prediction:
    """Answers for n examples: exactly one of logits, probabilities and values was given.

    Make one with `of_logits`, `of_probabilities` or `of_values`; nothing is guessed from the
    numbers.

    Args:
        probabilities: [n, C], [n, 0] for a regression.
        prediction: Class index or predicted value, [n].
        logits: [n, C] where the predictor gives them, for losses that stay finite.
        truncated: Share of the examples that were cut to the model's length, None where unknown.
    """

    probabilities: FloatArray
    prediction: FloatArray
    logits: FloatArray | None = None
    truncated: float | None = None

    @classmethod
    def of_logits(cls, logits: ArrayLike, *, truncated: float | None = None) -> Prediction:
        """Take logits.

        Args:
            logits: [n, C], C >= 2, finite.
            truncated: Share of the examples that were cut.

        Raises:
            ModelError: The shape is wrong or a value is not finite.

        Example:
            >>> Prediction.of_logits([[0.0, 2.0]]).prediction.tolist()
            [1.0]
        """
        array = _classes(logits, "Logits")
        # Predicted from the logits: two probabilities may round to the same number.
        return cls(probabilities_of(array), _likeliest(array), array, truncated)

    @classmethod
    def of_probabilities(
        cls, probabilities: ArrayLike, *, truncated: float | None = None
    ) -> Prediction:
        """Take class probabilities.

        Args:
            probabilities: [n, C], C >= 2, each row in [0, 1] and summing to 1 within 1e-3.
            truncated: Share of the examples that were cut.

        Raises:
            ModelError: The values are not probabilities.

        Example:
            >>> Prediction.of_probabilities([[0.25, 0.75]]).prediction.tolist()
            [1.0]
        """
        array = _classes(probabilities, "Probabilities")
        for rows in stretches(len(array), width=array.shape[1]):
            own = array[rows]
            wrong = (own < 0).any(axis=1) | (np.abs(own.sum(axis=1) - 1.0) > 1e-3)
            if bool(wrong.any()):
                row = rows.start + int(np.flatnonzero(wrong)[0])
                raise ModelError(
                    "Probabilities must be >= 0 and sum to 1, got "
                    f"{array[row].tolist()} for row {row}. If these are logits, say so "
                    "(gives='logits')."
                )
        return cls(array, _likeliest(array), None, truncated)

    @classmethod
    def of_values(cls, values: ArrayLike, *, truncated: float | None = None) -> Prediction:
        """Take the values that a regression predicts.

        Args:
            values: [n], finite.
            truncated: Share of the examples that were cut.

        Raises:
            ModelError: The shape is wrong or a value is not finite.
        """
        array = np.asarray(values, dtype=np.float64)
        if array.ndim != 1:
            raise ModelError(
                f"A regression must give one value a row, got shape {list(array.shape)}."
            )
        broken = np.flatnonzero(~np.isfinite(array))
        if len(broken):
            raise ModelError(
                f"Values must be finite, got {array[broken[0]]} for row {broken[0]}. {BROKEN}"
            )
        return cls(np.zeros((len(array), 0)), array, None, truncated)

    def __len__(self) -> int:
        """Return the number of examples."""
        return len(self.prediction)

    @property
    def regression(self) -> bool:
        """Whether the answers are values and not classes."""
        return bool(self.probabilities.shape[1] == 0)

    def loss(self, labels: FloatArray) -> FloatArray:
        """Return NLL or squared error of each example; NaN where the label is NaN.

        Args:
            labels: Class indices or targets, [n]; NaN where unknown.

        Returns:
            [n]; infinite where a given probability of the label is exactly 0.
        """
        loss = np.full(len(self), np.nan)
        for rows in stretches(len(self), width=max(self.probabilities.shape[1], 1)):
            known = ~np.isnan(labels[rows])
            wanted = labels[rows][known]
            if self.regression:
                found = (self.prediction[rows][known] - wanted) ** 2
            elif self.logits is not None:
                found = negative_log_likelihood(wanted, self.logits[rows][known])
            else:
                with np.errstate(divide="ignore"):
                    found = -np.log(self.probabilities[rows][known, wanted.astype(np.int64)])
            loss[rows][known] = found
        return loss


def _classes(values: ArrayLike, what: str) -> FloatArray:
    """Check values by class."""
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 2 or array.shape[1] < 2:
        raise ModelError(f"{what} must be [n, C] with C >= 2, got shape {list(array.shape)}.")
    for rows in stretches(len(array), width=array.shape[1]):
        broken = ~np.isfinite(array[rows]).all(axis=1)
        if bool(broken.any()):
            row = rows.start + int(np.flatnonzero(broken)[0])
            raise ModelError(
                f"{what} must be finite, got {array[row].tolist()} for row {row}. {BROKEN}"
            )
    return array


def _likeliest(values: FloatArray) -> FloatArray:
    """Return the column of each row's largest value, the first where several are."""
    found = np.empty(len(values))
    for rows in stretches(len(values), width=values.shape[1]):
        found[rows] = values[rows].argmax(axis=1)
    return found
