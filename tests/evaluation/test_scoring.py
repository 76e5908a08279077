"""From rows to scores."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import ArrayLike

from temper.evaluation.rows import Block, Condition
from temper.evaluation.scoring import Scoring
from temper.functional import scores
from temper.functional.resampling import FloatArray, weighted_mean


def test_a_metric_is_a_function_and_its_row_of_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    def too_high(
        labels: ArrayLike, predictions: ArrayLike, *, counts: ArrayLike | None = None
    ) -> FloatArray:
        return weighted_mean(np.asarray(predictions) > np.asarray(labels), counts)

    facts = scores.ScoreFacts(
        "too_high", "Too high", False, 0.0, "never", measure=too_high, kinds=("classification",)
    )
    monkeypatch.setitem(scores.SCORES, "too_high", facts)
    label = np.array([0.0, 1.0, 0.0, 1.0])
    block = Block(
        condition=Condition("task", "dev"),
        row=["a", "b", "c", "d"],
        index=np.arange(4),
        label=label,
        prediction=np.ones(4),
        probabilities=np.full((4, 2), 0.5),
        loss=np.full(4, np.log(2)),
    )
    scoring = Scoring([block], "accuracy", resamples=100)
    entries = {entry["name"]: entry for entry in scoring.entries(block, scoring.metrics(block))}
    assert list(entries) == ["accuracy", "macro_f1", "too_high"]
    assert entries["too_high"]["value"] == 0.5
    assert entries["too_high"]["low"] < 0.5 < entries["too_high"]["high"]
    # A metric that is not usual is scored if it is the task's.
    assert Scoring([block], "mcc").metrics(block)[0] == "mcc"
