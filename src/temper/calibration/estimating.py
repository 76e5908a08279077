"""Estimate scores on unlabeled texts, if their distribution is that of the held-out rows."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from temper.calibration.calibration import Calibration, HeldOut, one_class
from temper.calibration.predictions import Shift, UnlabeledScores
from temper.evaluation.prediction import Prediction
from temper.functional.estimates import estimate_scores
from temper.functional.resampling import FloatArray
from temper.lazy import scipy

LEVEL = 0.01
"""p value of the Kolmogorov-Smirnov tests below which nothing is estimated."""
LEAST = 20
"""Minimum number of texts for an estimate; fewer would not reveal a shift."""


def unlabeled_scores(
    known: Calibration | None,
    uncalibrated: Prediction,
    anomaly: FloatArray | None,
    shift: Shift | None,
) -> UnlabeledScores | None:
    """Estimate accuracy and macro-F1 of texts without labels.

    If one of three tests finds a shift from the held-out rows, the result has a reason instead: the
    shift test of the hidden states, and two-sample Kolmogorov-Smirnov tests of the OOD scores and
    of the confidence (Rabanser et al., "Failing Loudly", NeurIPS 2019, tests the softmax).

    The result is None without held-out rows, or unless each text has one class.
    """
    if known is None or known.held_out is None or uncalibrated.logits is None or anomaly is None:
        return None
    if not one_class(uncalibrated):
        return None
    if known.thresholds is not None:
        return UnlabeledScores(
            len(uncalibrated), reason="decisions are not made at a probability of 0.5"
        )
    held_out = known.held_out
    reason = next(_doubts(held_out, uncalibrated, anomaly, shift), None)
    if reason is None:
        assert held_out.prediction.logits is not None
        try:
            scores = estimate_scores(
                held_out.labels, held_out.prediction.logits, uncalibrated.logits
            )
            return UnlabeledScores(len(uncalibrated), scores["accuracy"], scores["macro_f1"])
        except ValueError:
            reason = "the confidence on the held-out rows does not show how often they are right"
    return UnlabeledScores(len(uncalibrated), reason=reason)


def _doubts(
    held: HeldOut, uncalibrated: Prediction, anomaly: FloatArray, shift: Shift | None
) -> Iterator[str]:
    """Yield reasons why an estimate might be wrong: too few texts, then shifts."""
    if len(uncalibrated) < LEAST:
        yield f"{LEAST} texts or more are needed, got {len(uncalibrated)}"
        return
    if shift is not None and shift.shifted:
        yield f"the texts have shifted from the held-out rows (p = {shift.p:.2g})"
    confidences = (item.probabilities.max(axis=1) for item in (held.prediction, uncalibrated))
    for what, (known, new) in {
        "OOD scores": (held.anomaly, anomaly),
        "confidences": confidences,
    }.items():
        p = float(scipy.stats.ks_2samp(known, new).pvalue)
        if p < LEVEL:
            direction = "above" if np.median(new) > np.median(known) else "below"
            yield f"their {what} lie {direction} those of the held-out rows (p = {p:.2g})"
