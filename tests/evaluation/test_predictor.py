"""Predictors: the model is as it was, batches do not matter, nothing is guessed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from temper.data.examples import Examples
from temper.errors import ModelError
from temper.evaluation import classifier
from temper.evaluation.classifier import ClassifierPredictor
from temper.evaluation.function import CallablePredictor
from temper.evaluation.predictor import Prediction


@pytest.mark.parametrize("batch_size", [1, 8])
def test_the_batch_size_changes_no_answer(
    model: Any, tokenizer: Any, examples_of: Any, batch_size: int
) -> None:
    predictor = ClassifierPredictor(model, tokenizer, max_length=64, batch_size=batch_size)
    examples = examples_of(rows=20)
    found = predictor.predict(examples)
    inputs = [tokenizer(text, return_tensors="pt") for text in examples.text]
    with torch.no_grad():
        model.eval()
        wanted = torch.cat([model(**one).logits for one in inputs]).double().softmax(-1).numpy()
    assert found.probabilities == pytest.approx(wanted, abs=1e-5)
    sure = np.abs(wanted[:, 0] - wanted[:, 1]) > 1e-4
    assert sure.any()
    assert (found.prediction == wanted.argmax(1))[sure].all()


def test_a_set_that_is_tokenised_piece_by_piece_is_answered_alike(
    model: Any, tokenizer: Any, examples_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    predictor = ClassifierPredictor(model, tokenizer, max_length=6, batch_size=4)
    examples = examples_of(rows=20)
    whole = predictor.predict(examples)
    parts = {index: part for part in predictor.parts(examples) for index in part.indices}
    monkeypatch.setattr(classifier, "WINDOW", 7)
    assert len(examples) % 7
    pieces = predictor.predict(examples)
    np.testing.assert_allclose(pieces.probabilities, whole.probabilities, atol=1e-6)
    assert pieces.truncated == whole.truncated == predictor.truncated(examples)
    found = {index: part for part in predictor.parts(examples) for index in part.indices}
    assert found.keys() == parts.keys()
    for index, part in found.items():
        assert part.rows[part.indices.index(index)] == examples.rows[index]


def test_a_regression_gives_values(model_of: Any, tokenizer: Any, examples_of: Any) -> None:
    predictor = ClassifierPredictor(model_of(classes=1), tokenizer, max_length=64)
    assert predictor.gives == "values"
    assert predictor.label_names is None
    found = predictor.predict(examples_of(kind="regression"))
    assert found.regression
    assert found.probabilities.shape == (24, 0)


def test_a_regression_of_two_outputs_is_refused(model: Any, tokenizer: Any) -> None:
    model.config.problem_type = "regression"
    with pytest.raises(ModelError, match="must have one output, the model has 2"):
        ClassifierPredictor(model, tokenizer)


def test_placeholder_names_are_no_names(model: Any, tokenizer: Any) -> None:
    assert ClassifierPredictor(model, tokenizer).label_names is None
    model.config.id2label = {0: "bad", 1: "good"}
    assert ClassifierPredictor(model, tokenizer).label_names == ("bad", "good")


def test_broken_logits_are_an_error(model: Any, tokenizer: Any, examples_of: Any) -> None:
    with torch.no_grad():
        model.classifier.bias[0] = float("nan")
    with pytest.raises(ModelError, match="Logits must be finite, got .*nan.* for row 0"):
        ClassifierPredictor(model, tokenizer, max_length=64).predict(examples_of())


def test_bounds_of_a_predictor_are_checked(model: Any, tokenizer: Any) -> None:
    with pytest.raises(ModelError, match="`batch_size` must be >= 1, got 0"):
        ClassifierPredictor(model, tokenizer, batch_size=0)


def test_pairs_reach_a_callable_as_pairs() -> None:
    seen: list[Any] = []

    def answer(texts: list[Any]) -> list[float]:
        seen.extend(texts)
        return [0.0] * len(texts)

    CallablePredictor(answer, gives="values").predict(Examples("p", ["a"], text_pair=["b"]))
    assert seen == [("a", "b")]


def test_logits_are_never_taken_for_probabilities() -> None:
    logits = [[0.2, 0.8], [0.9, 0.1]]
    assert Prediction.of_logits(logits).probabilities[0, 1] == pytest.approx(0.6457, abs=1e-4)
    assert Prediction.of_probabilities(logits).probabilities[0, 1] == 0.8
    with pytest.raises(ModelError, match="sum to 1, got .* for row 1. If these are logits, say so"):
        Prediction.of_probabilities([[0.5, 0.5], [3.0, -2.0]])


def test_a_regression_gives_one_finite_value_a_row() -> None:
    with pytest.raises(ModelError, match=r"one value a row, got shape \[1, 2\]"):
        Prediction.of_values([[1.0, 2.0]])
    with pytest.raises(ModelError, match="finite, got inf for row 1.*lower learning rate"):
        Prediction.of_values([1.0, np.inf])


def test_a_callable_must_answer_every_text() -> None:
    predictor = CallablePredictor(lambda texts: [[0.5, 0.5]], gives="logits")
    with pytest.raises(ModelError, match="gave 1 answers for the 2 texts of set 'toy'"):
        predictor.predict(Examples("toy", ["a", "b"]))


def test_a_loss_is_taken_from_logits_and_unknown_without_a_label() -> None:
    found = Prediction.of_logits([[900.0, 0.0], [0.0, 0.0]])
    assert found.loss(np.asarray([1.0, np.nan]))[0] == 900.0
    assert np.isnan(found.loss(np.asarray([1.0, np.nan]))[1])
    assert Prediction.of_values([3.0]).loss(np.asarray([1.0])).tolist() == [4.0]
    assert Prediction.of_probabilities([[0.0, 1.0]]).loss(np.asarray([0.0])).tolist() == [np.inf]
