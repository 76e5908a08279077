"""Temperature scaling of answers in contexts: one temperature for start and end logits.

Both are divided by T before their softmaxes. This changes the probability of an answer, but not
which answer of a row is the most probable.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from temper.data.examples import Examples
from temper.evaluation.measurement import Measurement
from temper.evaluation.predictor import PerturbablePredictor
from temper.functional.calibration import scaled
from temper.functional.resampling import FloatArray, IntegerArray
from temper.heads import best_spans
from temper.lazy import torch
from temper.types import UNLABELED


@dataclass(frozen=True)
class SpanLogits:
    """Logits of the starts and ends of answers.

    Args:
        logits: [n, 2, T]; the lowest fp32 number at tokens that cannot be in an answer, -inf at
            padding.
        labels: Tokens at which the first right answer starts and ends, [n, 2]; -100 if it was
            truncated.
        chosen: Tokens at which the predicted answer starts and ends, [n, 2].
    """

    logits: FloatArray
    labels: IntegerArray
    chosen: IntegerArray

    @classmethod
    def of(cls, measurement: Measurement, examples: Examples) -> SpanLogits:
        """Compute the logits of a labeled set, in one pass over its rows."""
        predictor = measurement.predictor
        if not isinstance(predictor, PerturbablePredictor):
            raise ValueError(f"a {type(predictor).__name__} returns no logits of starts and ends")
        indices: list[int] = []
        parts: list[FloatArray] = []
        labels: list[IntegerArray] = []
        chosen: list[IntegerArray] = []
        with predictor.session() as session, torch.no_grad():
            for part in measurement.parts(session, examples, f"answers ({examples.name})"):
                logits = session.logits(part)
                assert part.batch.labels is not None
                indices += part.indices
                parts.append(logits.double().cpu().numpy())
                labels.append(part.batch.labels.cpu().numpy())
                chosen.append(best_spans(logits)[0].cpu().numpy())
        order = np.argsort(indices)
        width = max(part.shape[-1] for part in parts)
        whole = np.concatenate(
            [
                np.pad(part, [(0, 0), (0, 0), (0, width - part.shape[-1])], constant_values=-np.inf)
                for part in parts
            ]
        )
        return cls(whole[order], np.concatenate(labels)[order], np.concatenate(chosen)[order])

    def known(self) -> tuple[FloatArray, FloatArray, IntegerArray]:
        """Return labels [m], logits [m, T] and rows [m] of all m starts and ends with a label.

        Tokens that cannot be in an answer get -inf, so their probability is 0 at any temperature.
        """
        rows, ends = np.nonzero(self.labels != UNLABELED)
        logits = self.logits[rows, ends]
        logits = np.where(logits > np.finfo(np.float32).min, logits, -np.inf)
        return self.labels[rows, ends].astype(np.float64), logits, rows

    def probabilities(self, temperatures: FloatArray) -> FloatArray:
        """Return the probabilities [n] of the predicted answers at temperatures [n]."""
        count, _, width = self.logits.shape
        scores = scaled(self.logits.reshape(2 * count, width), np.repeat(temperatures, 2))
        chosen = np.take_along_axis(scores, self.chosen.reshape(-1, 1), axis=1)
        return np.asarray(np.exp(chosen.reshape(count, 2).sum(axis=1)))
