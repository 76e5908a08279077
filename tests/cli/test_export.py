"""`temper export`: the export needs no Temper and has the predictions of the model."""

from __future__ import annotations

import ast
import importlib.util
import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import temper
from temper.calibration.calibration import Calibration
from temper.calibration.files import FILE, write_calibration
from temper.export import export as exporting
from temper.export.export import PIPELINE, Likeness
from temper.models.standalone import pipeline, shift
from tests.cli.calls import call, json_output, refused, succeed
from tests.cli.tiny_project import sentences, write_csv

TEXTS = ["the film was good", "a", "it was " + "very " * 60 + "bad", "phone \u2605 unknown \x07"]
ASK = """
import json, sys
sys.modules["temper"] = None
from pipeline import Pipeline
print(json.dumps(Pipeline(batch_size=2)(json.loads(sys.argv[1]))))
"""


def asked_elsewhere(folder: Path, texts: list[str]) -> Any:
    """Ask an exported pipeline in a process that cannot import Temper."""
    made = subprocess.run(
        [sys.executable, "-c", ASK, json.dumps(texts)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": "", "HF_HUB_DISABLE_PROGRESS_BARS": "0"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "Loading weights" not in made.stderr
    return json.loads(made.stdout)


def asked(folder: Path, texts: list[str], pairs: list[str] | None = None, **options: Any) -> Any:
    """Ask what `pipeline.py` in a folder defines."""
    return exported(folder, **options)(texts, pairs)


def exported(folder: Path, **options: Any) -> Any:
    """Return the pipeline that the file in a folder defines."""
    spec = importlib.util.spec_from_file_location("pipeline", folder / PIPELINE)
    defined = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(defined)
    return defined.Pipeline(batch_size=2, **options)


def same(predictions: Any, others: Any) -> None:
    """Check that all fields of all predictions agree, numbers within 1e-6."""
    result = Likeness.of(predictions, others)
    assert result.alike == len(predictions) == len(others)
    assert result.largest_difference < 1e-6


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "run"))


def with_temperature(run: Path, value: float) -> None:
    details = {"temperature": value, "held_out": {"rows": 40}, "notices": []}
    write_calibration(run, Calibration(32, value), details)


def test_the_export_predicts_as_the_model_without_temper_installed(
    run: Path, tiny_data: Path, tmp_path: Path
) -> None:
    with_temperature(run, 0.25)
    out = tmp_path / "out"
    output = json_output("export", run, "--out", out, "--data", tiny_data / "reviews" / "dev.csv")
    wanted = [each.record() for each in temper.Classifier.load(str(run), device="cpu")(TEXTS)]
    same(wanted, asked_elsewhere(out, TEXTS))
    # The folder is a model of Temper's too, with the same calibration and length.
    again = temper.Classifier.load(str(out), device="cpu")(TEXTS)
    same(wanted, [each.record() for each in again])
    assert output["likeness"][PIPELINE]["alike"] == output["compared"]["rows"] == 12
    right = output["likeness"]["model"]["accuracy"]
    assert right == output["likeness"][PIPELINE]["accuracy"]
    assert f"| `pipeline.py` | {right:.4f} | 100.00% |" in (out / "README.md").read_text("utf-8")
    assert {"config.json", "model.safetensors", "tokenizer.json", FILE} <= set(output["files"])
    assert json_output("verify", out)[0]["faults"] == []


def test_a_calibration_that_the_file_does_not_apply_is_noticed(run: Path, tmp_path: Path) -> None:
    with_temperature(run, 0.25)
    succeed("export", run, "--out", tmp_path / "out")
    wanted = [each.record() for each in temper.Classifier.load(str(run), device="cpu")(TEXTS)]
    (tmp_path / "out" / FILE).unlink()
    assert Likeness.of(wanted, asked(tmp_path / "out", TEXTS)).largest_difference > 1e-4


def test_pairs_and_regressions_are_predicted_too(tiny_model: Path, tmp_path: Path) -> None:
    data = tmp_path / "pairs.csv"
    rows = [f"the film {n},it was {'good' if n % 2 else 'bad'},{n / 7}" for n in range(16)]
    data.write_text("\n".join(["text,text_pair,label", *rows]), encoding="utf-8")
    run, out = tmp_path / "run", tmp_path / "out"
    succeed(
        "train", "--model", tiny_model, "--data", data, "--set", "data.kind=regression", "--method",
        "plain", "--set", "train.max_steps=1", "--max-length", "16", "--device", "cpu",
        "--out", run,
    )  # fmt: skip
    output = json_output("export", run, "--out", out, "--data", data)
    assert output["gives"] == "values"
    assert output["likeness"][PIPELINE]["accuracy"] is None
    pairs = ["it was good"] * len(TEXTS)
    wanted = temper.Classifier.load(str(run), device="cpu")(TEXTS, pairs)
    same([each.record() for each in wanted], asked(out, TEXTS, pairs))


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
def test_an_adapter_is_merged_into_a_plain_checkpoint(
    tiny_model: Path, tiny_data: Path, tmp_path: Path
) -> None:
    run, out = tmp_path / "run", tmp_path / "out"
    succeed(
        "train", "--model", tiny_model, "--data", tiny_data / "reviews", "--lora", "--method",
        "plain", "--learning-rate", "0.1", "--set", "train.max_steps=3", "--max-length", "32",
        "--device",
        "cpu", "--out", run,
    )  # fmt: skip
    succeed("export", run, "--out", out)
    assert not list(out.glob("adapter*"))
    wanted = [each.record() for each in temper.Classifier.load(str(run), device="cpu")(TEXTS)]
    same(wanted, asked(out, TEXTS))
    assert "PeftModel" not in (out / "README.md").read_text(encoding="utf-8")


