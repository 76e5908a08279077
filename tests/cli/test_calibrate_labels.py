"""``temper calibrate`` for several labels, and decision thresholds of two classes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from scipy.special import expit, logit
from sklearn.metrics import accuracy_score, average_precision_score, f1_score
from transformers import AutoTokenizer, BertForSequenceClassification

from temper import Classifier
from temper.checkpoints.checkpoint import Checkpoint
from temper.data.examples import Examples
from temper.errors import SettingError
from temper.evaluation.folder import read
from temper.evaluation.loading import load_predictor
from temper.evaluation.prediction import Prediction
from tests.cli.calls import call, json_output, refused, succeed
from tests.cli.tiny_project import OTHERS, sentences, write_csv

NAMES = ("praise", "strong")


@pytest.fixture(scope="module")
def of_labels(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a model of two labels with logits of both signs, far from 0."""
    folder = tmp_path_factory.mktemp("labels") / "model"
    names = dict(enumerate(NAMES))
    model = BertForSequenceClassification.from_pretrained(
        tiny_model, problem_type="multi_label_classification", id2label=names,
        label2id={name: index for index, name in names.items()},
    )  # fmt: skip
    with torch.no_grad():
        model.classifier.weight *= 300
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(tiny_model).save_pretrained(folder)
    with torch.no_grad():
        model.classifier.bias -= torch.tensor(logits_of(folder, texts_of(200)).mean(axis=0))
    model.save_pretrained(folder)
    return folder


@pytest.fixture
def run(of_labels: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(of_labels, tmp_path / "run"))


def texts_of(rows: int) -> list[str]:
    texts = []
    for number in range(rows):
        words = [word for index, word in enumerate(OTHERS) if number >> index & 1]
        texts.append(" ".join(("it was", *words)))
    return texts


def held_out(run: Path, path: Path, rows: int) -> tuple[list[str], np.ndarray]:
    """Write texts whose labels the model's logits rank well; some have none."""
    texts = texts_of(rows)
    logits = logits_of(run, texts)
    truth = expit(1.5 * logits / np.abs(logits).mean(axis=0))
    applies = np.random.default_rng(0).random((rows, 2)) < truth
    lines = [
        json.dumps({"text": text, "labels": [n for n, y in zip(NAMES, own, strict=True) if y]})
        for text, own in zip(texts, applies, strict=True)
    ]
    path.write_text("\n".join(lines), encoding="utf-8")
    return texts, applies


def logits_of(run: Path, texts: list[str]) -> np.ndarray[Any, Any]:
    result = load_predictor(Checkpoint.of(run), device="cpu").predict(Examples("h", texts)).logits
    assert result is not None
    return result


def best_f1(truth: np.ndarray[Any, Any], chances: np.ndarray[Any, Any]) -> float:
    return max(f1_score(truth, chances > cut) for cut in [0.5, *(chances - 1e-12)])


def test_temperatures_and_thresholds_of_labels_from_a_file_to_a_prediction(
    run: Path, tmp_path: Path
) -> None:
    texts, applies = held_out(run, tmp_path / "held_out.jsonl", 60)
    made = json_output(
        "calibrate", run, "--data", tmp_path / "held_out.jsonl", "--threshold", "f1",
        "--device", "cpu",
    )  # fmt: skip
    assert made["held_out"]["fit"] == 60
    assert made["decision"]["rule"] == "f1"
    logits = logits_of(run, texts)
    chances = expit(logits / made["temperature"])
    for label, (temperature, threshold) in enumerate(
        zip(made["temperature"], made["decision"]["thresholds"], strict=True)
    ):
        sign = np.where(applies[:, label], -1.0, 1.0)

        def nll(log_t: float, sign: Any = sign, own: Any = logits[:, label]) -> float:
            return float(np.logaddexp(0, sign * own / np.exp(log_t)).mean())

        best = minimize_scalar(nll, bounds=(-8, 8), options={"xatol": 1e-10})
        assert nll(np.log(temperature)) == pytest.approx(best.fun, abs=1e-9)
        result = f1_score(applies[:, label], chances[:, label] > threshold)
        assert result == pytest.approx(best_f1(applies[:, label], chances[:, label]))
    decided = chances > made["decision"]["thresholds"]
    assert made["decision"]["f1"]["after"] == pytest.approx(
        f1_score(applies, decided, average="macro")
    )
    assert made["decision"]["f1"]["before"] == pytest.approx(
        f1_score(applies, logits > 0, average="macro")
    )
    predictions = Classifier.load(run, device="cpu")(texts)
    for row, own, wanted in zip(predictions, chances, decided, strict=True):
        assert list(row.probabilities.values()) == pytest.approx(own.tolist(), abs=1e-5)
        assert list(row.labels or ()) == [n for n, y in zip(NAMES, wanted, strict=True) if y]
    shown = succeed("calibrate", run, "--data", tmp_path / "held_out.jsonl", "--device", "cpu")
    assert "Temperatures of 2 labels" in shown.stdout
    assert "class-wise ECE" in shown.stdout


