"""OOD alarms: their rate on ordinary rows, and detected anomalies."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from temper.display.charts import Bars
from temper.display.folders import read
from temper.evaluation.folder import write
from temper.evaluation.function import CallablePredictor
from temper.evaluation.perspectives.alarms import in_words
from temper.evaluation.run import EvaluationData, evaluate
from temper.evaluation.settings import EvaluationSettings
from temper.functional.conformal import chance_coverage
from temper.report.figures import figures
from temper.report.table import comparison
from temper.testing.tiny import tiny_classifier, tiny_data, tiny_examples
from tests.evaluation.spoken import calibrated, speaker, spoken, values

ONLY = EvaluationSettings(perspectives=("task", "anomaly", "alarms"), bootstrap=20)


def test_anomalies_of_lower_confidence_than_all_ordinary_rows_are_detected(tmp_path: Path) -> None:
    dev = spoken("dev", [[0.9, 0.1]] * 60, [0] * 60)
    odd = spoken("odd", [[0.6, 0.4]] * 3 + [[0.95, 0.05], [0.9, 0.1]], None)
    result = evaluate(speaker(), EvaluationData(dev, anomaly={"odd": odd}), ONLY)
    assert values(result, "alarms") == {
        # A row as sure as the threshold raises no alarm.
        ("dev", "clean", "false_alarms"): 0.0,
        ("odd", "clean", "detections"): 0.6,
    }
    message = in_words(comparison(write(result, tmp_path / "evaluation")))
    assert re.search(r"max softmax: 60\.0% of odd, .* 0\.0% .* dev", message)


def test_in_distribution_rows_have_the_declared_false_alarm_rate() -> None:
    dev, odd = calibrated("dev", 2000, seed=0), calibrated("odd", 2000, seed=1)
    result = values(evaluate(speaker(), EvaluationData(dev, anomaly={"odd": odd}), ONLY), "alarms")
    low, high = chance_coverage(950, 2000, coverage=0.95, confidence=0.999)
    assert 1 - high <= result["dev", "clean", "false_alarms"] <= 1 - low
    # "Anomalies" of the same kind raise as many.
    assert 1 - high <= result["odd", "clean", "detections"] <= 1 - low


def test_every_detector_has_alarm_scores_and_a_bar(tmp_path: Path) -> None:
    evaluation = evaluate(tiny_classifier(), tiny_data(), ONLY)
    result = values(evaluation, "alarms")
    detectors = {"clean", "max_logit", "energy", "mahalanobis"}
    assert {key[:2] for key in result} == {(s, d) for s in ("dev", "odd") for d in detectors}
    folder = write(evaluation, tmp_path / "evaluation")
    message = in_words(comparison(folder))
    assert re.fullmatch(r"Most .* of odd, at .*; fewest .* false alarms on dev\.", message)
    (figure,) = [f for f in figures(read(folder), comparison(folder)) if f.title == "Alarms"]
    assert isinstance(figure.chart, Bars)
    assert len(figure.chart.marks) == 8


def test_without_anomaly_sets_there_are_no_alarm_scores() -> None:
    dev = spoken("dev", [[0.9, 0.1]] * 60, [0] * 60)
    assert values(evaluate(speaker(), EvaluationData(dev), ONLY), "alarms") == {}


@pytest.mark.parametrize(
    ("gives", "rows", "said"),
    [
        ("probabilities", 20, "A coverage of 0.95 needs at least 19 held-out rows"),
        ("values", 60, "a regression has no probabilities"),
    ],
)
def test_undefined_alarm_scores_have_a_reason(gives: str, rows: int, said: str) -> None:
    regression = gives == "values"
    predictor = speaker()
    if regression:
        predictor = CallablePredictor(lambda texts: [0.5] * len(texts), gives="values")
    dev = spoken("dev", [[0.9, 0.1]] * rows, [0] * rows)
    if regression:
        dev = tiny_examples(rows=rows, kind="regression")
    data = EvaluationData(
        dev,
        anomaly={"odd": spoken("odd", [[0.6, 0.4]], None)},
        metric="pearson" if regression else "accuracy",
    )
    result = [e for e in evaluate(predictor, data, ONLY).scores if e["perspective"] == "alarms"]
    assert result
    assert all(str(entry["reason"]).startswith(said) for entry in result)
