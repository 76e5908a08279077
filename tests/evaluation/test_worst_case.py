"""Worst case: predicted texts, stored rows, and scores worked out by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from temper.data.encode import EncodedExamples
from temper.data.examples import Examples
from temper.data.perturbations import PERTURBATIONS
from temper.errors import SettingError
from temper.evaluation.folder import Evaluation
from temper.evaluation.function import CallablePredictor
from temper.evaluation.rows import Block, to_blocks
from temper.evaluation.run import EvaluationData, EvaluationSettings, evaluate
from temper.settings import section

TEXTS = ["GOOD film, it is not bad.", "good", "It isn't a BAD one", "so so"]
DEV = Examples("dev", TEXTS, labels=[1, 1, 0, 0], label_names=("no", "yes"), kind="classification")


def settings(*perturbations: str, **more: Any) -> EvaluationSettings:
    chosen = {"worst_case": {"perturbations": perturbations}} if perturbations else {}
    return EvaluationSettings(perspectives=("worst_case",), bootstrap=20, **chosen, **more)


def judge(says: Callable[[str], bool], asked: list[str] | None = None) -> CallablePredictor:
    """Return a predictor that says yes to some texts, and writes down what it is asked."""

    def predict(texts: list[str]) -> list[list[float]]:
        if asked is not None:
            asked.extend(texts)
        return [[0.2, 0.8] if says(text) else [0.9, 0.1] for text in texts]

    return CallablePredictor(predict, gives="probabilities", label_names=("no", "yes"))


def value(result: Evaluation, name: str, condition: str) -> Any:
    (entry,) = [
        entry
        for entry in result.scores
        if (entry["perspective"], entry["name"], entry["condition"])
        == ("worst_case", name, condition)
    ]
    return entry["value"]


def worst_blocks(result: Evaluation) -> dict[str, Block]:
    return {
        block.condition.name: block
        for block in to_blocks(result.rows)
        if block.condition.perspective == "worst_case"
    }


def test_worst_case_accuracy_counts_rows_correct_under_all_perturbations() -> None:
    # Yes to what holds "GOOD" or is "good": right on rows 0, 1, 2 and 3.
    clean = judge(lambda text: "GOOD" in text or text == "good")
    result = evaluate(clean, EvaluationData(DEV), settings("lowercase", "punctuation"))
    # Small letters cost row 0; without marks nothing changes.
    assert value(result, "accuracy", "lowercase") == 0.75
    assert value(result, "accuracy", "punctuation") == 1.0
    assert value(result, "worst_case_accuracy", "all") == 0.75
    assert value(result, "worst_case_drop", "all") == 0.25
    # Yes to what holds a comma: the clean rows 1 and 2 are wrong and right, 0 right, 3 right.
    commas = judge(lambda text: "," in text)
    result = evaluate(commas, EvaluationData(DEV), settings("lowercase", "punctuation"))
    assert value(result, "accuracy", "lowercase") == 0.75
    assert value(result, "accuracy", "punctuation") == 0.5
    assert value(result, "worst_case_accuracy", "all") == 0.5
    assert value(result, "worst_case_drop", "all") == 0.25


def test_a_row_that_is_wrong_without_perturbation_is_wrong_in_the_worst_case() -> None:
    # Right on row 0 in small letters alone.
    small = judge(lambda text: text.startswith("good"))
    result = evaluate(small, EvaluationData(DEV), settings("lowercase"))
    assert value(result, "accuracy", "lowercase") == 1.0
    assert value(result, "worst_case_accuracy", "all") == 0.75
    assert value(result, "worst_case_drop", "all") == 0.0


def test_only_changed_texts_are_predicted_again_and_stored() -> None:
    asked: list[str] = []
    result = evaluate(
        judge(bool, asked), EvaluationData(DEV), settings("lowercase", "contractions")
    )
    lower = [TEXTS[0].lower(), TEXTS[2].lower()]
    contracted = ["GOOD film, it isn't bad."]
    assert asked == [*TEXTS, *lower, *contracted]
    rows = result.texts.to_pylist()
    changed_texts = [
        (row["condition"], row["index"], row["text"])
        for row in rows
        if row["perspective"] == "worst_case"
    ]
    assert changed_texts == [
        ("lowercase", 0, lower[0]),
        ("lowercase", 2, lower[1]),
        ("contractions", 0, contracted[0]),
    ]
    unchanged = {row["index"]: row for row in rows if row["perspective"] is None}
    for index in (0, 2):
        assert unchanged[index]["text"] == TEXTS[index]
        assert unchanged[index]["row"] == DEV.rows[index]
    (changed,) = [notice for notice in result.notices if "lowercase" in notice]
    assert "lowercase 50.0%" in changed
    assert "contractions 25.0%" in changed


def test_a_perturbation_that_changes_no_text_is_skipped_and_reported() -> None:
    asked: list[str] = []
    dev = Examples("dev", ["so", "and so"], labels=[0, 1], kind="classification")
    result = evaluate(judge(bool, asked), EvaluationData(dev), settings("expansions"))
    assert asked == dev.text
    assert not worst_blocks(result)
    assert [notice for notice in result.notices if "expansions" in notice]
    assert not result.texts["perspective"].drop_null().to_pylist()


class Uncased(CallablePredictor):
    """A predictor whose tokenizer ignores case and spaces, as that of an uncased BERT."""

    def vocabulary(self) -> Any:
        raise AssertionError("not asked for")

    def predict_encoded(self, *given: Any, **named: Any) -> Any:
        raise AssertionError("not asked for")

    def encoded(self, examples: Examples) -> EncodedExamples:
        ids = [[hash(word) for word in text.lower().split()] for text in examples.text]
        return EncodedExamples([{"input_ids": row} for row in ids])


def test_perturbations_that_an_uncased_tokenizer_undoes_get_no_score() -> None:
    yes = Uncased(
        lambda texts: [[0.2, 0.8]] * len(texts), gives="probabilities", label_names=("no", "yes")
    )
    result = evaluate(yes, EvaluationData(DEV), settings("lowercase", "spaces", "contractions"))
    assert list(worst_blocks(result)) == ["contractions"]
    (skipped,) = [notice for notice in result.notices if "spaces" in notice]
    assert "lowercase" in skipped
    assert value(result, "worst_case_accuracy", "all") == 0.5


def test_rows_are_keyed_by_the_original_texts() -> None:
    result = evaluate(judge(lambda text: "i" in text), EvaluationData(DEV), settings())
    blocks = worst_blocks(result)
    # No text holds a word that is often misspelled.
    assert tuple(blocks) == tuple(name for name in PERTURBATIONS if name != "misspellings")
    for block in blocks.values():
        assert block.row == DEV.rows
        assert block.index.tolist() == [0, 1, 2, 3]
        chosen = block.probabilities[np.arange(4), block.label.astype(int)]
        np.testing.assert_allclose(block.loss, -np.log(chosen), rtol=1e-12)


def test_a_regression_has_its_metric_under_each_perturbation_and_no_accuracy() -> None:
    dev = Examples("dev", ["A b", "cC", "dd d"], labels=[0.5, 1.0, 2.0], kind="regression")
    length = CallablePredictor(
        lambda texts: [sum(sign.isupper() for sign in text) for text in texts], gives="values"
    )
    result = evaluate(length, EvaluationData(dev, metric="mse"), settings("lowercase"))
    kept = [entry for entry in result.scores if entry["perspective"] == "worst_case"]
    assert [(entry["name"], entry["condition"]) for entry in kept] == [("mse", "lowercase")]
    # Predicted 0, 0, 0.
    assert kept[0]["value"] == pytest.approx((0.25 + 1.0 + 4.0) / 3)


def test_pairs_are_perturbed_on_both_sides() -> None:
    dev = Examples("dev", ["A man", "a"], ["A dog", "B"], labels=[0, 1], kind="classification")
    asked: list[Any] = []

    def predict(texts: list[Any]) -> list[list[float]]:
        asked.extend(texts)
        return [[0.5, 0.5]] * len(texts)

    predictor = CallablePredictor(predict, gives="probabilities")
    evaluate(predictor, EvaluationData(dev), settings("lowercase"))
    assert asked[2:] == [("a man", "a dog"), ("a", "b")]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["typo"], "Unknown perturbation 'typo'. Did you mean 'typos'"),
        ([], "`evaluate.worst_case.perturbations` .*at least one value"),
        (["typos", "typos"], "must not repeat a value"),
    ],
)
def test_wrong_names_raise_an_error_with_the_settings(given: list[str], said: str) -> None:
    with pytest.raises(SettingError, match=said):
        section(EvaluationSettings, "evaluate", {"worst_case": {"perturbations": given}})