def test_an_evaluation_decides_by_the_thresholds_and_scores_labels(
    run: Path, tiny_data: Path, tmp_path: Path
) -> None:
    lines = ["text", *(f"{text} why" for text in texts_of(40))]
    (tmp_path / "fit.csv").write_text("\n".join(lines), encoding="utf-8")
    texts, applies = held_out(run, tmp_path / "rows.jsonl", 60)
    words = ("--data", tmp_path / "rows.jsonl", "--device", "cpu")

    def evaluated(name: str) -> dict[str, float]:
        result = json_output(
            "evaluate", run, *words, "--perspectives", "task,calibration,embedding_noise,anomaly",
            "--anomaly", f"odd={tiny_data / 'anomaly.csv'}", "--set",
            f"sets.fit={tmp_path / 'fit.csv'}", "--set", "evaluate.bootstrap=0",
            "--out", tmp_path / name,
        )  # fmt: skip
        (detected,) = (e for e in result["scores"] if e["name"] == "auroc")
        assert detected["condition"] == "mahalanobis"
        return {e["name"]: e["value"] for e in result["scores"] if e["condition"] == "clean"}

    logits = logits_of(run, texts)

    def scores(decided: Any) -> dict[str, float]:
        chances = expit(logits)
        errors = []
        for y, p in zip(applies.T, chances.T, strict=True):
            bins = np.minimum((p * 15).astype(int), 14)
            gaps = [abs((y[bins == b] - p[bins == b]).sum()) for b in range(15)]
            errors.append(sum(gaps) / len(y))
        return {
            "micro_f1": f1_score(applies, decided, average="micro"),
            "label_f1": f1_score(applies, decided, average="macro"),
            "exact_match": accuracy_score(applies, decided),
            "map": average_precision_score(applies, chances, average="macro"),
            "classwise_ece": float(np.mean(errors)),
            "nll": float(np.logaddexp(0, np.where(applies, -1, 1) * logits).mean()),
        }

    before = evaluated("before")
    assert before == pytest.approx(scores(logits > 0), abs=1e-5)
    made = json_output("calibrate", run, *words, "--threshold", "cost=1:9")
    limits = np.asarray(made["temperature"]) * logit(made["decision"]["thresholds"])
    after = evaluated("after")
    assert after == pytest.approx(scores(logits > limits), abs=1e-5)
    assert ((logits > 0) != (logits > limits)).any()
    # Scores follow from the rows alone.
    succeed("verify", tmp_path / "after")
    rows = read(tmp_path / "after").rows.to_pandas()
    clean = rows[rows["perspective"] == "task"]
    result = clean[[f"predicted:{name}" for name in NAMES]].to_numpy()
    assert (result == (logits > limits)).all()
    changed = ("evaluate", run, *words, "--out", tmp_path / "before")
    refused(call(*changed, "--perspectives", "task"), "another evaluation")


def test_sets_miss_few_labels_and_texts_of_elsewhere_are_flagged(run: Path, tmp_path: Path) -> None:
    texts, applies = held_out(run, tmp_path / "held_out.jsonl", 240)
    made = json_output(
        "calibrate", run, "--data", tmp_path / "held_out.jsonl", "--coverage", ".8,.9",
        "--device", "cpu",
    )  # fmt: skip
    assert made["anomaly"]["detector"] == "mahalanobis"
    classifier = Classifier.load(run, device="cpu")
    predictions = classifier(texts, coverage=0.8)
    missed = [
        np.mean([name not in (row.set or ()) for name in own])
        for row, y in zip(predictions, applies, strict=True)
        if (own := [name for name, applied in zip(NAMES, y, strict=True) if applied])
    ]
    # Half of these rows set the threshold: 0.2 on average, and 0.06 are two standard errors.
    assert np.mean(missed) <= 0.26
    assert all(row.anomaly is not None and row.anomalous is not None for row in predictions)
    assert predictions.scores is None
    rows = classifier(texts, coverage=0.9)
    assert sum(len(r.set or ()) for r in rows) >= sum(len(r.set or ()) for r in predictions)
    assert [r.abstain for r in classifier(texts[100:103], abstain="anomaly")] == ["", "", ""]
    for asked in ({"abstain": "set>1"}, {"max_risk": 0.2}):
        with pytest.raises(SettingError, match="one class per text"):
            classifier(texts[:1], **asked)
    by_label = json_output(
        "calibrate", run, "--data", tmp_path / "held_out.jsonl", "--coverage", ".8",
        "--by", "class", "--device", "cpu",
    )  # fmt: skip
    assert len(by_label["sets"]["thresholds"]["0.8"]["threshold"]) == 2


