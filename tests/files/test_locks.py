"""Locks: one process at a time, a clear error for others, and release after a kill."""

from __future__ import annotations

import errno
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from temper.checkpoints.folder import check_output_folder
from temper.errors import CheckpointError, LockedError, SettingError
from temper.locks import OWNER, check_unlocked, has_lock, locked


@contextmanager
def other_process(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Start a process that holds a folder's lock until it is killed."""
    code = (
        "import sys, time; from pathlib import Path; from temper.locks import locked\n"
        "with locked(Path(sys.argv[1])):\n"
        "    print('held', flush=True); time.sleep(600)"
    )
    command = [sys.executable, "-c", code, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "held\n"
            yield process
        finally:
            process.kill()


def test_the_error_of_the_second_process_names_the_owner_of_the_lock_and_its_time(
    tmp_path: Path,
) -> None:
    out = tmp_path / "run"
    with other_process(out) as process:
        words = rf"run is being written .*process {process.pid} on \S+, since 20\d\d-.*Z\."
        with pytest.raises(LockedError, match=words), locked(out):
            pass
        with pytest.raises(LockedError, match=words):
            check_output_folder(out, what="run.json", held=lambda: False)


def test_a_process_may_check_its_own_lock(tmp_path: Path) -> None:
    with locked(tmp_path):
        check_unlocked(tmp_path, what=tmp_path)
        with pytest.raises(LockedError), locked(tmp_path):
            pass


def test_the_lock_of_a_killed_process_is_released(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with other_process(out):
        pass
    assert (out / ".lock").exists()
    check_output_folder(out, what="run.json", held=lambda: False)
    with locked(out):
        pass
    assert not list(out.iterdir())


def test_leftovers_are_removed_by_the_next_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove = Path.unlink

    def refuse(path: Path, **given: bool) -> None:
        if path.name == OWNER:
            raise OSError(errno.EROFS, "read-only", str(path))
        remove(path, **given)

    with monkeypatch.context() as patch, locked(tmp_path):
        patch.setattr(Path, "unlink", refuse)
    # Without the lock, nothing would say that the owner's file is left.
    assert has_lock(tmp_path)
    with locked(tmp_path):
        pass
    assert not list(tmp_path.iterdir())


def _enter_often(folder: Path, log: Path) -> None:
    """Enter a folder again and again, and note whether it was alone there."""
    entered = 0
    while entered < 10:
        try:
            with locked(folder):
                inside = folder / "inside"
                descriptor = os.open(inside, os.O_CREAT | os.O_EXCL)
                os.close(descriptor)
                inside.unlink()
                entered += 1
        except LockedError:
            time.sleep(0.001)
    log.touch()


def test_never_are_two_processes_in_a_folder_that_a_dead_one_left_locked(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with other_process(out):
        pass
    context = multiprocessing.get_context("spawn")
    logs = [tmp_path / f"log{number}" for number in range(3)]
    processes = [context.Process(target=_enter_often, args=(out, log)) for log in logs]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    assert [log.exists() for log in logs] == [True] * 3
    assert not list(out.iterdir())


def test_leftovers_of_a_killed_run_are_not_other_content(tmp_path: Path) -> None:
    for name in (".lock", ".lock-owner", ".run.json.4711", ".study.json.1", ".metrics.jsonl.7"):
        (tmp_path / name).touch()
    check_output_folder(tmp_path, what="run.json", held=lambda: False)
    (tmp_path / ".bashrc").touch()
    with pytest.raises(CheckpointError, match=r"has '\.bashrc' but no run\.json"):
        check_output_folder(tmp_path, what="run.json", held=lambda: False)


def test_a_result_that_appears_during_the_check_is_accepted(tmp_path: Path) -> None:
    out = tmp_path / "out"

    def arrive(_: Path, *, what: Path) -> None:
        # Between the look at the lock, which was let go of, and at what there is.
        (out / "run.json").touch()

    out.mkdir()
    (out / "model.safetensors").touch()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("temper.checkpoints.folder.check_unlocked", arrive)
        check_output_folder(out, what="run.json", held=(out / "run.json").exists)


@pytest.mark.parametrize("url", ["s3://bucket/run", "file:///run", "abfs://a@b/c"])
def test_a_store_is_no_folder_to_write_to(url: str) -> None:
    with pytest.raises(SettingError, match="the URL of a store"):
        check_output_folder(Path(url), what="run", held=lambda: False)
