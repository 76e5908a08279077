"""A study in an object store is the study of a folder, whatever is lost on the way."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.local import LocalFileSystem

import temper
from temper.app.cluster import Cluster
from temper.app.store import Store
from temper.app.verify import verify
from temper.errors import CheckpointError, SettingError, TemperError, WriteError
from temper.study.cluster import Ended, Job, _do_stored, _look_at_store
from temper.study.work import StudyFolder
from temper.training.progress import Progress
from tests.cli.tiny_project import study_tree
from tests.study.test_workers import one_thread, weights

__all__ = ["one_thread"]


class OneMachine:
    """Stand for a cluster of one machine, whose runs lie in a folder of its own."""

    runs = 1

    def __init__(self, cluster: Cluster, at_step: Callable[[int], object]) -> None:
        assert cluster.store is not None
        self.store, self.at_step = cluster.store, at_step
        self.said: list[tuple[Any, ...]] = []
        self._steps = 0

    def check(self, folder: StudyFolder, file: Path) -> None:
        with self.store.probe() as name:
            if fault := _look_at_store(folder, self.store, name, ()):
                raise TemperError(fault)

    def do(self, jobs: Sequence[Job]) -> Generator[Ended]:
        self.store.push()
        for job in jobs:
            there: Any = self
            seconds = _do_stored(job.folder.load(), job.cell, there, self.store)
            self.store.fetch(job.run.path, weights=False)
            yield Ended(job, seconds)

    def put(self, message: tuple[Any, ...]) -> None:
        self.said.append(message)

    def is_set(self) -> bool:
        self._steps += 1
        self.at_step(self._steps)
        return False


@pytest.fixture
def study(
    tiny_model: Path, tiny_data: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., OneMachine | None]:
    """Return what does a small study: in a folder here, or at a URL on a machine."""

    def do(out: object, at_step: Callable[[int], object] = lambda _: None) -> OneMachine | None:
        made: list[OneMachine] = []

        @contextmanager
        def connected(cluster: Cluster, _: Progress) -> Iterator[OneMachine]:
            made.append(OneMachine(cluster, at_step))
            yield made[0]

        monkeypatch.setattr(Cluster, "check", lambda _: None)
        monkeypatch.setattr("temper.study.cluster.connected", connected)
        temper.compare(
            str(out),
            methods="vanilla,ema",
            seeds=(0,),
            cluster="HOST:1" if "://" in str(out) else None,
            config=study_tree(tiny_model, tiny_data / "reviews", train=TRAIN),
        )
        return made[0] if made else None

    return do


TRAIN = {"max_steps": 4, "save_steps": 1}


def files(folder: Path) -> set[str]:
    return {file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()}


def scores(folder: Path) -> dict[str, bytes]:
    return {
        file.parent.parent.name: file.read_bytes() for file in folder.glob("runs/*/*/scores.json")
    }


def test_a_study_in_a_store_has_the_files_of_one_in_a_folder_and_is_done_once(
    tmp_path: Path, study: Callable[..., OneMachine]
) -> None:
    there, here = tmp_path / "deep" / "there", tmp_path / "here"
    study(f"file://{there}/")
    study(here)
    assert files(there) == files(here)
    assert weights(there) == weights(here)
    assert scores(there) == scores(here)
    assert all(not found.faults for found in verify(there))
    before = {file: file.stat().st_mtime_ns for file in there.glob("runs/**/*")}
    again = study(f"file://{there}")
    assert [said for said in again.said if said[1] == "steps"] == []
    assert before == {file: file.stat().st_mtime_ns for file in there.glob("runs/**/*")}


def test_another_machine_goes_on_from_what_a_lost_one_had_put(
    tmp_path: Path, study: Callable[..., OneMachine]
) -> None:
    there, left = tmp_path / "there", tmp_path / "left"

    def at_step(number: int) -> None:
        # What a machine leaves that is lost here, with its study's process.
        if number == 4:
            shutil.copytree(there, left)

    study(f"file://{there}", at_step)
    assert not list(left.glob("runs/*/model.safetensors"))
    resumed = study(f"file://{left}")
    assert any("is resumed at step 2" in str(said) for said in resumed.said)
    assert weights(left) == weights(there)
    assert scores(left) == scores(there)


def test_a_run_that_is_put_by_half_does_not_count(
    tmp_path: Path, study: Callable[..., OneMachine], monkeypatch: pytest.MonkeyPatch
) -> None:
    there = tmp_path / "there"
    whole = LocalFileSystem.put_file

    def full(self: LocalFileSystem, path: str, place: str, **options: Any) -> None:
        if place.endswith("scores.json"):
            raise OSError(28, "No space left on device")
        whole(self, path, place, **options)

    with monkeypatch.context() as patched:
        patched.setattr(LocalFileSystem, "put_file", full)
        with pytest.raises(WriteError, match=f"file://{there} cannot be used: OSError: .*No space"):
            study(f"file://{there}")
    assert list(there.glob("runs/*/model.safetensors"))
    assert not list(there.glob("runs/*/run.json"))
    study(f"file://{there}")
    assert len(weights(there)) == 2
    assert all(not found.faults for found in verify(there))


def test_a_store_that_cannot_be_used_is_refused_before_any_work(
    tmp_path: Path, study: Callable[..., OneMachine]
) -> None:
    (tmp_path / "file").write_text("not a folder")
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "notes.txt").write_text("mine")
    before = files(tmp_path)
    for url, error, message in (
        (f"file://{tmp_path}/file/study", WriteError, "cannot be used: NotADirectoryError"),
        (f"file://{tmp_path}/foreign", CheckpointError, "holds 'notes.txt' but no study"),
        ("gs://bucket/study", SettingError, "gcsfs.*Install it with pip"),
        ("nowhere://bucket/study", WriteError, "Protocol not known"),
        ("memory://study", SettingError, "memory of one process"),
    ):
        with pytest.raises(error, match=message):
            study(url)
    with pytest.raises(SettingError, match=r"is a URL.* address as --cluster"):
        temper.compare(f"file://{tmp_path}/study", model="minilm", data="demo")
    assert files(tmp_path) == before


def test_a_machine_says_that_it_finds_another_store(tmp_path: Path) -> None:
    folder: Any = None
    store = Store(f"file://{tmp_path}/store", tmp_path / "copy")
    with store.probe():
        assert "another place" in _look_at_store(folder, store, ".temper-of-another", ())
    assert not files(tmp_path)
