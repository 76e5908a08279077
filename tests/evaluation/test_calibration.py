"""The calibration perspective: rows for fitting and for applying a temperature."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from temper.data.examples import Examples
from temper.errors import DataError
from temper.evaluation.classifier import ClassifierPredictor
from temper.evaluation.function import CallablePredictor
from temper.evaluation.perspectives.calibration import NAMES, fold_numbers, statistic_of
from temper.evaluation.rows import Block, Condition, to_blocks
from temper.evaluation.run import Evaluation, EvaluationData, evaluate
from temper.evaluation.settings import EvaluationSettings
from temper.functional.calibration import (
    expected_calibration_error,
    fit_temperature,
    log_probabilities,
)

ONLY = EvaluationSettings(perspectives=("task", "calibration"), bootstrap=20)


def made(rows: int, *, start: int = 0, classes: int = 2, **more: Any) -> tuple[Examples, Any]:
    """Return rows named by numbers, and logits that are right more often than not."""
    draws = np.random.default_rng(start)
    labels = draws.integers(0, classes, rows)
    logits = 4 * (draws.normal(size=(rows, classes)) + np.eye(classes)[labels])
    texts = [str(start + number) for number in range(rows)]
    examples = Examples("set", texts, labels=labels.tolist(), kind="classification", **more)
    return examples, dict(zip(texts, logits.tolist(), strict=True))


def lookup_predictor(*known: dict[str, list[float]], gives: Any = "logits", **more: Any) -> Any:
    """Return a predictor that looks its outputs up."""
    merged = {text: output for part in known for text, output in part.items()}
    return CallablePredictor(lambda texts: [merged[text] for text in texts], gives=gives, **more)


def block(result: Evaluation, *condition: str) -> Block:
    (wanted,) = [b for b in to_blocks(result.rows) if b.condition == Condition(*condition)]
    return wanted


def entries(result: Evaluation, **where: Any) -> dict[str, Any]:
    return {
        entry["name"]: entry
        for entry in result.scores
        if entry["perspective"] == "calibration"
        and all(entry[key] == value for key, value in where.items())
    }


def test_held_out_rows_determine_one_temperature_for_all_sets() -> None:
    (dev, dev_logits), (far, far_logits), (apart, apart_logits) = (
        made(40, start=start) for start in (0, 100, 200)
    )
    predictor = lookup_predictor(dev_logits, far_logits, apart_logits)
    data = EvaluationData(dev, shift={"far": far}, held_out=apart)
    result = evaluate(predictor, data, ONLY)
    wanted = fit_temperature(apart.labels, list(apart_logits.values())).value
    for name, logits in (("dev", dev_logits), ("far", far_logits)):
        clean = block(result, "task" if name == "dev" else "shift", name)
        scaled = block(result, "calibration", name, "temperature")
        z = np.asarray(list(logits.values())) / wanted
        fractions = np.exp(z) / np.exp(z).sum(1, keepdims=True)
        assert scaled.probabilities == pytest.approx(fractions)
        assert (scaled.prediction == clean.prediction).all()
        own = -np.log(fractions[np.arange(40), scaled.label.astype(int)])
        assert scaled.loss == pytest.approx(own)
        scores = entries(result, set=name, condition="temperature")
        assert tuple(scores) == NAMES
        assert scores["nll"]["value"] == pytest.approx(own.mean())
        assert scores["ece_10"]["value"] == pytest.approx(
            float(expected_calibration_error(scaled.correct, fractions.max(1), bins=10))
        )
    assert any(f"{wanted:.4g} (40 labels" in notice for notice in result.notices)
    # Whoever has the rows can fit the temperature again.
    kept = block(result, "calibration", "held_out")
    again = fit_temperature(kept.label, log_probabilities(kept.probabilities)).value
    assert again == pytest.approx(wanted, rel=1e-9)


def test_without_held_out_rows_the_temperature_is_cross_fitted() -> None:
    dev, logits = made(60)
    folds = fold_numbers(dev.rows, seed=0)
    assert 15 < folds.sum() < 45
    before = block(evaluate(lookup_predictor(logits), EvaluationData(dev), ONLY), *SCALED)
    values = np.asarray(list(logits.values()))
    for fold in (0, 1):
        wanted = fit_temperature(np.asarray(dev.labels)[folds != fold], values[folds != fold])
        z = values[folds == fold] / wanted.value
        fractions = np.exp(z) / np.exp(z).sum(1, keepdims=True)
        assert before.probabilities[folds == fold] == pytest.approx(fractions)
    # Other labels in one fold leave the scaled predictions of that fold as they were.
    labels = np.asarray(dev.labels)
    labels[(folds == 0) & (np.arange(60) % 3 == 0)] ^= 1
    other = Examples("set", dev.text, labels=labels.tolist(), kind="classification")
    after = block(evaluate(lookup_predictor(logits), EvaluationData(other), ONLY), *SCALED)
    assert after.probabilities[folds == 0] == pytest.approx(before.probabilities[folds == 0])
    changed = np.abs(after.probabilities - before.probabilities).max(1)
    assert (changed[folds == 1] > 1e-4).any()


SCALED = ("calibration", "dev", "temperature")


def test_a_text_gets_the_same_temperature_in_every_set_and_order() -> None:
    dev, logits = made(50)
    turned = dev.select(range(49, -1, -1))
    data = EvaluationData(dev, shift={"far": turned})
    result = evaluate(lookup_predictor(logits), data, ONLY)
    far = block(result, "calibration", "far", "temperature")
    assert far.probabilities[::-1] == pytest.approx(block(result, *SCALED).probabilities)
    assert fold_numbers(dev.rows, seed=1).tolist() != fold_numbers(dev.rows, seed=0).tolist()


def test_clean_scores_do_not_depend_on_the_temperature() -> None:
    (dev, logits), (apart, more) = made(40), made(40, start=300)
    predictor = lookup_predictor(logits, more)
    first = evaluate(predictor, EvaluationData(dev), ONLY)
    second = evaluate(predictor, EvaluationData(dev, held_out=apart), ONLY)
    clean = entries(first, condition="clean")
    assert clean == entries(second, condition="clean")
    task = block(first, "task", "dev")
    for name in NAMES:
        plain = float(statistic_of(name, task)(np.ones((1, 40)))[0])
        assert clean[name]["value"] == plain


def test_merged_classes_are_scaled_before_the_merge_and_keep_their_prediction() -> None:
    names = ("contradiction", "entailment", "neutral")
    dev, logits = made(60, classes=3, label_names=names)
    apart, more = made(60, start=300, classes=3, label_names=names)
    # Two thirds for entailment alone, half of the rest each; a high temperature turns the sum.
    two = Examples(
        "hans", ["a", "b"], labels=[0, 1], label_names=("entailment", "non-entailment"),
        kind="classification",
    )  # fmt: skip
    fractions = {"a": [0.24, 0.52, 0.24], "b": [0.6, 0.2, 0.2]}
    of_two = {text: np.log(fraction).tolist() for text, fraction in fractions.items()}
    predictor = lookup_predictor(logits, more, of_two, label_names=names)
    data = EvaluationData(dev, shift={"hans": two}, held_out=apart)
    result = evaluate(predictor, data, ONLY)
    scaled = block(result, "calibration", "hans", "temperature")
    value = fit_temperature(apart.labels, list(more.values())).value
    assert value > 1.2
    powers = np.asarray(list(fractions.values())) ** (1 / value)
    entailment = (powers / powers.sum(1, keepdims=True))[:, 1]
    assert scaled.probabilities[:, 0] == pytest.approx(entailment)
    assert entailment[0] < 0.5
    assert scaled.prediction.tolist() == [0.0, 1.0]


def test_a_probability_of_zero_stays_zero_and_its_loss_is_undefined() -> None:
    dev, logits = made(30)
    fractions = {text: (np.exp(z) / np.exp(z).sum()).tolist() for text, z in logits.items()}
    far = Examples("far", ["sure"], labels=[1], kind="classification")
    data = EvaluationData(dev, shift={"far": far})
    result = evaluate(
        lookup_predictor(fractions, {"sure": [1.0, 0.0]}, gives="probabilities"), data, ONLY
    )
    assert block(result, "calibration", "far", "temperature").probabilities.tolist() == [[1.0, 0.0]]
    scores = entries(result, set="far", condition="temperature")
    assert scores["nll"]["reason"] == "a label has probability 0"
    assert scores["brier"]["value"] == 2.0


def test_without_an_optimal_temperature_scores_are_undefined_with_a_reason() -> None:
    dev = Examples("set", ["a", "b", "c", "d"] * 3, labels=[0] * 12, kind="classification")
    result = evaluate(
        lookup_predictor({text: [2.0, 0.0] for text in "abcd"}), EvaluationData(dev), ONLY
    )
    assert any("every row is right, so a lower temperature always" in n for n in result.notices)
    scores = entries(result, condition="temperature")
    assert {entry["reason"] for entry in scores.values()} == {
        "no temperature was fitted, see the notices"
    }
    assert entries(result, condition="clean")["nll"]["value"] is not None


def test_a_nearly_undetermined_temperature_has_scores() -> None:
    # As many rows are right as wrong, and the right ones are surer by 1e-5: the standard error of
    # the logarithm of the temperature is above 10,000.
    rows = {f"{label} {number}": label for number in range(100) for label in (0, 1)}
    logits = {text: [1.00001 if label == 0 else 1.0, 0.0] for text, label in rows.items()}
    held_out = Examples("held_out", list(rows), labels=list(rows.values()), kind="classification")
    dev, others = made(50, start=1000)
    sets = EvaluationData(dev, held_out=held_out)
    result = evaluate(lookup_predictor(logits, others), sets, ONLY)
    scores = entries(result, set="dev", condition="temperature")
    assert 0.0 < scores["nll"]["value"] < 1.0


def test_held_out_rows_that_are_scored_are_excluded_from_the_fit() -> None:
    (dev, logits), (apart, more) = made(40), made(40, start=300)
    both = Examples(
        "mixed", dev.text[:10] + apart.text, labels=[0] * 10 + list(apart.labels or []),
        kind="classification",
    )  # fmt: skip
    predictor = lookup_predictor(logits, more)
    mixed = evaluate(predictor, EvaluationData(dev, held_out=both), ONLY)
    plain = evaluate(predictor, EvaluationData(dev, held_out=apart), ONLY)
    assert block(mixed, *SCALED).probabilities == pytest.approx(block(plain, *SCALED).probabilities)
    assert any("10 held-out rows are also scored" in notice for notice in mixed.notices)
    with pytest.raises(DataError, match="All 40 held-out rows of set 'set' are"):
        evaluate(predictor, EvaluationData(dev, held_out=dev), ONLY)


def test_held_out_rows_with_two_merged_classes_raise_an_error() -> None:
    names = ("contradiction", "entailment", "neutral")
    dev, logits = made(40, classes=3, label_names=names)
    two, more = made(20, start=300, classes=3)
    merged = Examples(
        "hans", two.text, labels=[n % 2 for n in range(20)],
        label_names=("entailment", "non-entailment"), kind="classification",
    )  # fmt: skip
    predictor = lookup_predictor(logits, more, label_names=names)
    with pytest.raises(DataError, match=r"'hans' has two labels .* pass rows with three labels"):
        evaluate(predictor, EvaluationData(dev, held_out=merged), ONLY)
    unnamed, plain = replace(dev, label_names=None), lookup_predictor(logits, more)
    with pytest.raises(DataError, match="'hans'.*entailment, non-entailment.*--label-names"):
        evaluate(plain, EvaluationData(unnamed, held_out=merged), ONLY)
    # Without names anywhere, only the predictions show how many classes there are.
    numbered = replace(merged, label_names=("0", "1"))
    with pytest.raises(DataError, match="labeled with the model's 3 classes"):
        evaluate(plain, EvaluationData(unnamed, held_out=numbered), ONLY)


def test_a_regression_is_never_scaled(model_of: Any, tokenizer: Any, examples_of: Any) -> None:
    predictor = ClassifierPredictor(model_of(classes=1), tokenizer, max_length=64)
    data = EvaluationData(examples_of(kind="regression"), metric="pearson")
    result = evaluate(predictor, data, ONLY)
    assert {entry["condition"] for entry in result.scores} == {"clean"}
    assert {b.condition.perspective for b in to_blocks(result.rows)} == {"task"}
