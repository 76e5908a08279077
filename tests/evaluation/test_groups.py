"""Groups: accuracy of each and of the worst, on numbers worked by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, recall_score

from temper.data.examples import Examples
from temper.evaluation.function import CallablePredictor
from temper.evaluation.run import Evaluation, EvaluationData, evaluate
from temper.evaluation.settings import EvaluationSettings
from temper.functional.scores import least_accuracy, mean_group_accuracy

ONLY = EvaluationSettings(perspectives=("task", "groups"), bootstrap=200)
NLI = ("entailment", "neutral", "contradiction")


def says_one() -> CallablePredictor:
    """Return a predictor whose prediction is always class 1 of two."""
    return CallablePredictor(lambda texts: [[0.2, 0.8]] * len(texts), gives="probabilities")


def grouped(name: str, **groups: tuple[int, int]) -> Examples:
    """Return rows of groups by name: so many of label 1, so many of label 0."""
    labels, group = [], []
    for each, (ones, zeros) in groups.items():
        labels += [1] * ones + [0] * zeros
        group += [each] * (ones + zeros)
    texts = [f"{name} {index}" for index in range(len(labels))]
    return Examples(
        name, texts, labels=labels, kind="classification", group=[each or None for each in group]
    )


def entries(result: Evaluation, **where: Any) -> list[tuple[str, str, float | None, int]]:
    return [
        (entry["condition"], entry["name"], entry["value"], entry["n"])
        for entry in result.scores
        if entry["perspective"] == "groups"
        and all(entry[key] == value for key, value in where.items())
    ]


def test_each_group_and_the_worst_large_group_are_scored() -> None:
    dev = grouped("dev", news=(9, 3), fiction=(5, 15), letters=(0, 9), **{"": (1, 2)})
    result = evaluate(says_one(), EvaluationData(dev), ONLY)
    assert entries(result) == [
        ("fiction", "accuracy", 0.25, 20),
        # Nine rows are too few to be the worst, however wrong they are.
        ("letters", "accuracy", 0.0, 9),
        ("news", "accuracy", 0.75, 12),
        ("worst", "worst_group", 0.25, 32),
        # Groups have equal weights: (0.25 + 0.75) / 2.
        ("mean", "mean_group", 0.5, 32),
    ]
    (worst,) = [entry for entry in result.scores if entry["name"] == "worst_group"]
    assert worst["low"] <= 0.25 <= worst["high"]
    assert worst["higher_is_better"] is True


def test_a_group_of_ten_rows_counts_for_the_worst_group() -> None:
    result = evaluate(says_one(), EvaluationData(grouped("dev", a=(1, 9), b=(12, 0))), ONLY)
    assert entries(result, name="worst_group") == [("worst", "worst_group", 0.1, 22)]


def test_without_a_large_group_the_worst_is_undefined_with_a_reason() -> None:
    result = evaluate(says_one(), EvaluationData(grouped("dev", a=(4, 5), b=(3, 1))), ONLY)
    (worst,) = [entry for entry in result.scores if entry["name"] == "worst_group"]
    assert (worst["value"], worst["reason"]) == (None, "no group has enough rows")


def test_shift_and_adversarial_sets_are_scored_by_default() -> None:
    data = EvaluationData(
        grouped("dev", **{"": (3, 3)}),
        shift={"far": grouped("far", a=(6, 4))},
        adversarial={"made": grouped("made", b=(3, 7))},
    )
    result = evaluate(says_one(), data, ONLY)
    assert entries(result, set="dev") == []
    assert entries(result, set="far", name="worst_group") == [("worst", "worst_group", 0.6, 10)]
    assert entries(result, set="made", name="accuracy") == [("b", "accuracy", 0.3, 10)]
    assert {entry["perspective"] for entry in result.scores} == {"task", "groups"}


def test_groups_may_be_named_worst_or_clean() -> None:
    dev = grouped("dev", worst=(10, 0), clean=(5, 5))
    result = evaluate(says_one(), EvaluationData(dev), ONLY)
    assert entries(result) == [
        ("clean", "accuracy", 0.5, 10),
        ("worst", "accuracy", 1.0, 10),
        ("worst", "worst_group", 0.5, 20),
        ("mean", "mean_group", 0.75, 20),
    ]


def test_the_worst_group_of_a_regression_is_undefined_with_a_reason() -> None:
    rows = Examples(
        "dev", list("abc"), labels=[0.0, 1.0, 2.0], kind="regression", group=["a", "a", "b"]
    )
    values = CallablePredictor(lambda texts: [1.0] * len(texts), gives="values")
    result = evaluate(values, EvaluationData(rows, metric="mse"), ONLY)
    (entry,) = [entry for entry in result.scores if entry["perspective"] == "groups"]
    assert (entry["name"], entry["reason"], entry["n"]) == (
        "worst_group",
        "a regression has no accuracy",
        3,
    )


ROWS = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 4)), min_size=1, max_size=40)


@given(ROWS)
def test_the_least_accuracy_agrees_with_scikit_learn_group_by_group(
    rows: list[tuple[int, int]],
) -> None:
    correct, groups = (np.array(side) for side in zip(*rows, strict=True))
    expected = min(
        accuracy_score(np.ones(int((groups == each).sum())), correct[groups == each])
        for each in set(groups)
    )
    assert float(least_accuracy(correct, groups)) == pytest.approx(expected)


@given(ROWS)
def test_the_mean_over_groups_is_scikit_learns_balanced_accuracy_of_group_and_prediction(
    rows: list[tuple[int, int]],
) -> None:
    correct, groups = (np.array(side) for side in zip(*rows, strict=True))
    # Recall of a group is the fraction of its rows whose "prediction" is the group itself.
    predicted = np.where(correct == 1, groups, 9)
    expected = recall_score(
        groups, predicted, labels=sorted(set(groups)), average="macro", zero_division=0
    )
    assert float(mean_group_accuracy(correct, groups)) == pytest.approx(expected)
