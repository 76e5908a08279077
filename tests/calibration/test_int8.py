"""The 8-bit copy of a checkpoint: made by `calibrate`, run by `predict`, `serve` and Python."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from temper.calibration.classifier import Classifier
from temper.checkpoints.checkpoint import Checkpoint
from temper.data.examples import Examples
from temper.errors import CheckpointError, SettingError, TemperError
from temper.evaluation.loading import load_int8_predictor, load_predictor
from temper.evaluation.predictor import StateReader
from temper.models.hf import load_classifier
from tests.cli.calls import call, refused, succeed
from tests.cli.tiny_project import make_model, sentences, write_csv

TEXTS = [text for text, _ in sentences(30)]


def held_out(model: Path, file: Path, count: int = 60) -> Path:
    """Write rows of which the model gets every fifth wrong."""
    texts = [text for text, _ in sentences(count, thing="it")]
    result = load_predictor(Checkpoint.of(model), device="cpu").predict(Examples("h", texts))
    names = ("negative", "positive")
    labels = [
        names[int(best) ^ (row % 5 == 0)] for row, best in enumerate(result.prediction.astype(int))
    ]
    return write_csv(file, list(zip(texts, labels, strict=True)))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a checkpoint with a calibration of its own and an 8-bit copy."""
    for package in ("onnx", "onnxruntime", "onnxscript"):
        pytest.importorskip(package, reason="needs the extra onnx")
    folder = make_model(tmp_path_factory.mktemp("int8") / "tiny")
    rows = held_out(folder, folder.parent / "held_out.csv")
    wanted = ("calibrate", folder, "--data", rows, "--coverage", ".8", "--false-alarms", ".1")
    succeed(*wanted, "--device", "cpu")
    made = json.loads(succeed(*wanted, "--device", "cpu", "--backend", "int8", "--json").stdout)
    assert made == json.loads((folder / "int8" / "calibration.json").read_text(encoding="utf-8"))
    assert made["int8"]["rows"] == made["held_out"]["fit"] == 30
    assert made["int8"]["same_label"] == 1.0
    return folder


@pytest.fixture
def copied(model: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(model, tmp_path / "copy"))