@pytest.fixture
def of_two(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "of_two"))


@pytest.fixture
def reviews(of_two: Path, tmp_path: Path) -> tuple[Path, np.ndarray[Any, Any], Prediction]:
    """Return a file, its labels and the model's predictions: surer ones are right more often."""
    texts = [text for text, _ in sentences(40, thing="it")]
    result = load_predictor(Checkpoint.of(of_two), device="cpu").predict(Examples("h", texts))
    assert result.logits is not None
    margins = result.logits[:, 1] - result.logits[:, 0]
    draws = np.random.default_rng(0)
    labels = draws.random(40) < expit(3 * (margins - margins.mean()) / margins.std())
    names = np.array(["negative", "positive"])[labels.astype(int)]
    return write_csv(tmp_path / "h.csv", list(zip(texts, names, strict=True))), labels, result


@pytest.mark.parametrize("rule", ["f1", "recall=0.95", "cost=1:9"])
def test_the_threshold_of_two_classes_from_a_file_to_a_prediction(
    of_two: Path, reviews: tuple[Path, Any, Prediction], tmp_path: Path, rule: str
) -> None:
    data, labels, own = reviews
    made = json_output("calibrate", of_two, "--data", data, "--threshold", rule, "--device", "cpu")
    (threshold,) = made["decision"]["thresholds"]
    assert own.logits is not None
    chances = expit((own.logits[:, 1] - own.logits[:, 0]) / made["temperature"])
    wanted = chances > threshold
    name, _, _ = rule.partition("=")
    if name == "f1":
        assert f1_score(labels, wanted) == pytest.approx(best_f1(labels, chances))
    elif name == "recall":
        assert wanted[labels].mean() >= 0.95
        higher = min(chances[wanted])
        assert (chances > higher)[labels].mean() < 0.95 or not labels[chances == higher].any()
    assert made["decision"]["recall"]["after"] == pytest.approx(wanted[labels].mean())
    rows = json_output("predict", of_two, "--data", data, "--device", "cpu")
    assert [row["label"] == "positive" for row in rows] == wanted.tolist()
    result = json_output(
        "evaluate", of_two, "--data", data, "--perspectives", "task,embedding_attack",
        "--set", "evaluate.bootstrap=0", "--set", "evaluate.embedding_attack.radii=0.5",
        "--device", "cpu", "--out", tmp_path / "e",
    )  # fmt: skip
    table = read(tmp_path / "e").rows.to_pandas()
    clean = table[table["condition"] == "clean"]
    assert (clean["prediction"] == wanted).all()
    # An attack judges by the decision: it never makes a wrong one right.
    for condition in ("fgm", "pgd"):
        attacked = table[table["condition"] == condition]
        wrong = (attacked["prediction"] != attacked["label"]).to_numpy()
        assert (wrong >= (wanted != labels)).all()
    assert any("decision thresholds are applied" in notice for notice in result["notices"])
    succeed("export", of_two, "--data", data, "--out", tmp_path / "out")


def test_thresholds_that_cannot_be_chosen_raise_an_error(
    of_two: Path, reviews: tuple[Path, Any, Prediction]
) -> None:
    data, _, own = reviews
    assert own.logits is not None
    words = ("calibrate", of_two, "--data", data, "--device", "cpu", "--threshold")
    refused(call(*words, "f2"), "cost=FP:FN")
    lines = data.read_text(encoding="utf-8").splitlines()
    surest = 1 + int(np.diff(own.logits).argmax())
    lines[surest] = lines[surest].replace("positive", "negative")
    data.write_text("\n".join(lines), encoding="utf-8")
    refused(call(*words, "precision=1"), "has a precision of 1")
