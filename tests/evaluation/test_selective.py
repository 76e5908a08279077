"""Selective prediction: risks on numbers worked by hand, and the curve that is drawn."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from temper.display.charts import Lines
from temper.display.folders import read
from temper.evaluation.folder import write
from temper.evaluation.function import CallablePredictor
from temper.evaluation.perspectives.selective import in_words
from temper.evaluation.run import EvaluationData, evaluate
from temper.evaluation.settings import EvaluationSettings
from temper.report.figures import figures
from temper.report.table import comparison
from temper.testing.tiny import tiny_examples
from tests.evaluation.spoken import speaker, spoken, values

ONLY = EvaluationSettings(perspectives=("task", "shift", "adversarial", "selective"), bootstrap=200)
# From .95 down to .55 in 20 steps; the two least sure are wrong, and the third surest.
SURE = [[0.95 - 0.02 * index, 0.05 + 0.02 * index] for index in range(20)]
LABELS = [0, 0, 1, *[0] * 15, 1, 1]


def test_the_risk_is_that_of_the_surest_rows(tmp_path: Path) -> None:
    far = spoken("far", [[0.9, 0.1], [0.4, 0.6]], [1, 1])
    result = evaluate(speaker(), EvaluationData(spoken("dev", SURE, LABELS), {"far": far}), ONLY)
    own = values(result, "selective")
    assert own["dev", "clean", "risk_80"] == pytest.approx(1 / 16)
    assert own["dev", "clean", "risk_90"] == pytest.approx(1 / 18)
    assert own["dev", "clean", "risk_95"] == pytest.approx(2 / 19)
    risks = [0, 0, *(1 / k for k in range(3, 19)), 2 / 19, 3 / 20]
    assert own["dev", "clean", "aurc"] == pytest.approx(sum(risks) / 20)
    best = [*[0] * 17, 1 / 18, 2 / 19, 3 / 20]
    assert own["dev", "clean", "excess_aurc"] == pytest.approx(sum(risks) / 20 - sum(best) / 20)
    # The surest is wrong, the other right: (1 + 1/2) / 2.
    assert own["far", "clean", "aurc"] == pytest.approx(0.75)
    # Of far 1 in 1.6 rows, and 1 in 1.9.
    message = in_words(comparison(write(result, tmp_path / "evaluation")))
    assert re.findall(r"[\d.]+%", message) == ["95%", "6.2%", "10.5%", "62.5%", "52.6%"]


def test_the_confidence_is_that_of_the_predicted_class() -> None:
    # Of three classes merged into two "by argmax", the prediction need not be the likelier one.
    names = ("entailment", "neutral", "contradiction")
    dev = spoken("dev", [[0.8, 0.1, 0.1]] * 20, [0] * 20, label_names=names)
    rows = [[0.4, 0.3, 0.3]] * 5 + [[0.45, 0.5, 0.05]] * 5
    two = ("entailment", "not_entailment")
    far = spoken("far", rows, [1] * 5 + [1] * 5, label_names=two)
    predictor = speaker()
    predictor.label_names = names
    settings = ONLY.model_copy(update={"merge": "argmax"})
    result = evaluate(predictor, EvaluationData(dev, {"far": far}), settings)
    # Wrong predictions have 0.4, right ones 0.55: in their order the first five rows are right.
    own = values(result, "selective", set="far")
    assert own["far", "clean", "excess_aurc"] == pytest.approx(0.0, abs=1e-12)


def test_selective_scores_of_a_regression_are_undefined() -> None:
    predictor = CallablePredictor(lambda texts: [0.5] * len(texts), gives="values")
    settings = ONLY.model_copy(update={"perspectives": ("task", "selective")})
    data = EvaluationData(tiny_examples(kind="regression"), metric="pearson")
    result = evaluate(predictor, data, settings)
    (entry,) = [entry for entry in result.scores if entry["perspective"] == "selective"]
    assert entry["reason"] == "a regression has no confidence"


def test_the_curve_runs_from_the_surest_rows_to_the_error_on_all(tmp_path: Path) -> None:
    result = evaluate(speaker(), EvaluationData(spoken("dev", SURE, LABELS)), ONLY)
    folder = write(result, tmp_path / "evaluation")
    drawn = {figure.title: figure for figure in figures(read(folder), comparison(folder))}
    chart = drawn["Risk over coverage, dev"].chart
    assert isinstance(chart, Lines)
    points = [(point.x, point.y) for point in chart.curves[0].points]
    assert points[:3] == [(0.05, 0.0), (0.1, 0.0), (0.15, pytest.approx(100 / 3))]
    assert points[-1] == (1.0, pytest.approx(15.0))
