"""Whole commands on a tiny model: files and output."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cli.calls import call, json_output, succeed

ROOT = Path(__file__).resolve().parents[2]


def stamps(folder: Path) -> dict[str, int]:
    """Return when each file below a folder was last written."""
    return {
        str(file.relative_to(folder)): file.stat().st_mtime_ns
        for file in folder.rglob("*")
        if file.is_file()
    }


def training(
    model: Path, data: Path, out: Path, *, epsilon: float = 0.1, seed: int = 4
) -> tuple[object, ...]:
    return (
        "train", "--model", model, "--data", data / "reviews", "--method", "uegr",
        "--set", f"method.epsilon={epsilon}", "--set", "train.max_steps=3", "--seed", seed,
        "--max-length", "32", "--device", "cpu", "--set", "train.class_weights=balanced",
        "--out", out,
    )  # fmt: skip


@pytest.fixture(scope="module")
def trained(
    tiny_model: Path, tiny_data: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    out = tmp_path_factory.mktemp("trained") / "run"
    record: dict[str, Any] = json_output(*training(tiny_model, tiny_data, out))
    return record


def test_training_writes_a_plain_checkpoint_and_its_record(trained: dict[str, Any]) -> None:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    out = Path(trained["out"])
    assert sorted(entry.name for entry in out.iterdir()) == [
        "config.json",
        "metrics.jsonl",
        "model.safetensors",
        "run.json",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    model = AutoModelForSequenceClassification.from_pretrained(out)
    assert model.config.id2label == {0: "negative", 1: "positive"}
    assert AutoTokenizer.from_pretrained(out)("the film").input_ids
    assert trained["status"] == "finished"
    assert (trained["seed"], trained["method"]) == (4, "uegr")
    assert trained["settings"]["method"]["epsilon"] == 0.1
    assert trained["settings"]["train"]["class_weights"] == "balanced"
    assert trained["data"]["train"]["rows"] == 40
    assert trained["times"]["steps"] == 3
    (log, _) = map(json.loads, (out / "metrics.jsonl").read_text().splitlines())
    assert log["step"] == 3
    assert {"loss", "loss/task", "grad_norm", "learning_rate", "epoch"} <= set(log)


def test_a_finished_run_is_reused_and_reported(
    trained: dict[str, Any], tiny_model: Path, tiny_data: Path
) -> None:
    out = Path(trained["out"])
    before = stamps(out)
    again = succeed(*training(tiny_model, tiny_data, out))
    assert "Up to date" in again.stderr
    (log, _) = map(json.loads, (out / "metrics.jsonl").read_text().splitlines())
    assert f"3 steps, last logged loss {log['loss']:.4f}, task " in again.stdout
    assert stamps(out) == before


def test_a_settings_file_is_overridden_by_options(
    tiny_model: Path, tiny_data: Path, tmp_path: Path
) -> None:
    config = tmp_path / "run.toml"
    config.write_text(
        f'model = "{tiny_model}"\nseed = 1\n[data]\nsource = "{tiny_data / "reviews"}"\n'
        '[method]\nname = "plain"\n[train]\nmax_steps = 50\ndevice = "cpu"\n',
        encoding="utf-8",
    )
    record = json_output(
        "train", "--config", config, "--seed", 2, "--set", "train.max_steps=1",
        "--rows", 10, "--eval-rows", 4, "--out", tmp_path / "run",
    )  # fmt: skip
    assert (record["seed"], record["times"]["steps"]) == (2, 1)
    assert [record["data"][name]["rows"] for name in ("train", "dev")] == [10, 4]


def test_the_printed_evaluate_command_uses_the_given_rows(
    tiny_model: Path, tiny_data: Path, tmp_path: Path
) -> None:
    trained = call(
        "train", "--model", tiny_model, "--data", tiny_data / "reviews", "--method", "plain",
        "--set", "train.max_steps=1", "--eval-rows", 4, "--max-length", 32, "--device", "cpu",
        "--out", tmp_path / "run",
    )  # fmt: skip
    command = trained.stdout.partition("temper evaluate ")[2].split("\n")[0]
    scores = json_output("evaluate", *shlex.split(command), "--perspectives", "task")["scores"]
    assert {score["n"] for score in scores} == {4}


def test_evaluating_writes_rows_and_scores_once(
    trained: dict[str, Any], tiny_data: Path, tmp_path: Path
) -> None:
    arguments = (
        "evaluate", trained["out"], "--data", tiny_data / "reviews",
        "--shift", f"other={tiny_data / 'shift.csv'}",
        "--anomaly", f"odd={tiny_data / 'anomaly.csv'}",
        "--set", "evaluate.embedding_attack.radii=[0.1]", "--set", "evaluate.bootstrap=20",
        "--out", tmp_path / "e",
    )  # fmt: skip
    result = json_output(*arguments)
    assert {score["perspective"] for score in result["scores"]} == {
        "task",
        "shift",
        "calibration",
        "anomaly",
        "embedding_attack",
        "embedding_noise",
        "token_corruption",
        "worst_case",
    }
    (accuracy,) = [
        score
        for score in result["scores"]
        if (score["perspective"], score["name"]) == ("task", "accuracy")
    ]
    assert accuracy["n"] == 12
    files = {"rows.parquet", "texts.parquet", "scores.json", "settings.json"}
    assert {entry.name for entry in (tmp_path / "e").iterdir()} == files
    before = stamps(tmp_path / "e")
    assert json_output(*arguments) == result
    assert stamps(tmp_path / "e") == before
    other = call(
        *arguments, "--perspectives", "task,embedding_attack,calibration", "--eval-rows", 4
    )
    assert other.exit_code == 2
    assert "has another evaluation: data.eval_rows: None -> 4;" in other.stderr
    assert "evaluate.perspectives: ['task', " in other.stderr
    assert [entry.name for entry in tmp_path.iterdir()] == ["e"]


def test_a_run_is_evaluated_on_its_own_data_by_default(
    trained: dict[str, Any], tiny_data: Path, tmp_path: Path
) -> None:
    words = ("evaluate", trained["out"], "--perspectives", "task", "--set", "evaluate.bootstrap=0")
    named = json_output(*words, "--data", tiny_data / "reviews", "--out", tmp_path / "named")
    left = call(*words, "--out", tmp_path / "left", "--json")
    assert json.loads(left.stdout)["scores"] == named["scores"]
    message = (
        f"12 rows of {tiny_data / 'reviews'} are evaluated: the validation rows of {trained['out']}"
    )
    assert f"{message}, split 'dev'." in left.stderr
    # Other given settings still apply.
    few = json_output(*words, "--eval-rows", "4", "--out", tmp_path / "few")
    assert {score["n"] for score in few["scores"]} == {4}
    # The only split of a file has no name that the user knows.
    (file,) = (tiny_data / "reviews").glob("dev.*")
    result = call(*words, "--data", file, "--out", tmp_path / "file")
    assert f"12 rows of {file} are evaluated." in result.stderr


def test_predicting_lines_of_stdin_prints_a_json_object_per_line(trained: dict[str, Any]) -> None:
    result = succeed("predict", trained["out"], text="the film was good\nit was awful\n")
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert [row["text"] for row in rows] == ["the film was good", "it was awful"]
    for row in rows:
        fractions = row["probabilities"]
        assert set(fractions) == {"negative", "positive"}
        assert sum(fractions.values()) == pytest.approx(1.0)
        assert row["label"] == max(fractions, key=fractions.__getitem__)
        assert row["anomaly"] == 1 - max(fractions.values())
    assert json_output("predict", trained["out"], text="the film was good\nit was awful\n") == rows


def test_predicting_a_file_into_a_table(
    trained: dict[str, Any], tiny_data: Path, tmp_path: Path
) -> None:
    out = tmp_path / "predictions.csv"
    result = json_output(
        "predict", trained["out"], "--data", tiny_data / "anomaly.csv", "--out", out
    )
    assert result == {"out": str(out), "rows": 3}
    header, *lines = out.read_text(encoding="utf-8").splitlines()
    assert header == "text,label,anomaly,probability:negative,probability:positive"
    assert len(lines) == 3


@pytest.mark.parametrize("kind", ["methods", "models", "perspectives", "tasks", "suites"])
def test_lists_are_arrays_of_named_objects(kind: str) -> None:
    rows = json_output("list", kind)
    assert rows
    assert all(row["name"] for row in rows)
    table = succeed("list", kind)
    assert all(row["name"] in table.stdout for row in rows)


def test_the_report_of_a_run_is_written_next_to_it(trained: dict[str, Any], tmp_path: Path) -> None:
    copy = tmp_path / "run"
    copy.mkdir()
    for name in ("run.json", "metrics.jsonl"):
        (copy / name).write_bytes((Path(trained["out"]) / name).read_bytes())
    assert json_output("report", copy) == {"report": str(copy / "report.html"), "figures": []}
    assert (copy / "report.html").is_file()


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}


def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8") if file.exists() else ""


@pytest.mark.parametrize(
    ("number", "code"),
    [pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow), (signal.SIGTERM, 143)],
    ids=str,
)
def test_a_signal_leaves_a_checkpoint_of_the_last_step_and_its_exit_code(
    number: signal.Signals, code: int, tiny_model: Path, tiny_data: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    # A test run in the background of a shell inherits SIGINT ignored, and so would the child.
    heeding = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    command = [
        sys.executable, "-c", f"{heeding}; from temper.cli import main; main()",
        "train", "--model", str(tiny_model), "--data", str(tiny_data / "reviews"),
        "--method", "plain", "--set", "train.max_steps=2000", "--set", "train.save_steps=500",
        "--device", "cpu", "--json", "--out", str(out),
    ]  # fmt: skip
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
    )
    while process.poll() is None and "loss" not in _text(out / "metrics.jsonl"):
        time.sleep(0.05)
    process.send_signal(number)
    stdout, stderr = process.communicate(timeout=120)
    assert process.returncode == code, stderr
    assert stdout == ""
    assert "Traceback" not in stderr
    assert "Stopped" in stderr
    record = json.loads((out / "run.json").read_text())
    assert record["status"] == "stopped"
    (checkpoint,) = (
        entry for entry in (out / "checkpoints").iterdir() if not entry.name.startswith(".")
    )
    assert checkpoint.name == f"checkpoint-{record['times']['steps']}"
    assert (checkpoint / "model.safetensors").is_file()
    assert not (out / "model.safetensors").exists()
