"""Functions, estimators and pipelines answer in order, and their faults are told."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from transformers import pipeline

from temper.data.examples import Examples
from temper.errors import ModelError
from temper.evaluation.classifier import ClassifierPredictor
from temper.evaluation.function import CallablePredictor, EstimatorPredictor, PipelinePredictor
from tests.evaluation.conftest import make_examples, make_model, make_tokenizer

TWO = Examples("toy", ["a", "b"])


def piped(*, classes: int = 3, labels: Any = None, **settings: Any) -> PipelinePredictor:
    model = make_model(classes=classes)
    if labels is not None:
        model.config.id2label = dict(enumerate(labels))
    made = pipeline("text-classification", model=model, tokenizer=make_tokenizer(), device="cpu")
    return PipelinePredictor(made, **settings)


def test_a_function_that_fails_is_told_with_its_rows_and_line() -> None:
    def fail(texts: list[str]) -> Any:
        raise KeyError("gone")

    message = r"failed on rows 0 to 1 of set 'toy': KeyError: 'gone' \(.*test_function\.py, line"
    with pytest.raises(ModelError, match=message):
        CallablePredictor(fail, gives="logits").predict(TWO)


def test_answers_of_different_widths_are_told() -> None:
    widths = iter((2, 3))
    predictor = CallablePredictor(lambda texts: [[0.0] * next(widths)], gives="logits")
    with pytest.raises(ModelError, match=r"different widths for set 'toy': \[2\] and \[3\]"):
        predictor.predict(TWO, batch_size=1)


def test_names_must_fit_the_columns() -> None:
    predictor = CallablePredictor(
        lambda texts: [[0.0, 1.0]] * len(texts), gives="logits", label_names=["a", "b", "c"]
    )
    with pytest.raises(ModelError, match="names 3 classes, .* and gave 2 columns"):
        predictor.predict(TWO)


@pytest.mark.parametrize("answer", [3.0, [[[0.0, 1.0]]] * 3, "text"])
def test_answers_that_are_not_one_a_text_are_told(answer: Any) -> None:
    predictor = CallablePredictor(lambda texts: answer, gives="values")
    with pytest.raises(ModelError, match=r"gave \d answers for the 2 texts|failed on rows 0 to 1"):
        predictor.predict(TWO)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"gives": "scores"}, r"Unknown kind of answer \(gives\) 'scores'"),
        ({"gives": "logits", "label_names": "ab"}, "two or more different texts, got 'ab'"),
        ({"gives": "logits", "label_names": ["a", "a"]}, "two or more different texts"),
        ({"gives": "logits", "label_names": [0, 1]}, "two or more different texts"),
        ({"gives": "values", "label_names": ["a", "b"]}, "A regression has no classes"),
    ],
)
def test_what_a_function_cannot_be_is_refused(settings: Any, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        CallablePredictor(len, **settings)


@pytest.mark.parametrize("pairs", [False, True])
def test_a_pipeline_gives_the_logits_of_its_model_in_label_order(pairs: bool) -> None:
    predictor = piped(labels=["zebra", "ant", "moth"])
    assert (predictor.gives, predictor.label_names) == ("logits", ("zebra", "ant", "moth"))
    examples = make_examples(rows=7)
    if pairs:
        examples = Examples("dev", examples.text, text_pair=examples.text[::-1])
    predictor.pipeline.model.train()
    plain = ClassifierPredictor(predictor.pipeline.model, make_tokenizer(), max_length=64)
    wanted = plain.predict(examples)
    state = torch.random.get_rng_state()
    found = predictor.predict(examples, batch_size=3)
    assert found.logits == pytest.approx(wanted.logits, abs=1e-5)
    # The pipeline sorts by score: label order is another one here.
    assert (np.diff(wanted.probabilities, axis=1) > 0).any()
    assert predictor.pipeline.model.training
    assert torch.equal(state, torch.random.get_rng_state())


def test_a_pipeline_gives_probabilities_where_they_are_asked_for() -> None:
    examples = make_examples(rows=5)
    found = piped(function_to_apply="softmax").predict(examples)
    assert found.logits is None
    assert found.probabilities == pytest.approx(piped().predict(examples).probabilities, abs=1e-5)


def test_a_pipeline_of_one_output_gives_values_and_cut_texts_are_counted() -> None:
    predictor = piped(classes=1, max_length=4)
    found = predictor.predict(Examples("dev", ["word1 word2 word3", "word1"]))
    assert (predictor.gives, predictor.label_names) == ("values", None)
    assert found.truncated == 0.5


def test_placeholders_of_a_pipeline_are_no_names() -> None:
    assert piped().label_names is None


@pytest.mark.parametrize(
    ("change", "settings", "message"),
    [
        ({"problem_type": "multi_label_classification"}, {}, "answers every label for itself"),
        ({"problem_type": "regression"}, {}, "A regression must have one output"),
        ({"id2label": {0: "a", 1: "a"}}, {}, "are alike"),
        ({}, {"function_to_apply": "sigmoid"}, "Unknown function_to_apply 'sigmoid'"),
        ({}, {"max_length": 0}, "`max_length` must be >= 1, got 0"),
        ({}, {"batch_size": 0}, "`batch_size` must be >= 1, got 0"),
    ],
)
def test_a_pipeline_that_cannot_be_measured_is_refused(
    change: dict[str, Any], settings: dict[str, Any], message: str
) -> None:
    made = piped(classes=2).pipeline
    for name, value in change.items():
        setattr(made.model.config, name, value)
    with pytest.raises(ModelError, match=message):
        PipelinePredictor(made, **settings)


def test_a_tokenizer_without_a_limit_needs_a_length() -> None:
    made = piped(classes=2).pipeline
    made.tokenizer.model_max_length = int(1e30)
    with pytest.raises(ModelError, match="does not say how many tokens"):
        PipelinePredictor(made)
    assert PipelinePredictor(made, max_length=8).max_length == 8


def test_another_thing_is_no_pipeline() -> None:
    with pytest.raises(ModelError, match="pipeline of Transformers is needed, got function"):
        PipelinePredictor(make_model)


def test_an_estimator_of_several_outputs_or_unfitted_is_refused() -> None:
    with pytest.raises(ModelError, match="must be fitted on one label a text"):
        EstimatorPredictor(LogisticRegression())


def test_an_estimator_answers_in_the_order_of_its_classes() -> None:
    class Fixed:
        classes_ = np.asarray([3, 7])

        def predict_proba(self, texts: list[str]) -> Any:
            return [[0.25, 0.75]] * len(texts)

    predictor = EstimatorPredictor(Fixed())
    assert predictor.label_names == ("3", "7")
    assert predictor.predict(TWO).prediction.tolist() == [1.0, 1.0]
