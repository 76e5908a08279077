"""The scores of docs/emotions.md are scikit-learn's, after temperatures and thresholds."""

from __future__ import annotations

import numpy as np
from scipy.special import expit
from sklearn.metrics import f1_score

from reproduction.emotions import scores


def test_thresholds_come_from_the_held_out_rows_only() -> None:
    draws = np.random.default_rng(0)
    logits = draws.normal(size=(400, 3)) - 1
    labels = (draws.random((400, 3)) < expit(3 * logits)).astype(float)
    held_out, test = (labels[:200], logits[:200]), (labels[200:], logits[200:])
    result = scores(held_out, test, ("a", "b", "c"))
    at_half = f1_score(test[0], test[1] > 0, average="macro")
    best = [
        max(f1_score(truth, column > cut) for cut in column)
        for truth, column in zip(test[0].T, test[1].T, strict=True)
    ]
    assert at_half < result["macro_f1"] <= np.mean(best)
    # The logits are a third of the true ones, which the temperatures undo.
    assert result["brier"] < ((expit(test[1]) - test[0]) ** 2).mean()
    assert 0 < result["ece"] < 0.15
