"""``evaluate`` and ``predict`` on functions and scikit-learn pipelines, from end to end."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import skops.io
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

from tests.cli.calls import call, json_output, succeed
from tests.cli.tiny_project import GOOD, sentences

CODE = f"""
def predict(texts):
    return [[0.2, 0.8] if set(text.split()) & set({GOOD}) else [0.7, 0.3] for text in texts]
"""
FEW = ("--set", "evaluate.bootstrap=0", "--perspectives", "task,embedding_attack,token_corruption")


@pytest.fixture
def code(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "planted_words.py").write_text(CODE, encoding="utf-8")
    yield tmp_path / "planted_words.py"
    sys.modules.pop("planted_words", None)


def test_perspectives_that_a_function_does_not_support_are_skipped_and_reported(
    code: Path, tiny_data: Path, tmp_path: Path
) -> None:
    out = tmp_path / "evaluation"
    words = ("evaluate", f"{code}:predict", "--data", tiny_data / "reviews", "--out", out, *FEW)
    messages = ("--gives", "probabilities", "--label-names", "negative,positive")
    result = succeed(*words, *messages)
    for name in ("embedding_attack", "token_corruption"):
        assert f"Not measured: {name} needs" in result.stderr
    scores = json.loads((out / "scores.json").read_text())
    assert set(scores["skipped"]) == {"embedding_attack", "token_corruption"}
    again = json_output(*words, *messages)
    assert again["skipped"] == scores["skipped"]
    assert {(score["perspective"], score["value"]) for score in again["scores"]} == {("task", 1.0)}
    result = call(*words, "--gives", "logits", "--label-names", "negative,positive")
    changed = "predictor.gives: 'probabilities' -> 'logits'"
    assert f"{out} has another evaluation: {changed}. Choose another --out" in result.stderr


def accuracy(result: Any) -> list[float]:
    return [score["value"] for score in result["scores"] if score["name"] == "accuracy"]


def test_a_predictor_without_names_is_not_measured_on_words(
    code: Path, tiny_data: Path, tmp_path: Path
) -> None:
    words = (
        "evaluate", f"{code}:predict", "--gives", "probabilities", "--data", tiny_data / "reviews",
        "--out", tmp_path / "evaluation", *FEW,
    )  # fmt: skip
    result = call(*words)
    assert result.exit_code == 2
    assert "the labels negative, positive" in result.stderr
    assert "--label-names" in result.stderr
    # Two names in the other order swap the predicted classes.
    assert accuracy(json_output(*words, "--label-names", "positive,negative")) == [0.0]


def test_the_names_of_a_functions_classes_are_mapped_to_the_datas(
    code: Path, tiny_data: Path, tmp_path: Path
) -> None:
    messages = ("--gives", "probabilities", "--data", tiny_data / "reviews", *FEW)
    given = ("--label-names", "NO,YES", "--label-map", "YES=positive,NO=negative")
    results = json_output(
        "evaluate", f"{code}:predict", *messages, "--out", tmp_path / "one", *given
    )
    assert accuracy(results) == [1.0]
    result = call("evaluate", f"{code}:predict", *messages, "--out", tmp_path / "two", *given[2:])
    assert "Pass --label-names" in result.stderr


def test_a_skops_file_is_evaluated_and_predicts(tiny_data: Path, tmp_path: Path) -> None:
    texts, labels = zip(*sentences(40), strict=True)
    chain = make_pipeline(CountVectorizer(), LogisticRegression()).fit(texts, labels)
    file = tmp_path / "model.skops"
    skops.io.dump(chain, file)
    results = json_output(
        "evaluate", file, "--data", tiny_data / "reviews", "--out", tmp_path / "evaluation", *FEW
    )
    assert results["task"]["labels"] == ["negative", "positive"]
    accuracy = [score["value"] for score in results["scores"] if score["name"] == "accuracy"]
    assert accuracy == [1.0]
    result = succeed("predict", file, "--data", "-", "--json", text="the film was awful\n")
    row: Any = json.loads(result.stdout)[0]
    assert row["label"] == "negative"
    assert row["probabilities"]["negative"] == pytest.approx(
        chain.predict_proba(["the film was awful"])[0, 0]
    )
