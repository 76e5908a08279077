"""A run of ``temper.train`` in two processes: one folder, the weights of one process, one error."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import temper
from temper.checkpoints.folder import RunFolder
from temper.errors import CheckpointError, SettingError
from tests.distributed.launching import ROOT, launch_script
from tests.distributed.runs import EXACT, NOISY, REFUSED, STEPS, make_project, settings_of


@dataclass(frozen=True)
class Launch:
    """The folder of all runs, and what became of each in the two processes."""

    folder: Path
    reports: list[dict[str, Any]]

    def weights(self, case: str) -> dict[str, Tensor]:
        return load_file(self.folder / "out" / case / "model.safetensors")

    def record(self, case: str) -> dict[str, Any]:
        record: dict[str, Any] = json.loads(
            (self.folder / "out" / case / "run.json").read_text("utf-8")
        )
        return record


@pytest.fixture(scope="session")
def launch(tmp_path_factory: pytest.TempPathFactory) -> Launch:
    """Do all runs in two processes, once for all tests."""
    folder = tmp_path_factory.mktemp("runs")
    make_project(folder)
    launch_script("runs.py", folder, limit=480)
    return Launch(
        folder,
        [json.loads((folder / f"report_{rank}.json").read_text("utf-8")) for rank in range(2)],
    )


@pytest.mark.parametrize("case", EXACT)
def test_two_processes_write_the_same_folder_and_weights_as_one(
    launch: Launch, case: str, tmp_path: Path
) -> None:
    changes = EXACT[case]
    if case == "fsdp":
        changes = {**changes, "train": {}}
    alone = temper.train(out=tmp_path / "alone", config=settings_of(launch.folder, changes))
    for report in launch.reports:
        assert report[case]["status"] == "finished"
    folder = launch.folder / "out" / case
    assert {file.name for file in folder.iterdir()} == {
        file.name for file in alone.folder.iterdir()
    }
    start = load_file(launch.folder / "tiny" / "model.safetensors")
    ours, expected = launch.weights(case), load_file(alone.folder / "model.safetensors")
    assert set(ours) == set(expected)
    apart = torch.cat([(ours[name] - value).abs().flatten() for name, value in expected.items()])
    # Adam makes a whole step of any gradient, one that is rounding alone too: which entries of a
    # masked one these are, and how far they move, differs by processor.
    few = 0.002 if case == "uegr" else 0.0
    assert float((apart > 1e-6).double().mean()) <= few
    assert float(apart.max()) <= (1e-4 if few else 1e-6)
    if case != "lp_ft":
        assert max(float((expected[name] - start[name]).abs().max()) for name in start) > 1e-4
    record = launch.record(case)
    assert record["processes"] == 2
    assert "processes" not in alone.record
    assert record["epochs"] == alone.record["epochs"]
    assert record["settings"]["train"]["batch_size"] == 6
    if case != "fsdp":
        assert record["key"] == alone.record["key"]
    ours_logged, expected_logged = (RunFolder(path).logs() for path in (folder, alone.folder))
    assert [set(entry) for entry in ours_logged] == [set(entry) for entry in expected_logged]
    losses = [entry["loss"] for entry in expected_logged if "loss" in entry]
    assert [entry["loss"] for entry in ours_logged if "loss" in entry] == pytest.approx(losses)


def test_a_finished_run_is_reused_by_all_processes(launch: Launch) -> None:
    for report in launch.reports:
        assert report["again"]["status"] == "finished"
        assert report["again"]["seconds"] < report["lp_ft"]["seconds"] + 5
    assert launch.record("lp_ft")["times"]["steps"] == STEPS


def test_a_signal_to_one_process_stops_both_and_the_run_resumes_bit_for_bit(launch: Launch) -> None:
    for report in launch.reports:
        assert report["parts-stopped"] == {"error": "Terminated", "message": "143"}
        assert report["parts"]["status"] == "finished"
    whole, parts = launch.weights("whole"), launch.weights("parts")
    assert [name for name in whole if not torch.equal(whole[name], parts[name])] == []
    plain = ("metrics.jsonl", "config.json")
    for name in plain:
        first, second = (launch.folder / "out" / case / name for case in ("whole", "parts"))
        assert first.read_bytes() == second.read_bytes()


def test_a_stopped_run_resumes_only_with_the_same_number_of_processes(launch: Launch) -> None:
    assert launch.record("left")["status"] == "stopped"
    tree = settings_of(launch.folder, NOISY)
    with pytest.raises(
        CheckpointError, match="by 2 processes, and now there is 1.*Use the same number"
    ):
        temper.train(out=launch.folder / "out" / "left", config=tree)
    # The refusal has changed nothing.
    assert list((launch.folder / "out" / "left" / "checkpoints").glob("checkpoint-*"))
    assert launch.record("left")["processes"] == 2


def test_processes_that_disagree_are_one_error_before_any_work(launch: Launch) -> None:
    first, second = (report["disagree"] for report in launch.reports)
    assert first["error"] == "SettingError"
    assert "process 1 of 2 has others than process 0: seed: 0 -> 1" in first["message"]
    assert second["error"] == "OtherProcessError"
    assert not (launch.folder / "out" / "disagree").exists()


def test_a_failing_process_stops_both_and_reports_its_error(launch: Launch) -> None:
    first, second = (report["missing"] for report in launch.reports)
    assert "nothing.csv" in second["message"]
    assert second["error"] != "OtherProcessError"
    assert first["error"] == "OtherProcessError"
    assert not (launch.folder / "out" / "missing").exists()


WORDS = {
    "indivisible": "`train.batch_size` is 5, .* 2 processes .* Pass a multiple of 2",
    "device": "`train.device` is 'cuda:1'.*Use 'auto', 'cuda' or 'cpu'",
    "lora": "An adapter .*`train.peft`. is not supported with `train.fsdp`",
    "teacher": "teacher supports only one process",
    "tasks": "tasks trains in one process, and there are 2",
    "unknown": "Unknown method 'uerg'",
}


@pytest.mark.parametrize("case", REFUSED)
def test_unsupported_options_of_several_processes_raise_one_error_and_write_nothing(
    launch: Launch, case: str
) -> None:
    first, second = (report[case] for report in launch.reports)
    pattern = WORDS[case]
    with pytest.raises(ValueError, match=pattern):
        raise ValueError(first["message"])
    assert "\n" not in first["message"]
    assert second["error"] == "OtherProcessError"
    assert not (launch.folder / "out" / case).exists()


def test_sharing_weights_out_needs_several_processes(launch: Launch, tmp_path: Path) -> None:
    tree = settings_of(launch.folder, EXACT["fsdp"])
    with pytest.raises(SettingError, match="`train.fsdp` .* there is only one. Start several"):
        temper.train(out=tmp_path / "out", config=tree)
    assert not (tmp_path / "out").exists()


def torchrun(project: Path, out: Path, *changes: str) -> subprocess.Popen[str]:
    """Start ``temper train`` in two processes."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]
    command += ["-m", "temper", "train", "--data", str(project / "data" / "reviews")]
    command += ["--model", str(project / "tiny"), "--method", "dropout", "--out", str(out)]
    for change in ("train.device=cpu", "train.max_steps=200", "train.logging_steps=1", *changes):
        command += ["--set", change]
    return subprocess.Popen(
        command,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
def test_the_command_prints_one_error_stops_at_a_signal_and_resumes(tmp_path: Path) -> None:
    make_project(tmp_path)
    wrong = torchrun(tmp_path, tmp_path / "wrong", "train.batch_size=5")
    _, message = wrong.communicate(timeout=300)
    assert wrong.returncode == 1
    (error,) = re.findall(r"(?m)^Error: (.*)", message)
    assert re.search(r"^`train\.batch_size` is 5, .* 2 processes .*multiple of 2", error)
    assert not (tmp_path / "wrong").exists()
    # The launcher reports the exit code of a process that failed.
    assert re.search(r"exitcode\s*: 2 ", message)

    whole = torchrun(tmp_path, tmp_path / "whole")
    output, message = whole.communicate(timeout=300)
    assert whole.returncode == 0, message
    assert output.count("Run: ") == 1

    logs = tmp_path / "parts" / "metrics.jsonl"
    stopped = torchrun(tmp_path, tmp_path / "parts")
    deadline = time.monotonic() + 300
    while not (logs.exists() and logs.read_text("utf-8").count("\n") > 20):
        assert time.monotonic() < deadline
        assert stopped.poll() is None
        time.sleep(0.05)
    stopped.send_signal(signal.SIGTERM)
    _, message = stopped.communicate(timeout=300)
    assert message.count("Stopped. Run the same command again") == 1
    record = json.loads((tmp_path / "parts" / "run.json").read_text("utf-8"))
    assert record["status"] == "stopped"
    assert 10 < record["times"]["steps"] < 200
    again = torchrun(tmp_path, tmp_path / "parts")
    _, message = again.communicate(timeout=300)
    assert again.returncode == 0, message
    assert f"is resumed at step {record['times']['steps']}" in message
    for name in ("model.safetensors", "metrics.jsonl"):
        first, second = (tmp_path / case / name for case in ("whole", "parts"))
        assert first.read_bytes() == second.read_bytes()
