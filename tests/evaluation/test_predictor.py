"""Predictors: independent of batches, no guessing of outputs, and errors of functions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from transformers import pipeline

from temper.data.examples import Examples
from temper.errors import ModelError
from temper.evaluation import classifier
from temper.evaluation.classifier import ClassifierPredictor
from temper.evaluation.function import CallablePredictor, EstimatorPredictor, PipelinePredictor
from temper.evaluation.prediction import Prediction
from temper.evaluation.predictor import in_order
from tests.evaluation.conftest import make_examples, make_model, make_tokenizer


@pytest.mark.parametrize("batch_size", [1, 8])
def test_predictions_do_not_depend_on_the_batch_size(
    model: Any, tokenizer: Any, examples_of: Any, batch_size: int
) -> None:
    predictor = ClassifierPredictor(model, tokenizer, max_length=64, batch_size=batch_size)
    examples = examples_of(rows=20)
    result = predictor.predict(examples)
    inputs = [tokenizer(text, return_tensors="pt") for text in examples.text]
    with torch.no_grad():
        model.eval()
        wanted = torch.cat([model(**one).logits for one in inputs]).double().softmax(-1).numpy()
    assert result.probabilities == pytest.approx(wanted, abs=1e-5)
    sure = np.abs(wanted[:, 0] - wanted[:, 1]) > 1e-4
    assert sure.any()
    assert (result.prediction == wanted.argmax(1))[sure].all()


def test_tokenizing_a_set_in_pieces_does_not_change_predictions(
    model: Any, tokenizer: Any, examples_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    predictor = ClassifierPredictor(model, tokenizer, max_length=6, batch_size=4)
    examples = examples_of(rows=20)
    whole = predictor.predict(examples)
    parts = {index: part for part in predictor.parts(examples) for index in part.indices}
    monkeypatch.setattr(classifier, "CHUNK", 7)
    assert len(examples) % 7
    pieces = predictor.predict(examples)
    np.testing.assert_allclose(pieces.probabilities, whole.probabilities, atol=1e-6)
    assert pieces.truncated == whole.truncated == predictor.truncated(examples)
    result = {index: part for part in predictor.parts(examples) for index in part.indices}
    assert result.keys() == parts.keys()
    for index, part in result.items():
        assert part.rows[part.indices.index(index)] == examples.rows[index]


def test_mixed_precision_applies_to_predictions_and_not_to_derivatives(
    model: Any, tokenizer: Any, examples_of: Any
) -> None:
    plain = ClassifierPredictor(model, tokenizer, max_length=64)
    mixed = ClassifierPredictor(model, tokenizer, max_length=64, precision="bf16")
    examples = examples_of(rows=20)

    def in_session(predictor: ClassifierPredictor, *, single: bool) -> Any:
        with predictor.session(single=single) as session, torch.no_grad():
            parts = list(session.parts(examples))
            logits = [session.logits(part) for part in parts]
        assert all(one.dtype is torch.float32 for one in logits)
        return in_order([index for part in parts for index in part.indices], logits)

    exact = plain.predict(examples).logits
    result = [
        mixed.predict(examples).logits,
        mixed.predict_with_states(examples)[0].logits,
        mixed.predict_encoded(mixed.encoded(examples)).logits,
    ]
    # A number of bf16 has 8 bits, and a logit is the end of a few dozen sums.
    for rounded in result:
        assert 0 < np.abs(rounded - exact).max() < 0.1
    assert 0 < np.abs(in_session(mixed, single=False) - exact).max() < 0.1
    assert np.array_equal(in_session(mixed, single=True), in_session(plain, single=True))
    assert not torch.is_autocast_enabled("cpu")


def test_a_regression_gives_values(model_of: Any, tokenizer: Any, examples_of: Any) -> None:
    predictor = ClassifierPredictor(model_of(classes=1), tokenizer, max_length=64)
    assert predictor.gives == "values"
    assert predictor.label_names is None
    result = predictor.predict(examples_of(kind="regression"))
    assert result.regression
    assert result.probabilities.shape == (24, 0)


def test_a_regression_of_two_outputs_raises_an_error(model: Any, tokenizer: Any) -> None:
    model.config.problem_type = "regression"
    with pytest.raises(ModelError, match="must have one output, the model has 2"):
        ClassifierPredictor(model, tokenizer)


def test_placeholder_label_names_are_ignored(model: Any, tokenizer: Any) -> None:
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

    def predict(texts: list[Any]) -> list[float]:
        seen.extend(texts)
        return [0.0] * len(texts)

    CallablePredictor(predict, gives="values").predict(Examples("p", ["a"], text_pair=["b"]))
    assert seen == [("a", "b")]


def test_logits_declared_as_probabilities_raise_an_error() -> None:
    logits = [[0.2, 0.8], [0.9, 0.1]]
    assert Prediction.of_logits(logits).probabilities[0, 1] == pytest.approx(0.6457, abs=1e-4)
    assert Prediction.of_probabilities(logits).probabilities[0, 1] == 0.8
    with pytest.raises(ModelError, match="sum to 1, got .* for row 1. If these are logits, "):
        Prediction.of_probabilities([[0.5, 0.5], [3.0, -2.0]])


def test_a_regression_gives_one_finite_value_a_row() -> None:
    with pytest.raises(ModelError, match=r"one value per row, got shape \[1, 2\]"):
        Prediction.of_values([[1.0, 2.0]])
    with pytest.raises(ModelError, match="finite, got inf for row 1.*lower learning rate"):
        Prediction.of_values([1.0, np.inf])


def test_a_callable_that_skips_a_text_raises_an_error() -> None:
    predictor = CallablePredictor(lambda texts: [[0.5, 0.5]], gives="logits")
    with pytest.raises(ModelError, match="returned 1 rows for the 2 texts of set 'toy'"):
        predictor.predict(Examples("toy", ["a", "b"]))


def test_the_loss_is_computed_from_logits_and_nan_without_a_label() -> None:
    result = Prediction.of_logits([[900.0, 0.0], [0.0, 0.0]])
    assert result.loss(np.asarray([1.0, np.nan]))[0] == 900.0
    assert np.isnan(result.loss(np.asarray([1.0, np.nan]))[1])
    assert Prediction.of_values([3.0]).loss(np.asarray([1.0])).tolist() == [4.0]
    assert Prediction.of_probabilities([[0.0, 1.0]]).loss(np.asarray([0.0])).tolist() == [np.inf]


TWO = Examples("toy", ["a", "b"])


def piped(*, classes: int = 3, labels: Any = None, **settings: Any) -> PipelinePredictor:
    model = make_model(classes=classes)
    if labels is not None:
        model.config.id2label = dict(enumerate(labels))
    made = pipeline("text-classification", model=model, tokenizer=make_tokenizer(), device="cpu")
    return PipelinePredictor(made, **settings)


def test_the_error_of_a_failing_function_has_its_rows_and_line() -> None:
    def fail(texts: list[str]) -> Any:
        raise KeyError("gone")

    message = r"failed on rows 0 to 1 of set 'toy': KeyError: 'gone' \(.*test_predictor\.py, line"
    with pytest.raises(ModelError, match=message):
        CallablePredictor(fail, gives="logits").predict(TWO)


def test_outputs_of_different_widths_raise_an_error() -> None:
    widths = iter((2, 3))
    predictor = CallablePredictor(lambda texts: [[0.0] * next(widths)], gives="logits")
    with pytest.raises(ModelError, match=r"different widths for set 'toy': \[2\] and \[3\]"):
        predictor.predict(TWO, batch_size=1)


@pytest.mark.parametrize("names", [None, ["no", "yes"]])
@pytest.mark.parametrize("gives", ["probabilities", "logits"])
def test_one_number_per_text_for_classes_raises_an_error(gives: Any, names: Any) -> None:
    predictor = CallablePredictor(lambda texts: [0.5] * len(texts), gives=gives, label_names=names)
    with pytest.raises(ModelError, match=r"one number per text .* \[60, C\].*gives='values'"):
        predictor.predict(Examples("toy", ["a"] * 60))


def test_a_text_is_cut_to_the_positions_that_the_model_has(tokenizer: Any, model: Any) -> None:
    longest = model.config.max_position_embeddings
    tokenizer.model_max_length = 10**9
    predictor = ClassifierPredictor(model, tokenizer, max_length=10 * longest)
    assert predictor.max_length == longest
    result = predictor.predict(Examples("toy", ["word1 " * 10 * longest]))
    assert result.truncated == 1.0


def test_a_wrong_number_of_label_names_raises_an_error() -> None:
    predictor = CallablePredictor(
        lambda texts: [[0.0, 1.0]] * len(texts), gives="logits", label_names=["a", "b", "c"]
    )
    with pytest.raises(ModelError, match="names 3 classes, .* and returned 2 columns"):
        predictor.predict(TWO)


@pytest.mark.parametrize("output", [3.0, [[[0.0, 1.0]]] * 3, "text"])
def test_a_wrong_number_of_outputs_raises_an_error(output: Any) -> None:
    predictor = CallablePredictor(lambda texts: output, gives="values")
    with pytest.raises(ModelError, match=r"returned \d rows for the 2 texts|failed on rows 0 to 1"):
        predictor.predict(TWO)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"gives": "scores"}, r"Unknown output type .* 'scores'"),
        ({"gives": "logits", "label_names": "ab"}, "two or more different texts, got 'ab'"),
        ({"gives": "logits", "label_names": ["a", "a"]}, "two or more different texts"),
        ({"gives": "logits", "label_names": [0, 1]}, "two or more different texts"),
        ({"gives": "values", "label_names": ["a", "b"]}, "A regression has no classes"),
    ],
)
def test_invalid_declarations_of_a_function_raise_an_error(settings: Any, message: str) -> None:
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
    result = predictor.predict(examples, batch_size=3)
    assert result.logits == pytest.approx(wanted.logits, abs=1e-5)
    # The pipeline sorts by score: label order is another one here.
    assert (np.diff(wanted.probabilities, axis=1) > 0).any()
    assert predictor.pipeline.model.training
    assert torch.equal(state, torch.random.get_rng_state())


def test_a_pipeline_returns_probabilities_on_request() -> None:
    examples = make_examples(rows=5)
    result = piped(function_to_apply="softmax").predict(examples)
    assert result.logits is None
    assert result.probabilities == pytest.approx(piped().predict(examples).probabilities, abs=1e-5)


def test_a_pipeline_of_one_output_gives_values_and_cut_texts_are_counted() -> None:
    predictor = piped(classes=1, max_length=4)
    result = predictor.predict(Examples("dev", ["word1 word2 word3", "word1"]))
    assert (predictor.gives, predictor.label_names) == ("values", None)
    assert result.truncated == 0.5


def test_placeholder_label_names_of_a_pipeline_are_ignored() -> None:
    assert piped().label_names is None


@pytest.mark.parametrize(
    ("change", "settings", "message"),
    [
        ({"problem_type": "multi_label_classification"}, {}, "predicts several labels per text"),
        ({"problem_type": "regression"}, {}, "A regression .*one output"),
        ({"id2label": {0: "a", 1: "a"}}, {}, "names two classes .a."),
        ({}, {"function_to_apply": "sigmoid"}, "Unknown function_to_apply 'sigmoid'"),
        ({}, {"max_length": 0}, "`max_length` must be >= 1, got 0"),
        ({}, {"batch_size": 0}, "`batch_size` must be >= 1, got 0"),
    ],
)
def test_a_pipeline_that_cannot_be_measured_raises_an_error(
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
    with pytest.raises(ModelError, match="maximum length .*tokenizer is unknown"):
        PipelinePredictor(made)
    assert PipelinePredictor(made, max_length=8).max_length == 8


def test_a_function_as_a_pipeline_raises_an_error() -> None:
    with pytest.raises(ModelError, match="pipeline of Transformers is needed, got function"):
        PipelinePredictor(make_model)


def test_an_estimator_of_several_outputs_or_unfitted_raises_an_error() -> None:
    with pytest.raises(ModelError, match="LogisticRegression .*one label per text"):
        EstimatorPredictor(LogisticRegression())


def test_an_estimator_predicts_in_the_order_of_its_classes() -> None:
    class Fixed:
        classes_ = np.asarray([3, 7])

        def predict_proba(self, texts: list[str]) -> Any:
            return [[0.25, 0.75]] * len(texts)

    predictor = EstimatorPredictor(Fixed())
    assert predictor.label_names == ("3", "7")
    assert predictor.predict(TWO).prediction.tolist() == [1.0, 1.0]
