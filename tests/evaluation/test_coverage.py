"""Coverage and size of prediction sets: on numbers worked by hand, and on exchangeable rows."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from temper.calibration.calibration import Calibration, Detector, HeldOut, SetRule
from temper.data.examples import Examples
from temper.display.charts import Figure
from temper.display.folders import read
from temper.evaluation.folder import write
from temper.evaluation.function import CallablePredictor
from temper.evaluation.perspectives.calibration import fold_numbers
from temper.evaluation.perspectives.coverage import MOST, NOWHERE, in_words
from temper.evaluation.prediction import Prediction
from temper.evaluation.run import EvaluationData, evaluate
from temper.evaluation.settings import EvaluationSettings
from temper.functional.conformal import chance_coverage
from temper.report.figures import figures
from temper.report.page import build
from temper.report.table import comparison
from temper.testing.tiny import tiny_classifier, tiny_data, tiny_examples
from tests.evaluation.spoken import calibrated, speaker, spoken, values

ONLY = EvaluationSettings(perspectives=("task", "shift", "adversarial", "coverage"), bootstrap=20)
SURE = [[0.6, 0.3, 0.1]] * 40


def drawn(folder: Path) -> dict[str, Figure]:
    return {figure.title: figure for figure in figures(read(folder), comparison(folder))}


def test_prediction_sets_contain_classes_above_the_threshold_of_dev() -> None:
    # Every label of dev has .6, so that the set of LAC is what has .6 or more, in either fold.
    far = spoken("far", [[0.7, 0.2, 0.1]] * 3 + [[0.5, 0.4, 0.1]], [0, 0, 1, 0])
    result = evaluate(speaker(), EvaluationData(spoken("dev", SURE, [0] * 40), {"far": far}), ONLY)
    own = values(result, "coverage", condition="lac", parameters={})
    assert own["dev", "lac", "coverage"] == own["dev", "lac", "set_size"] == 1.0
    # Three sets {0}, of which two hold the label, and an empty one.
    assert own["far", "lac", "coverage"] == 0.5
    assert own["far", "lac", "set_size"] == 0.75


def test_thresholds_of_prediction_sets_are_cross_fitted() -> None:
    dev, far = calibrated("dev", 61, seed=0), calibrated("far", 50, seed=1)
    result = evaluate(speaker(), EvaluationData(dev, {"far": far}), ONLY)
    own = values(result, "coverage", parameters={})

    def strange(examples: Examples) -> np.ndarray:
        sure = speaker().predict(examples).probabilities
        return 1 - sure[np.arange(len(examples)), examples.labels]

    folds = {each.name: fold_numbers(each.rows, seed=0) for each in (dev, far)}
    for each in (dev, far):
        covered = 0
        for fold in (0, 1):
            others = np.sort(strange(dev)[folds["dev"] != fold])
            threshold = others[math.ceil(0.9 * (len(others) + 1)) - 1]
            covered += int((strange(each)[folds[each.name] == fold] <= threshold).sum())
        assert own[each.name, "lac", "coverage"] == covered / len(each)


def test_exchangeable_rows_have_the_requested_coverage() -> None:
    data = EvaluationData(
        calibrated("dev", 1000, seed=0), {"near": calibrated("near", 1000, seed=1)}
    )
    result = values(evaluate(speaker(), data, ONLY), "coverage", parameters={})
    low, high = chance_coverage(450, 1000, coverage=0.9, confidence=0.999)
    assert low <= result["dev", "lac", "coverage"] <= high
    assert low <= result["near", "lac", "coverage"] <= high
    assert 1 < result["near", "lac", "set_size"] < 4


def test_predict_and_evaluate_have_sets_of_the_same_size() -> None:
    # A binary model that is right as often as it says, 87 times in 100.
    draws = np.random.default_rng(0)
    sure = 1 - 0.13 * draws.uniform(0.5, 1.5, size=3000)
    labels = (draws.random(3000) > sure).astype(int)
    both = np.column_stack([sure, 1 - sure])
    dev = spoken("dev", both[:2000].tolist(), labels[:2000].tolist())
    near = spoken("near", both[2000:].tolist(), labels[2000:].tolist())
    result = evaluate(speaker(), EvaluationData(dev, {"near": near}), ONLY)
    measured = values(result, "coverage", condition="lac", parameters={})
    held_out = Prediction.of_logits(np.log(both[:1000]))
    made = Calibration(
        None,
        1.0,
        HeldOut(held_out, labels[:1000].astype(float), np.zeros(1000)),
        SetRule("all", (0.9,)),
        Detector("energy"),
    )
    sets = made.in_sets(Prediction.of_logits(np.log(both[2000:])), coverage=0.9)
    sizes = sets.sum(axis=1)
    # Thresholds of 1,000 rows each, whose coverage varies by 0.01.
    assert sizes.mean() == pytest.approx(measured["near", "lac", "set_size"], abs=0.12)
    assert sizes.min() == 1 < sizes.max()
    assert sizes.mean() < 1.5


def test_coverage_of_classes_groups_and_the_worst_large_one_is_scored() -> None:
    rows = [[0.6, 0.4]] * 30 + [[0.9, 0.1]] * 12 + [[0.2, 0.8]] * 12 + [[0.1, 0.9]] * 2
    labels = [0] * 30 + [1] * 12 + [1] * 12 + [1] * 2
    groups: list[str | None] = ["a"] * 30 + ["b"] * 12 + [None] * 12 + ["few"] * 2
    # Labels have .6 or more, as those of dev have, but for the second lot's .1.
    data = EvaluationData(
        spoken("dev", SURE, [0] * 40),
        {"far": spoken("far", [[*row, 0.0] for row in rows], labels, group=groups)},
    )
    result = evaluate(speaker(), data, ONLY)

    def part(**parameters: object) -> tuple[float, int]:
        (entry,) = [
            entry
            for entry in result.scores
            if (entry["perspective"], entry["set"]) == ("coverage", "far")
            and entry["parameters"] == parameters
            and entry["name"] == "coverage"
            and (parameters or entry["condition"] == "lac")
        ]
        return entry["value"], entry["n"]

    assert part() == (44 / 56, 56)
    assert (part(**{"class": 0}), part(**{"class": 1})) == ((1.0, 30), (14 / 26, 26))
    assert (part(group="a"), part(group="b"), part(group="few")) == ((1, 30), (0, 12), (1, 2))
    own = values(result, "coverage", set="far", condition="lac")
    assert own["far", "lac", "worst_class_coverage"] == 14 / 26
    assert own["far", "lac", "worst_group_coverage"] == 0.0


def test_only_the_worst_of_many_classes_is_scored() -> None:
    rows = 15 * (MOST + 1)
    dev = tiny_examples(rows=rows, classes=MOST + 1)
    result = evaluate(tiny_classifier(classes=MOST + 1), EvaluationData(dev), ONLY)
    entries = [entry for entry in result.scores if entry["perspective"] == "coverage"]
    assert not any("class" in entry["parameters"] for entry in entries)
    (worst,) = [entry for entry in entries if entry["name"] == "worst_class_coverage"]
    assert worst["value"] < 0.9


def test_coverage_of_attacked_rows_is_scored_if_they_are_measured() -> None:
    settings = EvaluationSettings(
        perspectives=(*ONLY.perspectives, "embedding_attack"),
        embedding_attack={"fgm": False, "pgd": {"steps": 2}, "radii": [5.0], "norms": ["l2"]},
        bootstrap=20,
    )
    result = evaluate(tiny_classifier(), tiny_data(), settings)
    attacked = [
        entry
        for entry in result.scores
        if entry["perspective"] == "coverage" and entry["condition"] == "pgd"
    ]
    assert {entry["name"] for entry in attacked} == {"coverage", "set_size"}
    assert {entry["parameters"]["radius"] for entry in attacked} == {5.0}
    clean = values(result, "coverage", parameters={})["dev", "lac", "coverage"]
    (value,) = [entry["value"] for entry in attacked if entry["name"] == "coverage"]
    assert value < clean


def test_the_page_names_sets_with_significantly_low_coverage(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).permutation(400)
    near, far = calibrated("near", 400, seed=1), calibrated("far", 400, seed=2)
    # Labels of the far set that do not belong to its texts.
    labels = [(far.labels or [])[row] for row in rows]
    message = speaker().predict(far).probabilities.tolist()
    data = EvaluationData(
        calibrated("dev", 600, seed=0), {"near": near, "far": spoken("far", message, labels)}
    )
    result = evaluate(speaker(), data, ONLY)
    folder = write(result, tmp_path / "whole")
    scores = values(result, "coverage", parameters={})
    fraction = f"{100 * scores['far', 'lac', 'coverage']:.1f}%"
    message = in_words(comparison(folder))
    assert f"{100 * scores['dev', 'lac', 'coverage']:.1f}% of dev" in message
    assert f"{scores['dev', 'lac', 'set_size']:.2f} classes per set" in message
    assert f"least often on far ({fraction})" in message
    assert message.endswith(f"Coverage breaks on far ({fraction}).")
    assert f"Coverage breaks on far ({fraction})." in build(folder).read_text(encoding="utf-8")
    calm = evaluate(speaker(), EvaluationData(data.dev, {"near": near}), ONLY)
    message = in_words(comparison(write(calm, tmp_path / "calm")))
    assert message.endswith(NOWHERE)


def test_undefined_coverage_has_a_reason() -> None:
    few = evaluate(speaker(), EvaluationData(spoken("dev", SURE[:12], [0] * 12)), ONLY)
    reasons = {e["reason"] for e in few.scores if e["perspective"] == "coverage"}
    (message,) = reasons
    assert message.startswith("A coverage of 0.9 needs at least 9 held-out rows")
    values_only = CallablePredictor(lambda texts: [0.5] * len(texts), gives="values")
    dev = tiny_examples(kind="regression")
    settings = ONLY.model_copy(update={"perspectives": ("task", "coverage")})
    result = evaluate(values_only, EvaluationData(dev, metric="pearson"), settings)
    reasons = {e["reason"] for e in result.scores if e["perspective"] == "coverage"}
    (reason,) = reasons
    assert "a regression has no classes" in reason


def test_a_set_of_merged_classes_has_no_sets() -> None:
    names = ("entailment", "neutral", "contradiction")
    dev = calibrated("dev", 60, seed=0, classes=3, label_names=names)
    two = spoken(
        "two", [[0.5, 0.25, 0.25]] * 5, [0] * 5, label_names=("entailment", "not_entailment")
    )
    predictor = speaker()
    predictor.label_names = names
    result = evaluate(predictor, EvaluationData(dev, {"two": two}), ONLY)
    reasons = {
        e["reason"] for e in result.scores if (e["perspective"], e["set"]) == ("coverage", "two")
    }
    (reason,) = reasons
    assert "classes differ from those" in reason
