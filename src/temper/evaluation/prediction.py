"""The outputs of a predictor for some examples.

Letters: n examples, C classes, L labels, W words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from temper.errors import ModelError
from temper.functional.calibration import negative_log_likelihood, probabilities_of
from temper.functional.resampling import FloatArray, IntegerArray, stretches

BROKEN = "The model is broken or too imprecise. If training diverged, use a lower learning rate."


@dataclass(frozen=True)
class Prediction:
    """Predictions for n examples.

    Create it with `of_logits`, `of_probabilities`, `of_values`, `of_labels`, `of_tags`, `of_spans`
    or `of_targets`; the kind of output is never guessed from the numbers.

    Args:
        probabilities: [n, C]; [n, 0] for a regression.
        prediction: Class index or predicted value, [n].
        logits: [n, C] if the predictor returns logits; they keep losses finite.
        truncated: Fraction of the examples that were truncated, None if unknown.
        applies: For several labels: whether each label is predicted, [n, L]. ``probabilities`` are
            then [n, L], and ``prediction`` is NaN.
        words: For tags: number of words of each example, [n]. The arrays above then have a row per
            word, [W, C] and [W]; NaN for words that the model did not read.
        spans: For questions with a context: start and end (exclusive) of the answer in characters,
            [n, 2]; -1 if there is none. ``probabilities`` are then [n, 1], and ``prediction`` is
            NaN.
        targets: For given completions: sum of the tokens' losses, number of tokens, and sums of
            gaps by bin of confidence (`temper.evaluation.binned`), [n, 2 + bins]; without bins
            under a perturbation, [n, 2]. The arrays above are then NaN.
    """

    probabilities: FloatArray
    prediction: FloatArray
    logits: FloatArray | None = None
    truncated: float | None = None
    applies: NDArray[np.bool_] | None = None
    words: IntegerArray | None = None
    spans: IntegerArray | None = None
    targets: FloatArray | None = None

    @classmethod
    def of_targets(cls, targets: FloatArray, *, truncated: float | None = None) -> Prediction:
        """Create predictions from `targets` of given completions."""
        if not bool(np.isfinite(targets).all()):
            raise ModelError(f"The loss of a completion must be finite. {BROKEN}")
        nothing = np.full(len(targets), np.nan)
        return cls(nothing[:, np.newaxis], nothing, None, truncated, targets=targets)

    @classmethod
    def of_spans(
        cls, indices: IntegerArray, probabilities: FloatArray, *, truncated: float | None = None
    ) -> Prediction:
        """Create predictions from answers in contexts: `spans` [n, 2] and probabilities [n]."""
        if not bool(np.isfinite(probabilities).all()):
            raise ModelError(f"Probabilities must be finite. {BROKEN}")
        nothing = np.full(len(indices), np.nan)
        return cls(probabilities[:, np.newaxis], nothing, None, truncated, spans=indices)

    @classmethod
    def of_tags(cls, rows: Sequence[FloatArray], *, truncated: float | None = None) -> Prediction:
        """Create predictions from the logits of each example's tags, [words, C].

        They are NaN for words that the model did not read.
        """
        logits = np.concatenate(rows)
        known = ~np.isnan(logits).all(axis=1)
        read = cls.of_logits(logits[known])
        probabilities, prediction = np.full_like(logits, np.nan), np.full(len(logits), np.nan)
        probabilities[known], prediction[known] = read.probabilities, read.prediction
        words = np.array([len(row) for row in rows], dtype=np.int64)
        return cls(probabilities, prediction, logits, truncated, words=words)

    @classmethod
    def of_labels(cls, logits: ArrayLike, *, truncated: float | None = None) -> Prediction:
        """Create predictions from a logit per label [n, L]; labels with a logit > 0 apply."""
        array = _classes(logits, "Logits")
        nothing = np.full(len(array), np.nan)
        chances = np.exp(-np.logaddexp(0.0, -array))
        return cls(chances, nothing, array, truncated, array > 0)

    @classmethod
    def of_logits(cls, logits: ArrayLike, *, truncated: float | None = None) -> Prediction:
        """Create predictions from finite logits [n, C], C >= 2."""
        array = _classes(logits, "Logits")
        # Predicted from the logits: two probabilities may round to the same number.
        chosen = array.argmax(axis=1).astype(np.float64)
        return cls(probabilities_of(array), chosen, array, truncated)

    @classmethod
    def of_probabilities(cls, probabilities: ArrayLike) -> Prediction:
        """Create predictions from class probabilities [n, C]; rows sum to 1 within 1e-3."""
        array = _classes(probabilities, "Probabilities")
        wrong = (array < 0).any(axis=1) | (np.abs(array.sum(axis=1) - 1.0) > 1e-3)
        if bool(wrong.any()):
            row = int(np.flatnonzero(wrong)[0])
            raise ModelError(
                f"Probabilities must be >= 0 and sum to 1, got {array[row].tolist()} for row "
                f"{row}. If these are logits, declare gives='logits' (--gives logits)."
            )
        return cls(array, array.argmax(axis=1).astype(np.float64))

    @classmethod
    def of_values(cls, values: ArrayLike, *, truncated: float | None = None) -> Prediction:
        """Create predictions from the finite values [n] of a regression."""
        array = np.asarray(values, dtype=np.float64)
        if array.ndim != 1:
            raise ModelError(
                f"A regression must return one value per row, got shape {list(array.shape)}."
            )
        broken = np.flatnonzero(~np.isfinite(array))
        if len(broken):
            raise ModelError(
                f"Values must be finite, got {array[broken[0]]} for row {broken[0]}. {BROKEN}"
            )
        return cls(np.zeros((len(array), 0)), array, None, truncated)

    def __len__(self) -> int:
        return len(self.prediction if self.words is None else self.words)

    def by_example(self, values: FloatArray) -> list[FloatArray]:
        """Split an array with a row per word, [W, ...], by example."""
        assert self.words is not None
        return np.split(values, np.cumsum(self.words)[:-1])

    @property
    def regression(self) -> bool:
        return bool(self.probabilities.shape[1] == 0)

    @property
    def decoded(self) -> FloatArray:
        """Probabilities [n, C], or the values [n, 1] of a regression."""
        return self.prediction[:, np.newaxis] if self.regression else self.probabilities

    @property
    def label_probabilities(self) -> FloatArray:
        """The probability of each of several labels, or of class 1 of two, [n, L]."""
        return self.probabilities[:, 1:] if self.applies is None else self.probabilities

    @property
    def label_decisions(self) -> NDArray[np.bool_]:
        """Whether each of several labels, or class 1 of two, is predicted, [n, L]."""
        return self.prediction[:, np.newaxis] == 1 if self.applies is None else self.applies

    def decided(self, thresholds: tuple[float, ...] | None) -> Prediction:
        """Predict each label, or class 1 of two, if its probability is above a threshold.

        ``thresholds`` has one probability per label, or one for class 1; None changes nothing.
        """
        if thresholds is None:
            return self
        above = self.label_probabilities > np.asarray(thresholds)
        if self.applies is not None:
            return replace(self, applies=above)
        return replace(self, prediction=above[:, 0].astype(np.float64))

    def take(self, index: IntegerArray | list[int]) -> Prediction:
        if self.words is not None:
            rows = self.by_example(self.logits)  # type: ignore[arg-type]
            return Prediction.of_tags([rows[position] for position in index])
        logits = None if self.logits is None else self.logits[index]
        applies = None if self.applies is None else self.applies[index]
        probabilities, prediction = self.probabilities[index], self.prediction[index]
        return Prediction(probabilities, prediction, logits, applies=applies)

    def replaced(self, index: IntegerArray, others: Prediction) -> Prediction:
        prediction, probabilities = self.prediction.copy(), self.probabilities.copy()
        prediction[index], probabilities[index] = others.prediction, others.probabilities
        logits = None
        if self.logits is not None and others.logits is not None:
            logits = self.logits.copy()
            logits[index] = others.logits
        return Prediction(probabilities, prediction, logits)

    def loss(self, labels: FloatArray) -> FloatArray:
        """Return the NLL, or squared error of a regression, of each example, [n].

        Labels are [n]; for several labels they are [n, L], and the loss is the mean over them. It
        is NaN if the label is NaN, and infinite if the label's probability is 0.
        """
        if self.applies is not None:
            assert self.logits is not None
            sign = np.where(labels == 1, -1.0, 1.0)
            return np.asarray(np.logaddexp(0.0, sign * self.logits).mean(axis=1))
        loss = np.full(len(self), np.nan)
        for rows in stretches(len(self), width=max(self.probabilities.shape[1], 1)):
            known = ~np.isnan(labels[rows])
            wanted = labels[rows][known]
            if self.regression:
                result = (self.prediction[rows][known] - wanted) ** 2
            elif self.logits is not None:
                result = negative_log_likelihood(wanted, self.logits[rows][known])
            else:
                with np.errstate(divide="ignore"):
                    result = -np.log(self.probabilities[rows][known, wanted.astype(np.int64)])
            loss[rows][known] = result
        return loss


def _classes(values: ArrayLike, what: str) -> FloatArray:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 2 or array.shape[1] < 2:
        raise ModelError(f"{what} must be [n, C] with C >= 2, got shape {list(array.shape)}.")
    broken = ~np.isfinite(array).all(axis=1)
    if bool(broken.any()):
        row = int(np.flatnonzero(broken)[0])
        raise ModelError(
            f"{what} must be finite, got {array[row].tolist()} for row {row}. {BROKEN}"
        )
    return array


def joined(indices: Sequence[int], parts: Sequence[Prediction]) -> Prediction:
    """Concatenate predictions of batches, sorted by the rows' ``indices`` (0 to n-1)."""
    positions = np.argsort(np.asarray(indices, dtype=np.int64))
    cut = [part.truncated * len(part) for part in parts if part.truncated is not None]
    truncated = sum(cut) / len(positions) if len(cut) == len(parts) else None
    if parts[0].words is not None:
        rows = [row for part in parts for row in part.by_example(part.logits)]  # type: ignore[arg-type]
        return Prediction.of_tags([rows[index] for index in positions], truncated=truncated)
    whole: dict[str, Any] = {}
    for name in ("probabilities", "prediction", "logits", "applies", "spans", "targets"):
        arrays = [getattr(part, name) for part in parts]
        if all(array is not None for array in arrays):
            whole[name] = np.concatenate(arrays)[positions]
    return Prediction(**whole, truncated=truncated)
