"""The anomaly perspective: each detector against another implementation, and what it needs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sklearn import metrics
from sklearn.covariance import LedoitWolf

from temper.data.examples import Examples
from temper.evaluation.classifier import ClassifierPredictor
from temper.evaluation.function import CallablePredictor
from temper.evaluation.rows import Block, Condition, to_blocks
from temper.evaluation.run import Evaluation, EvaluationData, evaluate, score
from temper.evaluation.settings import EvaluationSettings
from tests.evaluation.conftest import assert_same_scores, changed

ONLY = EvaluationSettings(perspectives=("task", "anomaly"), bootstrap=20)
DETECTORS = ("clean", "max_logit", "energy", "mahalanobis")


@pytest.fixture
def data(examples_of: Any) -> EvaluationData:
    return EvaluationData(
        examples_of(rows=24),
        anomaly={"odd": examples_of("odd", rows=15, kind="unlabeled")},
        fit=examples_of("fit", rows=40),
    )


def values(result: Evaluation, name: str, detector: str) -> Any:
    (wanted,) = [
        b for b in to_blocks(result.rows) if b.condition == Condition("anomaly", name, detector)
    ]
    assert isinstance(wanted, Block)
    return wanted.value


def pooled(model: Any, tokenizer: Any, examples: Examples) -> Any:
    """Return the mean over the tokens of every layer by Transformers, one text at a time."""
    model.eval()
    with torch.no_grad():
        result = [
            model(**tokenizer(text, return_tensors="pt"), output_hidden_states=True).hidden_states
            for text in examples.text
        ]
    return np.stack([torch.cat(layers).double().mean(1).numpy() for layers in result])


def test_every_detector_is_scored_against_the_dev_rows(
    predictor: ClassifierPredictor, data: EvaluationData
) -> None:
    result = evaluate(predictor, data, ONLY)
    anomaly = [entry for entry in result.scores if entry["perspective"] == "anomaly"]
    assert [entry["condition"] for entry in anomaly] == [d for d in DETECTORS for _ in range(3)]
    assert {(entry["set"], entry["n"]) for entry in anomaly} == {("odd", 39)}
    flags = [0] * 24 + [1] * 15
    for detector in DETECTORS[1:]:
        scores = np.concatenate([values(result, name, detector) for name in ("dev", "odd")])
        by_name = {e["name"]: e["value"] for e in anomaly if e["condition"] == detector}
        assert by_name["auroc"] == pytest.approx(metrics.roc_auc_score(flags, scores))
        assert by_name["aupr"] == pytest.approx(metrics.average_precision_score(flags, scores))
    assert_same_scores(score(result.rows, "accuracy", settings=ONLY), result.scores)
    assert result.notices == ()


def test_detectors_of_logits_equal_their_formulas_on_the_models_logits(
    predictor: ClassifierPredictor, data: EvaluationData
) -> None:
    result = evaluate(predictor, data, ONLY)
    logits = torch.tensor(predictor.predict(data.anomaly["odd"]).logits)
    assert values(result, "odd", "max_logit") == pytest.approx((-logits.amax(1)).numpy())
    assert values(result, "odd", "energy") == pytest.approx((-logits.logsumexp(1)).numpy())


def test_detectors_of_states_equal_scikit_learns_on_the_hidden_states(
    model: Any, tokenizer: Any, predictor: ClassifierPredictor, data: EvaluationData
) -> None:
    result = evaluate(predictor, data, ONLY)
    assert data.fit is not None
    known, asked = (pooled(model, tokenizer, e) for e in (data.fit, data.anomaly["odd"]))
    z_scores = []
    for layer in range(known.shape[1]):
        rows = known[:, layer]
        held_out = np.concatenate(
            [distance(rows[::2], rows[1::2]), distance(rows[1::2], rows[::2])]
        )
        z_scores.append((distance(rows, asked[:, layer]) - held_out.mean()) / held_out.std())
    assert values(result, "odd", "mahalanobis") == pytest.approx(
        np.mean(z_scores, axis=0), rel=1e-3
    )


def distance(fit: Any, rows: Any) -> Any:
    spread = LedoitWolf(assume_centered=True).fit(fit - fit.mean(0))
    return spread.mahalanobis(rows - fit.mean(0))


def test_a_pass_for_states_also_computes_the_predictions(
    predictor: ClassifierPredictor, data: EvaluationData
) -> None:
    seen = 0

    def count(module: Any, _: Any, output: torch.Tensor) -> None:
        nonlocal seen
        seen += len(output)

    plain = {"detectors": "max_softmax"}
    result = evaluate(predictor, data, changed(ONLY, {"anomaly": plain}))
    predictor.model.classifier.register_forward_hook(count)
    again = evaluate(predictor, data, ONLY)
    # Each row once, but for dev, which the task had predicted before; probing takes a row or two.
    assert data.fit is not None
    rows = 2 * len(data.dev) + len(data.anomaly["odd"]) + len(data.fit)
    assert rows <= seen <= rows + 10
    chosen = [
        [block for block in to_blocks(each.rows) if block.condition == Condition("anomaly", "odd")]
        for each in (result, again)
    ]
    assert chosen[0][0].probabilities == pytest.approx(chosen[1][0].probabilities, abs=1e-6)
    assert result.truncated == again.truncated


def test_the_detector_needs_no_labels(
    predictor: ClassifierPredictor, data: EvaluationData, examples_of: Any
) -> None:
    bare = EvaluationData(
        data.dev, anomaly=data.anomaly, fit=examples_of("fit", rows=40, kind="unlabeled")
    )
    assert evaluate(predictor, bare, ONLY).rows.equals(evaluate(predictor, data, ONLY).rows)


def test_detectors_are_not_fitted_on_scored_rows(
    predictor: ClassifierPredictor, data: EvaluationData
) -> None:
    assert data.fit is not None
    both = Examples(
        "fit",
        data.fit.text + data.dev.text,
        labels=[*(data.fit.labels or []), *(data.dev.labels or [])],  # type: ignore[arg-type]
        kind="classification",
    )
    mixed = EvaluationData(data.dev, anomaly=data.anomaly, fit=both)
    assert evaluate(predictor, mixed, ONLY).rows.equals(evaluate(predictor, data, ONLY).rows)


def test_only_requested_detectors_are_measured(
    predictor: ClassifierPredictor, data: EvaluationData
) -> None:
    result = evaluate(predictor, data, changed(ONLY, {"anomaly": {"detectors": "mahalanobis"}}))
    assert {e["condition"] for e in result.scores if e["perspective"] == "anomaly"} == {
        "mahalanobis"
    }
    with pytest.raises(ValueError, match="'max_softmax', 'max_logit', 'energy'"):
        EvaluationSettings(anomaly={"detectors": ("odin",)})


def test_an_unsupported_detector_is_skipped_with_a_notice(
    predictor: ClassifierPredictor, data: EvaluationData, examples_of: Any
) -> None:
    for fit, words in (
        (None, "no in-distribution rows"),
        (examples_of("fit", rows=3), "at least 4"),
    ):
        result = evaluate(predictor, EvaluationData(data.dev, anomaly=data.anomaly, fit=fit), ONLY)
        scores = {e["condition"] for e in result.scores if e["perspective"] == "anomaly"}
        assert scores == set(DETECTORS[:3])
        assert any("'mahalanobis' is left out" in n and words in n for n in result.notices)


def test_a_function_is_scored_only_by_detectors_of_probabilities(data: EvaluationData) -> None:
    fractions = CallablePredictor(lambda texts: [[0.3, 0.7]] * len(texts), gives="probabilities")
    result = evaluate(fractions, data, ONLY)
    assert {e["condition"] for e in result.scores if e["perspective"] == "anomaly"} == {"clean"}
    messages = [notice for notice in result.notices if "is left out" in notice]
    assert len(messages) == 3
    assert "needs logits, but the predictor returns probabilities" in messages[0]
    assert "hidden states of a CallablePredictor" in messages[2]


def test_a_regression_is_scored_only_by_detectors_of_states(
    model_of: Any, tokenizer: Any, data: EvaluationData, examples_of: Any
) -> None:
    predictor = ClassifierPredictor(model_of(classes=1), tokenizer, max_length=64)
    result = evaluate(
        predictor,
        EvaluationData(
            examples_of(kind="regression"),
            anomaly=data.anomaly,
            metric="pearson",
            fit=examples_of("fit", rows=40, kind="regression"),
        ),
        ONLY,
    )
    scores = {e["condition"]: e for e in result.scores if e["perspective"] == "anomaly"}
    assert set(scores) == {"clean", "mahalanobis"}
    assert scores["clean"]["reason"] == "a regression has no probabilities"
    assert scores["mahalanobis"]["value"] is not None


def test_without_anomaly_sets_no_detector_is_measured(
    predictor: ClassifierPredictor, data: EvaluationData
) -> None:
    result = evaluate(predictor, EvaluationData(data.dev), ONLY)
    assert result.notices == ()
    assert {e["perspective"] for e in result.scores} == {"task"}