def test_hooks_for_code_and_records_of_the_run_stay_behind(run: Path, tmp_path: Path) -> None:
    for name in ("config.json", "tokenizer_config.json"):
        content = json.loads((run / name).read_text())
        hook = {"AutoModel": "elsewhere--model.Model"}
        (run / name).write_text(json.dumps({**content, "auto_map": hook}))
    out = tmp_path / "out"
    succeed("export", run, "--out", out)
    assert "auto_map" not in (out / "config.json").read_text()
    assert "auto_map" not in (out / "tokenizer_config.json").read_text()
    assert not {"run.json", "metrics.jsonl"} & {file.name for file in out.iterdir()}


@pytest.mark.parametrize("module", [pipeline, shift])
def test_exported_files_are_short_and_import_no_other_package(module: Any) -> None:
    text = Path(module.__file__).read_text(encoding="utf-8")
    assert len(text.splitlines()) < 210
    result = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            result |= {name.name.partition(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            result.add((node.module or "").partition(".")[0])
    others = {"numpy", "torch", "transformers", "safetensors", "onnxruntime"}
    assert result <= {*sys.stdlib_module_names, *others}


def test_the_same_export_is_reused_and_other_content_raises_an_error(
    run: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    first = json_output("export", run, "--out", out)
    kept = succeed("export", run, "--out", out, "--json")
    assert json.loads(kept.stdout) == first
    assert "Up to date: " in kept.stderr
    with_temperature(run, 2.0)
    refused(call("export", run, "--out", out), f"{out} has another export", "another --out")
    other = tmp_path / "other"
    write_csv(other / "rows.csv", sentences(4))
    refused(call("export", run, "--out", other), "has 'rows.csv'", "Choose another --out")
    assert [file.name for file in other.iterdir()] == ["rows.csv"]


def test_an_export_with_different_predictions_is_not_written(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Other(pipeline.Pipeline):
        def outputs(self, *given: Any) -> Any:
            logits, states = super().outputs(*given)
            return np.add(logits, [0.0, 1e-2]), states

    monkeypatch.setattr(exporting.pipeline, "Pipeline", Other)
    out = tmp_path / "out"
    refused(
        call("export", run, "--out", out), "Nothing was written: the outputs of pipeline.py differ"
    )
    assert not out.exists()


def test_a_model_that_transformers_cannot_load_raises_an_error(
    tiny_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, out = tmp_path / "run", tmp_path / "out"
    succeed(
        "train", "--model", "text_cnn", "--data", tiny_data / "reviews", "--method", "plain",
        "--set", "train.max_steps=1", "--device", "cpu", "--out", run,
    )  # fmt: skip
    refused(call("export", run, "--out", out), "'text_cnn'", "Temper's own")
    code = tmp_path / "code.py"
    code.write_text(
        "def ask(texts):\n    return [[0.5, 0.5]] * len(texts)\nask.gives = 'probabilities'\n"
    )
    refused(call("export", f"{code}:ask", "--out", out), f"{code}:ask is code")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    refused(call("export", run, "--out", out, "--onnx"), "pip install 'onnx>=")
    refused(
        call("export", run, "--out", out, "--eval-rows", "3"),
        "`eval_rows` has no effect without --data",
    )
    assert not out.exists()


@pytest.mark.parametrize(
    ("one", "other", "alike", "largest"),
    [
        ({"label": "a", "p": {"a": 0.5}}, {"label": "a", "p": {"a": 0.25}}, 1, 0.25),
        ({"label": "a", "p": {"a": 0.5}}, {"label": "b", "p": {"a": 0.5}}, 0, 0.0),
        ({"value": 200.0}, {"value": 201.0}, 1, 0.005),
        ({"set": ["a", "b"]}, {"set": ["a"]}, 0, 0.0),
        ({"flag": True}, {"flag": False}, 0, 0.0),
        ({"label": "a", "new": 1.0}, {"label": "a"}, 1, math.inf),
        ({"label": "a"}, {"label": "a", "spare": None}, 1, math.inf),
    ],
)
def test_exported_predictions_are_compared_field_by_field(
    one: dict[str, Any], other: dict[str, Any], alike: int, largest: float
) -> None:
    assert Likeness.of([one], [other]) == Likeness(1, alike, largest)


@pytest.mark.slow
def test_onnx_predicts_the_same_and_int8_reports_its_difference(
    run: Path, tiny_data: Path, tmp_path: Path
) -> None:
    pytest.importorskip("onnxscript", reason="needs the extra onnx")
    with_temperature(run, 0.25)
    out = tmp_path / "out"
    output = json_output(
        "export", run, "--out", out, "--data", tiny_data / "reviews" / "dev.csv", "--int8"
    )
    wanted = [each.record() for each in temper.Classifier.load(str(run), device="cpu")(TEXTS)]
    same(wanted, asked(out, TEXTS, onnx="model.onnx"))
    result = Likeness.of(wanted, asked(out, TEXTS, onnx="model-int8.onnx"))
    assert 0 < result.largest_difference < 0.05
    assert set(output["likeness"]) == {"model", PIPELINE, "model.onnx", "model-int8.onnx"}
    assert output["likeness"]["model.onnx"]["largest_difference"] < 1e-6
    assert output["likeness"]["model-int8.onnx"]["largest_difference"] > 0