@pytest.mark.slow
def test_int8_predictions_are_close_to_fp32_and_independent_of_the_batch(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint, examples = Checkpoint.of(model), Examples("texts", TEXTS)
    reader = load_predictor(checkpoint, device="cpu")
    assert isinstance(reader, StateReader)
    wanted, states = reader.predict_with_states(examples)
    predictor = load_int8_predictor(checkpoint)
    result, near = predictor.predict_with_states(examples)
    assert result.probabilities == pytest.approx(wanted.probabilities, abs=0.05)
    assert (result.probabilities != wanted.probabilities).any()
    assert near.shape == states.shape
    assert np.abs(near - states).max() < 0.05 * np.abs(states).max()
    for threads in (1, 3):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        again = predictor.predict(Examples("texts", TEXTS[::-1]))
        np.testing.assert_array_equal(again.probabilities[::-1], result.probabilities)
    alone = [predictor.predict(Examples("text", [text])).probabilities[0] for text in TEXTS]
    np.testing.assert_array_equal(alone, result.probabilities)


@pytest.mark.slow
def test_int8_is_calibrated_on_its_own_predictions_only(model: Path) -> None:
    plain, copy = Classifier.load(model, device="cpu"), Classifier.load(model, backend="int8")
    assert copy.calibration is not None
    assert plain.calibration is not None
    held = copy.calibration.held_out
    assert held is not None
    rows = (model.parent / "held_out.csv").read_text(encoding="utf-8").splitlines()[1:]
    own = copy.predictor.predict(Examples("h", [row.rpartition(",")[0] for row in rows])).logits
    assert own is not None
    assert held.prediction.logits is not None
    assert {*map(tuple, held.prediction.logits)} <= {*map(tuple, own)}
    assert copy.calibration.temperature != plain.calibration.temperature
    predictions, logits_of = copy(TEXTS), copy.predictor.predict(Examples("t", TEXTS)).logits
    assert logits_of is not None
    for each, logits in zip(predictions, logits_of, strict=True):
        scaled = np.exp(logits / copy.calibration.temperature)
        assert list(each.probabilities.values()) == pytest.approx(scaled / scaled.sum())
    assert {each.anomalous for each in predictions} <= {True, False}
    assert predictions.shift is not None


@pytest.mark.slow
def test_the_command_runs_int8_and_reports_unsupported_options(copied: Path) -> None:
    text = "\n".join(TEXTS)
    lines = succeed("predict", copied, "--backend", "int8", text=text).stdout.splitlines()
    wanted = [each.record() for each in Classifier.load(copied, backend="int8")(TEXTS)]
    assert [{**json.loads(line), "text": ""} for line in lines] == [
        {"text": "", **row} for row in wanted
    ]
    with pytest.raises(SettingError, match="runs on the CPU"):
        Classifier.load(copied, backend="int8", device="cuda")
    refused(call("predict", copied, "--backend", "int4", "--text", "a"), "backend", "int8")
    output = succeed("calibrate", copied, "--remove", "--backend", "int8").stdout
    assert str(copied / "int8") in output
    assert (copied / "calibration.json").is_file()
    refused(call("predict", copied, "--backend", "int8", "--text", "a"), "--backend int8")
    refused(call("calibrate", copied, "--remove", "--backend", "int8"), "8-bit")


@pytest.mark.slow
def test_a_damaged_or_outdated_int8_copy_raises_an_error(copied: Path) -> None:
    network, _ = load_classifier(str(copied))
    with torch.no_grad():
        network.classifier.bias += 1
    file = copied / "int8" / "model.onnx"
    whole = file.read_bytes()
    file.write_bytes(whole[:-1])
    with pytest.raises(CheckpointError, match="damaged"):
        Classifier.load(copied, backend="int8")
    file.write_bytes(whole)
    calibration = copied / "int8" / "calibration.json"
    content = calibration.read_bytes()
    calibration.unlink()
    # That of the checkpoint in fp32 does not take its place.
    assert Classifier.load(copied, backend="int8").calibration is None
    calibration.write_bytes(content)
    network.save_pretrained(copied)
    with pytest.raises(CheckpointError, match="weights that differ"):
        Classifier.load(copied, backend="int8")


@pytest.mark.parametrize("kind", ["none", "code"])
def test_without_an_int8_copy_the_error_names_the_command(kind: str, tmp_path: Path) -> None:
    name: Any = make_model(tmp_path / "tiny")
    if kind == "code":
        name = f"{tmp_path / 'code.py'}:ask"
        (tmp_path / "code.py").write_text("def ask(texts):\n    return [[1.0, 0.0]] * len(texts)\n")
    with pytest.raises(SettingError, match="calibrate .* --backend int8"):
        Classifier.load(name, backend="int8")


def test_missing_packages_are_named_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_model(tmp_path / "tiny")
    rows = write_csv(tmp_path / "rows.csv", [("a", "positive"), ("b", "negative")])
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    refused(
        call("calibrate", folder, "--data", rows, "--backend", "int8", "--device", "cpu"),
        "onnxruntime",
        "pip install 'onnx>=",
    )
    assert not (folder / "int8").exists()


@pytest.mark.slow
def test_int8_supports_regression_and_raises_an_error_for_several_labels(tmp_path: Path) -> None:
    for package in ("onnx", "onnxruntime", "onnxscript"):
        pytest.importorskip(package, reason="needs the extra onnx")
    from transformers import AutoModelForSequenceClassification

    folder = make_model(tmp_path / "tiny")
    network, tokenizer = load_classifier(str(folder))
    config = network.config
    config.update({"num_labels": 1, "problem_type": "regression"})
    regression = AutoModelForSequenceClassification.from_config(config)
    with torch.no_grad():
        for name, weight in regression.named_parameters():
            if weight.dim() > 1:  # As random as untrained, and large enough for values that differ.
                weight.normal_(0, 1 if "embeddings" in name else 0.3)
    regression.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    texts = [text for text, _ in sentences(120, thing="it")]
    rows = write_csv(tmp_path / "rows.csv", [(t, str(len(t) / 100)) for t in texts])
    succeed("calibrate", folder, "--data", rows, "--device", "cpu", "--backend", "int8")
    plain = load_predictor(Checkpoint.of(folder), device="cpu").predict(Examples("t", TEXTS))
    predictions = Classifier.load(folder, backend="int8")(TEXTS)
    values = np.asarray([each.value for each in predictions], dtype=np.float64)
    error = np.sqrt(np.mean((values - plain.prediction) ** 2))
    # Coarse products may cause a tenth of the standard deviation; fine ones add to it.
    assert error < 0.2 * plain.prediction.std()
    ends = np.asarray([each.interval for each in predictions], dtype=np.float64)
    assert (ends[:, 0] < values).all()
    assert (values < ends[:, 1]).all()
    config.update({"num_labels": 3, "problem_type": "multi_label_classification"})
    AutoModelForSequenceClassification.from_config(config).save_pretrained(folder)
    with pytest.raises(TemperError):
        Classifier.load(folder, backend="int8")
    refused(
        call("calibrate", folder, "--data", rows, "--device", "cpu", "--backend", "int8"),
        "several labels",
    )
