"""Texts with several labels, from a file to a prediction."""

from __future__ import annotations

import csv
import io
import json
import shutil
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch

from temper import Classifier
from temper.data.examples import Examples
from temper.export.export import Likeness
from temper.models.hf import load_classifier
from temper.models.standalone.pipeline import Pipeline
from temper.training.config import RunConfig
from temper.training.prepared import make_network
from tests.cli.calls import call, refused, succeed

ONNX = ("onnx", "onnxruntime", "onnxscript")
WORDS = {"good": "praise", "very": "strong"}


def write_labeled(path: Path, *, joined: bool, thing: str = "film") -> Path:
    """Write texts whose labels are the words in them: as lists, or joined by a bar."""
    rows = []
    for number in range(60):
        words = [word for index, word in enumerate(WORDS) if number >> index & 1]
        text = " ".join((f"the {thing} was", *words, *["and"] * (number // 4)))
        rows.append((text, [WORDS[word] for word in words]))
    if joined:
        lines = [["text", "labels"], *([text, "|".join(labels)] for text, labels in rows)]
        with path.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows(lines)
    else:
        lines = [json.dumps({"text": text, "labels": labels}) for text, labels in rows]
        path.write_text("\n".join(lines), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def run(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("several")
    data = write_labeled(folder / "rows.jsonl", joined=False)
    succeed(
        "train", "--model", tiny_model, "--data", data, "--method", "plain", "--epochs", "2",
        "--learning-rate", "3e-3", "--set", "train.new_head=true", "--device", "cpu",
        "--out", folder / "run",
    )  # fmt: skip
    return folder / "run"


def applying(probabilities: dict[str, float]) -> list[str]:
    return [name for name, probability in probabilities.items() if probability > 0.5]


def test_a_run_predicts_each_label_by_its_sigmoid(run: Path) -> None:
    record = json.loads((run / "run.json").read_text(encoding="utf-8"))
    labels = ["praise", "strong"]
    assert record["task"] == {"kind": "multi_label", "metric": "map", "labels": labels}
    assert 0 < record["epochs"]["kept"]["dev"] <= 1
    texts = ["the film was very good", "the film was", "the film was very"]
    predictions = Classifier.load(run)(texts)
    model, tokenizer = load_classifier(str(run))
    with torch.no_grad():
        logits = model(**tokenizer(texts, padding=True, return_tensors="pt")).logits
    for prediction, expected in zip(predictions, logits.sigmoid().tolist(), strict=True):
        assert list(prediction.probabilities) == labels
        assert list(prediction.probabilities.values()) == pytest.approx(expected, abs=1e-5)
        assert list(prediction.labels or ()) == applying(prediction.probabilities)
        assert prediction.label is None


def test_predictions_are_written_with_a_column_per_label(run: Path, tmp_path: Path) -> None:
    out, text = tmp_path / "predictions.csv", "the film was very good"
    succeed("predict", run, "--text", text, "--out", out)
    (row,) = csv.DictReader(io.StringIO(out.read_text(encoding="utf-8")))
    result = {name: float(row[f"probability:{name}"]) for name in ("praise", "strong")}
    assert row["labels"] == "|".join(applying(result))
    assert ", ".join(applying(result)) in succeed("predict", run, "--text", text).stdout


def test_a_file_with_joined_labels_trains_after_a_checkpoint_with_them(
    run: Path, tmp_path: Path
) -> None:
    data = write_labeled(tmp_path / "rows.csv", joined=True)
    output = succeed(
        "train", "--model", run, "--data", data, "--set", "train.max_steps=1",
        "--set", "data.kind=multi_label", "--set", "train.class_weights=balanced",
        "--device", "cpu", "--out", tmp_path / "run",
    )  # fmt: skip
    assert "new head" not in output.stderr
    record = json.loads((tmp_path / "run" / "run.json").read_text(encoding="utf-8"))
    assert record["task"]["labels"] == ["praise", "strong"]


@pytest.mark.parametrize("options", [("--threshold", "f1"), ("--coverage", "0.9")])
def test_an_export_predicts_as_the_calibrated_model_does(
    run: Path, tmp_path: Path, options: tuple[str, ...]
) -> None:
    model = Path(shutil.copytree(run, tmp_path / "run"))
    data = write_labeled(tmp_path / "other.jsonl", joined=False, thing="phone")
    succeed("calibrate", model, "--data", data, "--device", "cpu", *options)
    formats = [None, "model.onnx"] if all(map(find_spec, ONNX)) else [None]
    onnx = ["--onnx"] if len(formats) > 1 else []
    succeed("export", model, "--out", tmp_path / "out", "--data", data, *onnx)
    record = json.loads((tmp_path / "out" / "export.json").read_text())
    texts = [json.loads(line)["text"] for line in data.read_text().splitlines()]
    expected = [prediction.record() for prediction in Classifier.load(model)(texts)]
    for file in formats:
        predictions = Pipeline(tmp_path / "out", file)(texts)
        likeness = Likeness.of(expected, predictions)
        assert likeness.largest_difference < 1e-4
        assert likeness.alike >= len(texts) - 2  # ties: these rows set the thresholds
    labels = [json.loads(line)["labels"] for line in data.read_text().splitlines()]
    right = sum(each["labels"] == label for each, label in zip(expected, labels, strict=True))
    assert record["likeness"]["model"]["accuracy"] == right / len(texts)


def test_commands_for_one_label_reject_the_model(run: Path) -> None:
    data = run.parent / "rows.jsonl"
    refused(call("calibrate", run, "--data", data, "--backend", "int8"), "several labels")


def test_commands_for_one_label_reject_the_rows(
    run: Path, tiny_model: Path, tmp_path: Path
) -> None:
    data = run.parent / "rows.jsonl"
    study = call("compare", "--model", tiny_model, "--data", data, "--out", tmp_path / "study")
    refused(study, "several labels", "rows.jsonl")
    refused(call("check-labels", data, "--model", tiny_model), "several labels", "rows.jsonl")


def test_a_new_head_begins_with_the_log_odds_of_each_label(run: Path, tiny_model: Path) -> None:
    counts = np.array([30, 20])
    labels = [[int(row < count) for count in counts] for row in range(60)]
    rows = Examples(
        "train", ["a"] * 60, labels=labels, label_names=("praise", "strong"), kind="multi_label"
    )
    names = list(rows.label_names or ())
    tree = {"model": str(tiny_model), "data": {"source": "rows.jsonl"}}
    for train in ({}, {"lora": {"rank": 2}}):
        config = RunConfig.of({**tree, "train": train})
        model, _, _ = make_network(config, rows, labels=names, new_head=True)
        weights = dict(model.named_parameters())
        biases = [weights[name] for name in weights if name.endswith("bias")]
        biases = [bias for bias in biases if len(bias) == len(names)]
        assert biases
        for bias in biases:
            expected = np.log((counts + 1) / (61 - counts))
            np.testing.assert_allclose(bias.detach().numpy(), expected, atol=1e-6)
    trained, _ = load_classifier(str(run))
    model, _, _ = make_network(RunConfig.of({**tree, "model": str(run)}), rows, labels=names)
    assert torch.equal(model.classifier.bias, trained.classifier.bias)
