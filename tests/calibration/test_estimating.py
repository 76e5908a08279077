"""Estimated scores of texts without labels: true if the texts are like the held-out rows."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from temper.calibration.calibration import Calibration, Detector, HeldOut, SetRule
from temper.calibration.classifier import Classifier
from temper.calibration.predictions import UnlabeledScores
from temper.evaluation.function import CallablePredictor
from temper.evaluation.prediction import Prediction


def drawn(count: int, seed: int, mean: float = 0.0) -> list[str]:
    return [str(value) for value in np.random.default_rng(seed).normal(mean, 1.5, count)]


def logits(texts: list[str]) -> Any:
    values = np.asarray([float(text) for text in texts])
    return np.stack([-values, values], axis=1)


def right(own: Prediction, seed: int) -> Any:
    """Draw labels, of which yes is as likely as the model says at temperature 2."""
    draws = np.random.default_rng([seed, 1])
    assert own.logits is not None
    yes = 1 / (1 + np.exp(-(own.logits[:, 1] - own.logits[:, 0]) / 2))
    return (draws.random(len(own)) < yes).astype(np.float64)


def classifier(seed: int, rows: int = 300) -> Classifier:
    own = Prediction.of_logits(logits(drawn(rows, seed)))
    detector = Detector("energy")
    anomaly = detector.score(own, own, np.zeros((rows, 1, 0)))
    held_out = HeldOut(own, right(own, seed), anomaly)
    known = Calibration(None, 1.0, held_out, SetRule("all", (0.9,)), detector)
    predictor = CallablePredictor(logits, gives="logits", label_names=("no", "yes"))
    return Classifier(predictor, calibration=known)


def test_the_interval_contains_the_accuracy_and_few_batches_raise_an_error() -> None:
    hits = given = 0
    for seed in range(150):
        predictions = classifier(2 * seed)(drawn(120, 2 * seed + 1))
        assert predictions.scores is not None
        assert predictions.uncalibrated is not None
        if (estimate := predictions.scores.accuracy) is None:
            continue
        given += 1
        truth = (
            predictions.uncalibrated.prediction == right(predictions.uncalibrated, 2 * seed + 1)
        ).mean()
        hits += estimate.low <= truth <= estimate.high
    assert given > 140
    assert 0.83 < hits / given < 0.97


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (drawn(19, 1), "20 texts"),
        (drawn(100, 1, mean=5.0), "have shifted"),
        # Both classes as often as before, but the model is surer of each.
        ([*drawn(50, 1, mean=6.0), *drawn(50, 2, mean=-6.0)], "shifted|lie"),
        # Less sure: the median moves, and the states too little for the shift test.
        ([str(float(text) / 2) for text in drawn(60, 1)], "shifted|lie above"),
    ],
    ids=["few", "one class", "sure", "unsure"],
)
def test_shifted_texts_get_a_reason_instead_of_an_estimate(texts: list[str], words: str) -> None:
    scores = classifier(0)(texts).scores
    assert scores is not None
    assert scores.accuracy is scores.macro_f1 is None
    assert re.search(words, scores.reason or "")
    assert "cannot be estimated" in str(scores)


def test_the_summary_has_the_estimate_and_a_bare_model_none() -> None:
    predictions = classifier(0)(drawn(100, 1))
    kept = predictions.summary()["estimate"]
    assert kept["rows"] == 100
    assert set(kept["accuracy"]) == {"value", "low", "high"}
    assert kept["reason"] is None
    assert any("Estimated without labels" in notice for notice in predictions.notices)
    bare = Classifier(classifier(0).predictor)(drawn(100, 1))
    assert bare.scores is bare.summary()["estimate"] is None


def test_held_out_rows_that_are_all_wrong_give_a_reason_and_no_estimate() -> None:
    model = classifier(0)
    assert model.calibration is not None
    held_out = model.calibration.held_out
    assert held_out is not None
    held_out.labels[:] = 1 - held_out.prediction.prediction
    scores = model(drawn(100, 1)).scores
    assert isinstance(scores, UnlabeledScores)
    assert "how often" in (scores.reason or "")
