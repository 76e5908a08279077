"""Logistic regression on frozen embeddings, held against scikit-learn's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.special import softmax
from sklearn.linear_model import LogisticRegression

from temper.app.frozen import FrozenClassifier, fit_frozen, logistic_regression
from temper.data.examples import Examples
from temper.models.hf import load_classifier
from temper.models.sentence import SentenceEncoder
from tests.cli.tiny_project import make_model, sentences


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("strength", [0.1, 10.0])
def test_the_regression_is_scikit_learn_s(classes: int, strength: float) -> None:
    draw = np.random.default_rng(0)
    features = draw.normal(size=(80, 5))
    labels = np.arange(80) % classes
    features[:, 0] += labels
    # Of two classes it fits one row of weights w, and ours are -w/2 and w/2: half the penalty.
    theirs = LogisticRegression(
        C=strength * (2 if classes == 2 else 1), tol=1e-10, max_iter=5000
    ).fit(features, labels)
    weight, bias = logistic_regression(features, labels, classes=classes, strength=strength)
    ours = softmax(features @ weight.T + bias, axis=1)
    np.testing.assert_allclose(ours, theirs.predict_proba(features), atol=1e-5)


def test_embeddings_are_the_sentence_encoder_s(tmp_path: Path) -> None:
    model = str(make_model(tmp_path / "model"))
    texts = [text for text, _ in sentences(6)]
    classifier, tokenizer = load_classifier(model, labels=("a", "b"))
    network = FrozenClassifier(classifier, classes=2).eval()
    inputs = tokenizer(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        ours = network.embed(inputs["input_ids"], inputs["attention_mask"]).numpy()
    np.testing.assert_allclose(ours, SentenceEncoder.load(model).embeddings(texts), atol=1e-5)


def test_a_fitted_classifier_answers_like_a_checkpoint(tmp_path: Path) -> None:
    model = str(make_model(tmp_path / "model"))
    texts, labels = zip(*sentences(60), strict=True)
    rows = Examples(
        "train",
        list(texts),
        labels=[int(label == "positive") for label in labels],
        label_names=("negative", "positive"),
        kind="classification",
    )
    predictor = fit_frozen(model, rows, max_length=32, seed=0)
    assert predictor.label_names == ("negative", "positive")
    answers = predictor.predict(rows)
    again = fit_frozen(model, rows, max_length=32, seed=0).predict(rows)
    np.testing.assert_array_equal(answers.probabilities, again.probabilities)
    # Good and bad words have embeddings of their own, even in a random encoder.
    assert (answers.prediction == np.asarray(rows.labels)).mean() > 0.7
