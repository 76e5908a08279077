"""The anomaly perspective: each detector against another implementation, and what it needs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sklearn import metrics
from sklearn.covariance import LedoitWolf
from sklearn.neighbors import NearestNeighbors

from temper.data.examples import Examples
from temper.evaluation.classifier import ClassifierPredictor
from temper.evaluation.function import CallablePredictor
from temper.evaluation.rows import Block, Condition, to_blocks
from temper.evaluation.run import Evaluation, EvaluationData, evaluate, score
from temper.evaluation.settings import EvaluationSettings
from tests.evaluation.conftest import assert_same_scores, changed

ONLY = EvaluationSettings(perspectives=("task", "anomaly"), bootstrap=20, anomaly={"neighbours": 3})
DETECTORS = ("clean", "max_logit", "energy", "mahalanobis", "knn")


@pytest.fixture
def data(examples_of: Any) -> EvaluationData:
    return EvaluationData(
        examples_of(rows=24),
        anomaly={"odd": examples_of("odd", rows=15, kind="unlabelled")},
        fit=examples_of("fit", rows=40),
    )


def values(found: Evaluation, name: str, detector: str) -> Any:
    (wanted,) = [
        b for b in to_blocks(found.rows) if b.condition == Condition("anomaly", name, detector)
    ]
    assert isinstance(wanted, Block)
    return wanted.value


def pooled(model: Any, tokenizer: Any, examples: Examples) -> Any:
    """Return the last hidden state of [CLS] by Transformers itself, one text at a time."""
    model.eval()
    with torch.no_grad():
        found = [
            model(**tokenizer(text, return_tensors="pt"), output_hidden_states=True)
            .hidden_states[-1][0, 0]
            .double()
            .numpy()
            for text in examples.text
        ]
    return np.stack(found)


def test_every_detector_is_scored_against_the_dev_rows(
    predictor: ClassifierPredictor, data: EvaluationData
) -> None:
    found = evaluate(predictor, data, ONLY)
    told = [entry for entry in found.scores if entry["perspective"] == "anomaly"]
    assert [entry["condition"] for entry in told] == [d for d in DETECTORS for _ in range(3)]
    assert {(entry["set"], entry["n"]) for entry in told} == {("odd", 39)}
    flags = [0] * 24 + [1] * 15
    for detector in DETECTORS[1:]:
        scores = np.concatenate([values(found, name, detector) for name in ("dev", "odd")])
        by_name = {e["name"]: e["value"] for e in told if e["condition"] == detector}
        assert by_name["auroc"] == pytest.approx(metrics.roc_auc_score(flags, scores))
        assert by_name["aupr"] == pytest.approx(metrics.average_precision_score(flags, scores))
    assert_same_scores(score(found.rows, "accuracy", settings=ONLY), found.scores)
    assert found.notices == ()


def test_detectors_of_logits_are_those_of_the_models_own_logits(
    predictor: ClassifierPredictor, data: EvaluationData
) -> None:
    found = evaluate(predictor, data, ONLY)
    logits = torch.tensor(predictor.predict(data.anomaly["odd"]).logits)
    assert values(found, "odd", "max_logit") == pytest.approx((-logits.amax(1)).numpy())
    assert values(found, "odd", "energy") == pytest.approx((-logits.logsumexp(1)).numpy())


def test_detectors_of_states_are_scikit_learns_on_transformers_states(
    model: Any, tokenizer: Any, predictor: ClassifierPredictor, data: EvaluationData
) -> None:
    found = evaluate(predictor, data, ONLY)
    assert data.fit is not None
    known, asked = (pooled(model, tokenizer, e) for e in (data.fit, data.anomaly["odd"]))
    labels = np.asarray(data.fit.labels)
    means = np.stack([known[labels == k].mean(0) for k in (0, 1)])
    spread = LedoitWolf(assume_centered=True).fit(known - means[labels])
    nearest = np.min([spread.mahalanobis(asked - mean) for mean in means], axis=0)
    assert values(found, "odd", "mahalanobis") == pytest.approx(nearest, rel=1e-3)
    lengths = [rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (known, asked)]
    distances, _ = NearestNeighbors(n_neighbors=3).fit(lengths[0]).kneighbors(lengths[1])
    assert values(found, "odd", "knn") == pytest.approx(distances[:, -1], abs=1e-5)


def test_a_pass_that_reads_states_answers_too(
    predictor: ClassifierPredictor, data: EvaluationData
) -> None:
    seen = 0

    def count(module: Any, _: Any, output: torch.Tensor) -> None:
        nonlocal seen
        seen += len(output)

    plain = {"detectors": "max_softmax", "neighbours": 10}
    found = evaluate(predictor, data, changed(ONLY, {"anomaly": plain}))
    predictor.model.classifier.register_forward_hook(count)
    again = evaluate(predictor, data, ONLY)
    # Each row once, but for dev, which the task had answered before; probing takes a row or two.
    assert data.fit is not None
    rows = 2 * len(data.dev) + len(data.anomaly["odd"]) + len(data.fit)
    assert rows <= seen <= rows + 10
    chosen = [
        [block for block in to_blocks(each.rows) if block.condition == Condition("anomaly", "odd")]
        for each in (found, again)
    ]
    assert chosen[0][0].probabilities == pytest.approx(chosen[1][0].probabilities, abs=1e-6)
    assert found.truncated == again.truncated


def test_predictions_stand_in_for_labels_that_are_not_there(
    predictor: ClassifierPredictor, data: EvaluationData, examples_of: Any
) -> None:
    bare = examples_of("fit", rows=40, kind="unlabelled")
    logits = predictor.predict(bare).logits
    assert logits is not None
    # The random head answers one class only.
    with torch.no_grad():
        predictor.model.classifier.bias[0] += float(np.median(logits[:, 1] - logits[:, 0]))
    said = predictor.predict(bare).prediction
    assert 0 < said.sum() < 40
    labelled = Examples("fit", bare.text, labels=said.astype(int).tolist(), kind="classification")
    without, with_labels = (
        evaluate(predictor, EvaluationData(data.dev, anomaly=data.anomaly, fit=fit), ONLY)
        for fit in (bare, labelled)
    )
    assert without.rows.equals(with_labels.rows)
    other = evaluate(predictor, data, ONLY)
    assert not np.allclose(
        values(other, "odd", "mahalanobis"), values(without, "odd", "mahalanobis")
    )


def test_a_row_that_is_scored_does_not_teach(
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


def test_only_the_detectors_that_were_asked_for_are_measured(
    predictor: ClassifierPredictor, data: EvaluationData
) -> None:
    found = evaluate(predictor, data, changed(ONLY, {"anomaly": {"detectors": "knn"}}))
    assert {e["condition"] for e in found.scores if e["perspective"] == "anomaly"} == {"knn"}
    with pytest.raises(ValueError, match="'max_softmax', 'max_logit', 'energy'"):
        EvaluationSettings(anomaly={"detectors": ("odin",)})


@pytest.mark.parametrize(
    ("change", "left", "words"),
    [
        ({"fit": None}, ("clean", "max_logit", "energy"), "there are no ordinary rows"),
        (
            {"anomaly": {"neighbours": 41}},
            DETECTORS[:4],
            "there are 40 rows, and neighbour number 41",
        ),
    ],
    ids=["no rows", "too few rows"],
)
def test_a_detector_that_cannot_be_computed_is_left_out_with_a_notice(
    predictor: ClassifierPredictor,
    data: EvaluationData,
    change: dict[str, Any],
    left: tuple[str, ...],
    words: str,
) -> None:
    settings = changed(ONLY, {k: v for k, v in change.items() if k != "fit"})
    fit = change.get("fit", data.fit)
    found = evaluate(predictor, EvaluationData(data.dev, anomaly=data.anomaly, fit=fit), settings)
    told = {e["condition"]: 0 for e in found.scores if e["perspective"] == "anomaly"}
    assert tuple(told) == left
    assert any("'knn' is left out" in n and words in n for n in found.notices)


def test_a_bare_function_has_the_detectors_of_its_answers(data: EvaluationData) -> None:
    shares = CallablePredictor(lambda texts: [[0.3, 0.7]] * len(texts), gives="probabilities")
    found = evaluate(shares, data, ONLY)
    assert {e["condition"] for e in found.scores if e["perspective"] == "anomaly"} == {"clean"}
    said = [notice for notice in found.notices if "is left out" in notice]
    assert len(said) == 4
    assert "needs logits, and the predictor gives probabilities" in said[0]
    assert "hidden states of a CallablePredictor cannot be read" in said[3]


def test_a_head_that_reads_nothing_leaves_the_states_out(
    model: Any, tokenizer: Any, data: EvaluationData
) -> None:
    with torch.no_grad():
        model.classifier.weight.zero_()
    found = evaluate(ClassifierPredictor(model, tokenizer, max_length=64), data, ONLY)
    conditions = {e["condition"] for e in found.scores if e["perspective"] == "anomaly"}
    assert conditions == {"clean", "max_logit", "energy"}
    assert any("hidden states cannot be read" in notice for notice in found.notices)


def test_a_regression_has_the_detectors_of_its_states(
    model_of: Any, tokenizer: Any, data: EvaluationData, examples_of: Any
) -> None:
    predictor = ClassifierPredictor(model_of(classes=1), tokenizer, max_length=64)
    found = evaluate(
        predictor,
        EvaluationData(
            examples_of(kind="regression"),
            anomaly=data.anomaly,
            metric="pearson",
            fit=examples_of("fit", rows=40, kind="regression"),
        ),
        ONLY,
    )
    told = {e["condition"]: e for e in found.scores if e["perspective"] == "anomaly"}
    assert set(told) == {"clean", "mahalanobis", "knn"}
    assert told["clean"]["reason"] == "a regression gives no probabilities"
    assert told["knn"]["value"] is not None


def test_without_anomalies_nothing_is_measured_or_said(
    predictor: ClassifierPredictor, data: EvaluationData
) -> None:
    found = evaluate(predictor, EvaluationData(data.dev), ONLY)
    assert found.notices == ()
    assert {e["perspective"] for e in found.scores} == {"task"}
