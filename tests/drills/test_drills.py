"""Short forms of the drills, and that each drill detects its fault."""

from __future__ import annotations

import os
import signal
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from dev.drills import clock, cluster, commands, disk, kill, restarts, trust, two_processes, workers
from dev.drills.commands import COMMANDS, Command, Fault, Stage, run
from dev.drills.drilling import Found
from dev.drills.trust import PLANTS, Plant

NAMED = {command.name: command for command in COMMANDS}


# One of the six commands a drill: all are the long form's.
@pytest.mark.parametrize(
    ("drill", "name"),
    [
        (kill.drill, "evaluate"),
        (disk.drill, "report"),
        (two_processes.drill, "predict"),
        (clock.drill, "calibrate"),
    ],
    ids=["kill", "disk", "two_processes", "clock"],
)
def test_drills_report_no_loss(project: Path, drill: Any, name: str) -> None:
    result = drill(project, NAMED[name], inputs=3, seed=1)
    assert result.faults == []
    assert result.counts.total() == 3


@pytest.mark.parametrize("plant", PLANTS[:: len(PLANTS) // 6], ids=lambda plant: plant.name)
def test_planted_code_is_not_run(project: Path, plant: Plant) -> None:
    assert trust.drill(project, plant, inputs=1, seed=0).faults == []


def test_code_that_is_run_is_seen(project: Path) -> None:
    def put(folder: Path) -> None:
        mark = folder.parent / trust.MARK
        (folder / "mine.py").write_text(f"open({str(mark)!r}, 'w')\n", encoding="utf-8")

    named = "evaluate {}/mine.py:f --data {}/data.jsonl --out {}/out"
    result = trust.drill(project, Plant("a function", put, (named,)), inputs=1, seed=0)
    assert "planted code was run" in result.faults[0]


def test_every_malicious_payload_runs_when_it_is_unpickled(tmp_path: Path) -> None:
    import numpy as np
    import torch

    mark, folder = tmp_path / trust.MARK, tmp_path / "project"
    (tmp_path / "a.pt").write_bytes(trust._torch_file(folder))
    (tmp_path / "a.npy").write_bytes(trust._object_array(folder))
    torch.load(tmp_path / "a.pt", weights_only=False)
    assert mark.exists()
    mark.rmdir()
    np.load(tmp_path / "a.npy", allow_pickle=True)
    assert mark.exists()


def planted(text: str, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Return a command that is Python's code, with the project's folder as ``root``."""

    def main(arguments: list[str]) -> None:
        exec(text, {"root": Path(arguments[0]), "os": os, "time": time})

    monkeypatch.setattr("temper.cli.main", main)
    return Command("planted", "{0}")


def faults(result: Found) -> str:
    return "\n".join(result.faults)


def test_the_kill_drill_detects_leftover_files(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "(root / 'new').write_text('x'); (root / 'new').rename(root / 'whole')"
    command = planted(text, monkeypatch)
    # Killed before its rename, then whole: nothing is left over.
    assert kill.drill(project, command, inputs=3, seed=0).faults == []
    text = "(root / f'{os.getpid()}').touch(); (root / f'{os.getpid()}').rename(root / 'whole')"
    result = kill.drill(project, planted(text, monkeypatch), inputs=3, seed=0)
    assert "differs: " in faults(result)


def test_the_disk_drill_detects_tracebacks_and_commands_that_cannot_resume(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = planted("(root / 'new').write_text('x')", monkeypatch)
    assert "Traceback" in faults(disk.drill(project, command, inputs=3, seed=0))
    text = "(root / 'lock').mkdir()\ntry: (root / 'new').touch()\nexcept OSError: pass"
    result = disk.drill(project, planted(text, monkeypatch), inputs=3, seed=0)
    assert "repeated" in faults(result)


def test_the_drill_of_two_processes_detects_shared_files(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "with (root / 'log').open('a') as file: file.write('x')"
    result = two_processes.drill(project, planted(text, monkeypatch), inputs=3, seed=0)
    assert "differs: log" in faults(result)


@pytest.mark.slow
def test_clocks_that_jump_see_durations_below_zero(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (
        "begun = time.time()\n"
        "for n in range(20): (root / f'new{n}').mkdir(exist_ok=True)\n"
        "seconds = time.time() - begun\n"
        """(root / 'record.json').write_text(f'{{"times": {{"all": {seconds}}}}}')"""
    )
    result = clock.drill(project, planted(text, monkeypatch), inputs=12, seed=0)
    assert "record.json has the time -" in faults(result)


RANKS = workers.TARGETS[1]


def test_a_killed_process_ends_the_other_without_loss(project: Path) -> None:
    result = workers.drill(project, RANKS, inputs=1, seed=0)
    assert result.faults == []
    assert result.counts["killed"] > 0


@pytest.mark.slow
def test_a_process_that_ends_in_a_traceback_is_seen(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("temper.training.checks.exchanging", lambda *_: nullcontext())
    assert "Traceback" in faults(workers.drill(project, RANKS, inputs=1, seed=0))


@pytest.mark.slow
def test_a_killed_worker_is_reported_without_loss(project: Path) -> None:
    assert workers.drill(project, workers.TARGETS[0], inputs=2, seed=0).faults == []


@pytest.mark.slow
def test_a_killed_machine_causes_no_loss(project: Path) -> None:
    pytest.importorskip("ray", reason="Ray is not installed (extra cluster)")
    result = cluster.drill(project, cluster.STUDY, inputs=3, seed=0)
    assert result.faults == []
    assert result.counts["killed"]


@pytest.mark.parametrize("target", restarts.TARGETS, ids=lambda target: target.name)
def test_a_stopped_service_completes_all_accepted_requests(
    project: Path, target: restarts.Target
) -> None:
    pytest.importorskip("uvicorn", reason="needs the extra serve")
    result = restarts.drill(project, target, inputs=1, seed=0)
    assert result.faults == []
    assert result.counts.total() == 1


def test_a_fault_is_injected_at_its_operation(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "\n".join(f"(root / 'new{n}').write_text('x' * 10)" for n in range(3))
    folder = project
    command = planted(text, monkeypatch)
    arguments = command.of(folder)
    whole = run(arguments, folder)
    assert (whole.code, whole.operations) == (0, 3)
    for number in range(3):
        (folder / f"new{number}").unlink()
    killed = run(arguments, folder, Fault(at=2, kill=True))
    assert killed.code == -signal.SIGKILL
    assert sorted(file.name for file in folder.glob("new*")) == ["new0"]
    refused = run(arguments, folder, Fault(at=3, error=28))
    assert refused.code == commands.CRASHED
    assert "No space left on device" in refused.said
    cut = run(arguments, folder, Fault(largest=4))
    assert "File too large" in cut.said
    for file in folder.glob("new*"):
        file.unlink()


def test_an_undisturbed_command_writes_the_same_files(project: Path, tmp_path: Path) -> None:
    stage = Stage(project, NAMED["predict"], tmp_path)
    assert stage.differences() == []
    (stage.folder / "out.csv").write_text("text\n", encoding="utf-8")
    assert stage.differences() == ["out.csv"]
