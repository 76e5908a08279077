"""Alternatives to recipes: linear regression against scikit-learn's, and SetFit's encoder."""

from __future__ import annotations

import importlib.util
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import softmax
from sklearn.linear_model import LogisticRegression

from temper.data.examples import Examples
from temper.models.hf import load_classifier
from temper.models.mean_pooled import mean_pooled
from temper.models.sentence import SentenceEncoder
from temper.study.alternatives import (
    FROZEN,
    SETFIT,
    Alternative,
    alternatives,
    fit_alternative,
    logistic_regression,
)
from temper.training.config import RunConfig
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
    classifier, tokenizer = load_classifier(model)
    network = mean_pooled(classifier, ["negative", "positive"])
    inputs = tokenizer(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        ours = network.embed(inputs["input_ids"], inputs["attention_mask"])[0].numpy()
    np.testing.assert_allclose(ours, SentenceEncoder.load(model).embeddings(texts), atol=1e-5)


def project(folder: Path, **changes: Any) -> tuple[RunConfig, Examples]:
    model = str(make_model(folder / "model"))
    texts, labels = zip(*sentences(60), strict=True)
    rows = Examples(
        "train",
        list(texts),
        labels=[int(label == "positive") for label in labels],
        label_names=("negative", "positive"),
        kind="classification",
        **changes,
    )
    tree = {"model": model, "train": {"max_steps": 30, "device": "cpu"}}
    return RunConfig.of({**tree, "data": {"source": "rows.csv", "max_length": 32}}), rows


@pytest.mark.parametrize("alternative", [FROZEN, SETFIT], ids=lambda each: str(each.name))
def test_a_fitted_classifier_predicts_like_a_checkpoint(
    tmp_path: Path, alternative: Alternative
) -> None:
    run, rows = project(tmp_path)
    draws = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()
    predictor = fit_alternative(alternative, run, rows, seed=0)
    assert predictor.label_names == ("negative", "positive")
    predictions = predictor.predict(rows)
    again = fit_alternative(alternative, run, rows, seed=0).predict(rows)
    np.testing.assert_array_equal(predictions.probabilities, again.probabilities)
    other = fit_alternative(alternative, run, rows, seed=1).predict(rows)
    alike = np.array_equal(other.probabilities, predictions.probabilities)
    assert alike != alternative.seeded
    # Good and bad words have embeddings of their own, even in a random encoder.
    assert (predictions.prediction == np.asarray(rows.labels)).mean() > 0.7
    # The caller's draws go on as if nothing had been fitted.
    assert random.getstate() == draws[0]
    assert np.random.get_state()[1].tolist() == draws[1]
    assert torch.equal(torch.get_rng_state(), draws[2])


def test_setfit_brings_the_texts_of_a_class_together(tmp_path: Path) -> None:
    run, rows = project(tmp_path)
    labels = np.asarray(rows.labels)
    alike = labels[:, None] == labels

    def contrast(alternative: Alternative) -> float:
        predictor = fit_alternative(alternative, run, rows, seed=0)
        result = [
            predictor.model.embed(**part.batch.inputs)[0].detach()
            for part in predictor.parts(rows, batch_size=len(rows))
        ]
        (indices,) = [part.indices for part in predictor.parts(rows, batch_size=len(rows))]
        made = result[0].numpy()[np.argsort(indices)]
        cosines = made @ made.T
        return float(cosines[alike].mean() - cosines[~alike].mean())

    assert contrast(SETFIT) > contrast(FROZEN)


def test_setfit_reads_no_token_after_the_maximum_length(tmp_path: Path) -> None:
    run, rows = project(tmp_path)
    # Two words, and the tokens at the start and at the end.
    cut = run.model_copy(update={"data": run.data.model_copy(update={"max_length": 4})})
    short = replace(rows, text=[" ".join(text.split()[:2]) for text in rows.text], rows=None)
    whole_texts, cut_texts = (
        fit_alternative(SETFIT, cut, each, seed=0).model.state_dict() for each in (rows, short)
    )
    for name, weight in whole_texts.items():
        assert torch.equal(weight, cut_texts[name]), name


def test_alternatives_are_those_that_suit_the_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, rows = project(tmp_path)
    assert alternatives(run, rows) == [FROZEN, SETFIT]
    assert alternatives(run.model_copy(update={"model": "text_cnn"}), rows) == []
    pairs = replace(rows, text_pair=rows.text, rows=None)
    assert alternatives(run, pairs) == [FROZEN]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert alternatives(run, rows) == [FROZEN]
