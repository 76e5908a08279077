"""Columns in which a text may have several labels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.metrics import average_precision_score, f1_score

from temper.data.examples import Examples
from temper.errors import DataError
from temper.functional import multi_label
from tests.data.test_columns import read


@pytest.mark.parametrize(
    "values",
    [
        [["b", "a"], ["a"], []],
        ["a|b", "a|b", "a", "b"],
        ["a;b", "b", "a"],
        ["['a', 'b']", "['a']", "[]"],
        ['["a", "b"]', '["b"]', '["a"]'],
    ],
)
def test_several_labels_are_recognized_and_named(values: list[Any]) -> None:
    labels = read(values)
    assert labels.kind == "multi_label"
    assert labels.names == ("a", "b")
    assert labels.values[0] == (1, 1)
    (message,) = labels.notices
    assert "several labels" in message


def test_label_lists_with_other_separators_need_the_kind() -> None:
    values = ["a, b", "", "a", None]
    labels = read(values, kind="multi_label")
    assert (labels.names, labels.values) == (("a", "b"), [(1, 1), (0, 0), (1, 0), (0, 0)])
    assert read(["a, b", "a", "b"]).kind == "classification"
    assert read(["a|b", "a", "b"], kind="classification").kind == "classification"


def test_label_indices_and_flags_are_distinguished_by_repeated_values() -> None:
    assert read([[0, 2], [1]]).values == [(1, 0, 1), (0, 1, 0)]
    assert read([[0, 0, 1], [1, 0, 1]]).values == [(0, 0, 1), (1, 0, 1)]
    named = read([[0, 2], [1]], names=("x", "y", "z", "w"))
    assert named.names == ("x", "y", "z", "w")
    assert named.values == [(1, 0, 1, 0), (0, 1, 0, 0)]


@pytest.mark.parametrize(
    ("values", "settings"),
    [
        ([["a"], [None]], {}),
        ([[0, 10**12]], {}),
        ([[-1, 2]], {}),
        ([["a", 1]], {}),
        ([["a"], ["q"]], {"names": ("a", "b")}),
        ([["a"], ["a"]], {}),
        ([[], []], {}),
    ],
)
def test_lists_that_are_no_labels_raise_an_error(values: list[Any], settings: Any) -> None:
    with pytest.raises(DataError, match="label"):
        read(values, **settings)


def test_label_lists_are_reordered_and_unknown_labels_raise_an_error() -> None:
    rows = Examples(
        "toy",
        ["one", "two"],
        labels=[(1, 0, 1), (0, 0, 1)],
        label_names=("a", "b", "c"),
        kind="multi_label",
    )
    mapped = rows.map_labels(["c", "d", "a"])
    assert mapped.labels == [(1, 0, 1), (1, 0, 0)]
    assert mapped.label_names == ("c", "d", "a")
    with pytest.raises(DataError, match="'c'"):
        rows.map_labels(["a", "b"])
    assert (rows.classes, mapped.classes) == (3, 3)


@pytest.mark.parametrize("seed", range(3))
def test_scores_are_those_of_scikit_learn(seed: int) -> None:
    draws = np.random.default_rng(seed)
    labels, predictions = draws.integers(0, 2, (2, 40, 5))
    counts = draws.integers(0, 4, (3, 40))
    for average, own in (("micro", multi_label.micro_f1), ("macro", multi_label.label_f1)):
        assert own(labels, predictions) == pytest.approx(
            f1_score(labels, predictions, average=average)
        )
        expected = [
            f1_score(np.repeat(labels, n, 0), np.repeat(predictions, n, 0), average=average)
            for n in counts
        ]
        assert own(labels, predictions, counts=counts) == pytest.approx(expected)
    ranked = np.round(draws.random((40, 5)), 1)  # with ties
    assert multi_label.mean_average_precision(labels, ranked) == pytest.approx(
        average_precision_score(labels, ranked, average="macro")
    )
    right = (labels == predictions).all(1)
    assert multi_label.exact_match(labels, predictions) == pytest.approx(right.mean())
