"""The pre-trained model is found by the run's metadata, or reported as missing."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from temper.checkpoints.checkpoint import Checkpoint
from temper.data.examples import Examples
from temper.errors import ModelError, SettingError
from temper.evaluation.evaluate import evaluation_key
from temper.evaluation.function import CallablePredictor
from temper.evaluation.loading import load_predictor, with_reference
from temper.evaluation.run import EvaluationData, evaluate
from temper.evaluation.sets import EvaluationSets
from temper.evaluation.settings import EvaluationSettings
from tests.evaluation.conftest import changed

SETTINGS = EvaluationSettings(
    perspectives=("representation",), representation={"batch": 4}, bootstrap=0
)
TEXTS = ["good film", "a bad film", "the phone is very fine", "why not", "it was awful", "great"]
SETS = EvaluationSets(
    EvaluationData(Examples("dev", TEXTS, labels=[1, 0, 1, 0, 0, 1], kind="classification"))
)


def trained(tiny_model: Path, folder: Path, **record: Any) -> Path:
    """Copy the model, move its last layer, and write what it was trained from."""
    shutil.copytree(tiny_model, folder)
    weights = load_file(folder / "model.safetensors")
    name = "bert.encoder.layer.1.output.dense.weight"
    torch.manual_seed(1)
    weights[name] = weights[name] + torch.randn_like(weights[name])
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    if record:
        (folder / "run.json").write_text(json.dumps(record), encoding="utf-8")
    return folder


def alignment(model: Path, settings: EvaluationSettings = SETTINGS) -> dict[int, float]:
    predictor = load_predictor(Checkpoint.of(model), max_length=32, device="cpu")
    sets = with_reference(SETS, Checkpoint.of(model), predictor, settings)
    result = evaluate(predictor, sets.data, settings)
    return {entry["parameters"]["layer"]: entry["value"] for entry in result.scores}


def test_a_run_is_compared_with_the_model_it_was_trained_from(
    tiny_model: Path, tmp_path: Path
) -> None:
    result = alignment(trained(tiny_model, tmp_path / "run", model=str(tiny_model)))
    # The second layer alone was moved.
    assert result[1] == pytest.approx(1.0, abs=1e-6)
    assert result[2] < 0.999


def test_a_named_reference_overrides_that_of_the_run(tiny_model: Path, tmp_path: Path) -> None:
    run = trained(tiny_model, tmp_path / "run", model="a/model-that-is-not-here")
    named = changed(SETTINGS, {"representation": {"reference": str(run)}})
    assert alignment(run, named) == pytest.approx({1: 1.0, 2: 1.0}, abs=1e-6)


def test_a_missing_recorded_reference_is_reported_and_a_named_one_raises_an_error(
    tiny_model: Path, tmp_path: Path
) -> None:
    gone = str(tmp_path / "gone")
    run = trained(tiny_model, tmp_path / "run", model=gone)
    predictor = load_predictor(Checkpoint.of(run), max_length=32, device="cpu")
    result = with_reference(SETS, Checkpoint.of(run), predictor, SETTINGS)
    assert result.data.reference is None
    assert f"The pre-trained model {gone!r} of {run} could not be loaded" in result.notices[0]
    named = changed(SETTINGS, {"representation": {"reference": gone}})
    with pytest.raises(ModelError, match="gone"):
        with_reference(SETS, Checkpoint.of(run), predictor, named)


def test_the_reference_is_loaded_only_if_a_perspective_reads_it(
    tiny_model: Path, tmp_path: Path
) -> None:
    run = trained(tiny_model, tmp_path / "run", model=str(tiny_model))
    predictor = load_predictor(Checkpoint.of(run), max_length=32, device="cpu")
    settings = EvaluationSettings(perspectives=("task",))
    assert with_reference(SETS, Checkpoint.of(run), predictor, settings) is SETS


def test_a_function_has_no_pre_trained_model() -> None:
    predictor = CallablePredictor(lambda texts: [[0.5, 0.5]] * len(texts), gives="probabilities")
    assert with_reference(SETS, Checkpoint("a.py:predict"), predictor, SETTINGS) is SETS
    named = changed(SETTINGS, {"representation": {"reference": "minilm"}})
    with pytest.raises(SettingError, match=r"a\.py:predict has no hidden states"):
        with_reference(SETS, Checkpoint("a.py:predict"), predictor, named)


def write(folder: Path, name: str, content: dict[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(json.dumps(content), encoding="utf-8")
    return folder


def test_every_kind_of_checkpoint_names_its_pre_trained_model(tmp_path: Path) -> None:
    base = write(tmp_path / "base", "config.json", {})
    run = write(tmp_path / "run", "run.json", {"model": "bert-base-uncased"})
    assert Checkpoint.of(run).pretrained == "bert-base-uncased"
    adapter = write(
        tmp_path / "adapter", "adapter_config.json", {"base_model_name_or_path": "minilm"}
    )
    assert Checkpoint.of(adapter).pretrained == "minilm"
    other = write(tmp_path / "other", "config.json", {"_name_or_path": str(base)})
    assert Checkpoint.of(other).pretrained == str(base)


def test_a_missing_own_or_distant_pre_trained_model_is_none(tmp_path: Path) -> None:
    own = tmp_path / "own"
    write(own, "config.json", {"_name_or_path": str(own)})
    assert Checkpoint.of(own).pretrained is None
    far = write(tmp_path / "far", "config.json", {"_name_or_path": "/mnt/elsewhere/model"})
    assert Checkpoint.of(far).pretrained is None
    silent = write(tmp_path / "silent", "config.json", {})
    assert Checkpoint.of(silent).pretrained is None
    assert Checkpoint("a/hub-id").pretrained is None


def test_the_key_of_an_evaluation_depends_on_the_weights_of_the_named_model(
    tiny_model: Path, tmp_path: Path
) -> None:
    base = trained(tiny_model, tmp_path / "base")
    named = changed(SETTINGS, {"representation": {"reference": str(base)}})
    before = evaluation_key("model", SETS, named, max_length=32)
    assert evaluation_key("model", SETS, named, max_length=32) == before
    assert evaluation_key("model", SETS, SETTINGS, max_length=32) != before
    (base / "model.safetensors").write_bytes(b"others")
    assert evaluation_key("model", SETS, named, max_length=32) != before


def test_a_named_reference_must_be_given_to_the_library(tiny_model: Path) -> None:
    predictor = load_predictor(Checkpoint.of(tiny_model), max_length=32, device="cpu")
    named = changed(SETTINGS, {"representation": {"reference": "minilm"}})
    with pytest.raises(SettingError, match=r"EvaluationData\(reference=\.\.\.\)"):
        evaluate(predictor, SETS.data, named)
