"""Held-out rows with repeated texts: thresholds hold with and without repeated new texts."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from temper.calibration.calibrate import _Fit
from temper.calibration.calibration import Calibration, Detector, HeldOut, SetRule
from temper.calibration.settings import CalibrationSettings
from temper.evaluation.prediction import Prediction
from temper.functional.resampling import FloatArray

FREQUENT, MASS = 3, 0.1
"""Texts that are a tenth of the population each."""


@dataclass
class Rows:
    """Rows of which only the hashes of their texts are looked at."""

    rows: list[str]

    def __len__(self) -> int:
        return len(self.rows)


def parts_of(texts: list[str]) -> tuple[Any, Any, Any]:
    """Return the rows to fit on, those that set thresholds, and which of these repeat a text."""
    request: Any = SimpleNamespace(
        data=SimpleNamespace(seed=0), sets=SimpleNamespace(anomaly={}), model="m"
    )
    predictor: Any = SimpleNamespace(gives="logits")
    rows: Any = Rows(texts)
    fit = _Fit(request, CalibrationSettings(coverage=(0.9,)), predictor, rows, [], Any)
    first, second = fit._parts()
    return first, second, fit._repeats(second)


def calibration_of(sure: FloatArray, labels: FloatArray, repeats: Any) -> Calibration:
    logits = np.log(np.column_stack([1 - sure, sure]))
    held_out = HeldOut(Prediction.of_logits(logits), labels, -sure, repeats=repeats)
    temperature, rule = 1.0, SetRule("all", (0.9,))
    return Calibration(None, temperature, held_out, rule, Detector("max_softmax"), 0.1)


def test_every_row_is_in_one_part_and_equal_texts_may_be_in_both() -> None:
    texts = ["often"] * 40 + [f"once {index}" for index in range(160)]
    first, second, repeats = parts_of(texts)
    assert sorted([*first, *second]) == list(range(200))
    assert len(first) == len(second) == 100
    often = [row for row in second if texts[row] == "often"]
    # 20 are expected; 8 or fewer, or 32 or more, come with probability 0.0001.
    assert 8 < len(often) < 32
    assert repeats.sum() == len(often) - 1


def test_rows_without_repeats_are_drawn_by_their_texts_alone() -> None:
    texts = [f"once {index}" for index in range(200)]
    first, _, repeats = parts_of(texts)
    turned, _, _ = parts_of(texts[::-1])
    assert {texts[row] for row in first} == {texts[::-1][row] for row in turned}
    assert not repeats.any()


def test_the_more_conservative_threshold_is_used() -> None:
    # Nine distinct texts score 0.1 to 0.9. Coverage 0.8 asks for rank 8 of 9: 0.8.
    sure = np.linspace(0.9, 0.1, 9)
    labels = np.ones(9)
    assert calibration_of(sure, labels, None).threshold(0.8) == pytest.approx(0.8)
    for repeated, wanted in ((0.9, 0.8), (0.1, 0.9)):
        # Thrice more one text: of an easy one the distinct texts' threshold is higher, of a hard
        # one that of all 12 rows, whose rank is 11.
        more = np.append(sure, np.full(3, repeated))
        repeats = np.arange(12) >= 9
        made = calibration_of(more, np.ones(12), repeats)
        assert made.threshold(0.8) == pytest.approx(wanted)


def test_alarms_and_risks_are_those_of_the_more_careful_rows() -> None:
    draws = np.random.default_rng(0)
    sure = draws.uniform(0.5, 1.0, size=200)
    labels = (draws.random(200) < sure).astype(float)
    repeats = np.zeros(200, dtype=bool)
    repeats[100:] = True
    sure[100:], labels[100:] = 0.99, 1.0
    levels = np.linspace(0.95, 0.5, 10)

    def made(rows: slice, marked: Any) -> Calibration:
        result = calibration_of(sure[rows], labels[rows], marked)
        return Calibration(**{**vars(result), "confidences": levels})

    both, once = made(slice(None), repeats), made(slice(100), None)
    every = made(slice(None), None)
    assert both.alarm == max(once.alarm, every.alarm) == once.alarm
    assert (both.shown_risks == np.maximum(once.shown_risks, every.shown_risks)).all()
    assert (both.shown_risks > every.shown_risks).any()


def test_sets_cover_the_labels_of_repeated_and_of_new_texts() -> None:
    """By simulation: the coverage of a calibration is below 85% about as rarely as without."""
    draws, low = np.random.default_rng(0), {"repeating": 0, "new": 0}
    studies = 150

    def scores_of(rows: int) -> FloatArray:
        wrong = draws.random(rows) < 0.13
        return np.where(wrong, draws.uniform(0.5, 1, rows), draws.beta(1, 6, rows))

    for study in range(studies):
        frequent = scores_of(FREQUENT)

        def population(rows: int, frequent: FloatArray = frequent) -> tuple[Any, FloatArray]:
            which = np.floor(draws.random(rows) / MASS).astype(int)
            often = which < FREQUENT
            scores = np.where(often, frequent[np.minimum(which, FREQUENT - 1)], scores_of(rows))
            return np.where(often, which, -1), scores

        which, scores = population(400)
        texts = [
            f"often {study} {text}" if text >= 0 else f"once {study} {index}"
            for index, text in enumerate(which.tolist())
        ]
        _, second, repeats = parts_of(texts)
        made = calibration_of(1 - scores[second], np.ones(len(second)), repeats)
        threshold = float(made.threshold(0.9))
        low["repeating"] += (population(2000)[1] <= threshold).mean() < 0.85
        low["new"] += (scores_of(2000) <= threshold).mean() < 0.85
    # Without repeats it is 0.02: more than 9 of 150 come with probability 0.001. With equal texts
    # kept together it was 0.2 for both.
    assert max(low.values()) <= 9, low
