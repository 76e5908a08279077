"""Parallel runs equal sequential ones; a failure or a stop loses no finished run."""

from __future__ import annotations

import copy
import json
import multiprocessing
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import temper
from temper.cluster import plugins
from temper.errors import NonFiniteError, SettingError, TemperError
from temper.study import workers as module
from temper.study.plan import StudyConfig, columns_of
from temper.study.schedule import run_study
from tests.cli.tiny_project import study_tree
from tests.training.listeners import Heard

NAMES = {"plain, seed 0", "short, seed 0", "plain, seed 1", "short, seed 1"}


class Watch(Heard):
    """Record progress; on request, stop the study at the first reported steps."""

    def __init__(self, *, stop: bool = False) -> None:
        super().__init__()
        self.stop = stop
        self.begun: list[tuple[int, int, str]] = []

    def runs(self, number: int, total: int, name: str) -> None:
        self.begun.append((number, total, name))

    def steps(self, done: int, total: int, *, loss: float | None) -> None:
        assert done <= total
        if self.stop:
            raise KeyboardInterrupt


def study(
    model: Path,
    data: Path,
    out: Path,
    *,
    workers: int,
    watch: Watch | None = None,
    short: int = 2,
    seeds: tuple[int, ...] = (0, 1),
    **train: Any,
) -> Path:
    config = StudyConfig.of(
        study_tree(model, data / "reviews", train={"max_steps": 4, "save_steps": 1, **train}),
        columns=columns_of(["plain"], [f"short=uegr,train.max_steps={short}"]),
        seeds=seeds,
    )
    return run_study(config, out, workers=workers, progress=watch).folder


def weights(folder: Path) -> dict[str, bytes]:
    return {
        file.parent.name: file.read_bytes()
        for file in (folder / "runs").glob("*/model.safetensors")
    }


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Sums of several threads are taken in another order, and workers share the threads out."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_runs_side_by_side_reach_the_same_weights(
    tiny_model: Path, tiny_data: Path, tmp_path: Path
) -> None:
    watch = Watch()
    alone = study(tiny_model, tiny_data, tmp_path / "alone", workers=1)
    beside = study(tiny_model, tiny_data, tmp_path / "beside", workers=2, watch=watch)
    assert weights(beside) == weights(alone)
    assert len(weights(alone)) == 4
    assert {name for _, _, name in watch.begun} == NAMES
    assert [number for number, _, _ in watch.begun] == [1, 2, 3, 4]
    assert (beside / "report.html").exists()


def test_a_stopped_study_resumes_with_or_without_workers(
    tiny_model: Path, tiny_data: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    long: dict[str, Any] = {"seeds": (0,), "max_steps": 60, "save_steps": 1000}
    with pytest.raises(KeyboardInterrupt):
        study(
            tiny_model,
            tiny_data,
            out,
            workers=2,
            watch=Watch(stop=True),
            **long,
        )
    assert not (out / "report.html").exists()
    record = [json.loads(file.read_text(encoding="utf-8")) for file in out.glob("runs/*/run.json")]
    halted = [each["times"]["steps"] for each in record if each["status"] == "stopped"]
    # The workers saved the step in hand before they ended.
    assert halted
    assert sorted(
        int(entry.name.removeprefix("checkpoint-"))
        for entry in out.glob("runs/*/checkpoints/checkpoint-*")
    ) == sorted(halted)
    # Other methods set their own steps; only those of `plain` were long.
    study(tiny_model, tiny_data, out, workers=1, **long)
    alone = study(tiny_model, tiny_data, tmp_path / "alone", workers=1, **long)
    assert weights(out) == weights(alone)


def test_the_error_of_a_run_ends_the_study(
    tiny_model: Path, tiny_data: Path, tmp_path: Path
) -> None:
    # Each run has a step after the one that spoils its weights.
    with pytest.raises(NonFiniteError) as caught:
        study(tiny_model, tiny_data, tmp_path / "out", workers=2, short=4, learning_rate=1e30)
    assert caught.value.step > 0


def test_the_run_of_a_killed_worker_is_reported_and_resumed(
    tiny_model: Path, tiny_data: Path, tmp_path: Path
) -> None:
    class Killer(Watch):
        def steps(self, done: int, total: int, *, loss: float | None) -> None:
            for child in multiprocessing.active_children():
                child.kill()

    long: dict[str, Any] = {"seeds": (0,), "max_steps": 60, "save_steps": 20}
    killed = r"worker of \w+, seed \d .*SIGKILL\..* fewer --workers"
    with pytest.raises(TemperError, match=killed):
        study(tiny_model, tiny_data, tmp_path / "out", workers=2, watch=Killer(), **long)
    study(tiny_model, tiny_data, tmp_path / "out", workers=1, **long)
    assert len(weights(tmp_path / "out")) == 2


def test_a_process_that_does_not_end_is_killed() -> None:
    context = multiprocessing.get_context("spawn")
    idle, busy = (context.Process(target=time.sleep, args=(wait,)) for wait in (0, 600))
    idle.start()
    busy.start()
    idle.join()
    assert module._end_within(0.1, [idle, busy]) == [busy]
    busy.join()
    assert (idle.exitcode, busy.exitcode) == (0, -signal.SIGKILL)


@pytest.mark.slow
def test_a_worker_that_is_killed_while_it_waits_for_a_run_ends_the_study_too(
    tiny_model: Path, tiny_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It holds the lock of the pool's queue, by which the other one would hear of its end."""
    out = tmp_path / "out"

    class Killer(Watch):
        def steps(self, done: int, total: int, *, loss: float | None) -> None:
            at_work = [
                int(owner.read_text().split()[1]) for owner in out.glob("runs/*/.lock-owner")
            ]
            for child in multiprocessing.active_children():
                if any(out.glob("runs/short-*/evaluation/scores.json")) and at_work != [child.pid]:
                    child.kill()

    monkeypatch.setattr(module, "SAVED", 5.0)
    with pytest.raises(TemperError, match=r"^The worker of short, seed 0 was ended by SIGKILL\."):
        study(
            tiny_model,
            tiny_data,
            out,
            workers=2,
            watch=Killer(),
            seeds=(0,),
            max_steps=5000,
            save_steps=5000,
        )
    assert [
        json.loads(file.read_text())["status"] for file in out.glob("runs/plain-*/run.json")
    ] == ["stopped"]


def test_a_worker_that_cannot_start_reports_the_reason(
    tiny_model: Path, tiny_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = str(tmp_path / "gone.py")
    monkeypatch.setattr(plugins, "loaded", lambda: (gone,))
    with pytest.raises(SettingError, match=r"gone\.py"):
        study(tiny_model, tiny_data, tmp_path / "out", workers=2)


def test_an_error_survives_the_way_between_two_processes() -> None:
    error = NonFiniteError("The loss is NaN.", step=3, term="clean", rows=[1, 2])
    # A copy is made as the queue between them makes one.
    again = copy.copy(error)
    assert (str(again), again.step, again.term, again.rows) == (
        str(error),
        error.step,
        error.term,
        error.rows,
    )


@pytest.mark.parametrize("workers", [0, -1])
def test_a_number_of_workers_is_at_least_one(
    workers: int, tiny_model: Path, tiny_data: Path, tmp_path: Path
) -> None:
    with pytest.raises(SettingError, match=f"--workers .*got {workers}"):
        temper.compare(
            tiny_data,
            model=tiny_model,
            methods="plain",
            out=tmp_path / "out",
            workers=workers,
        )
    assert not (tmp_path / "out").exists()
