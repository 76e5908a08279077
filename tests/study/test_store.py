"""A study in an object store is the study of a folder, whatever is lost on the way."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from fsspec.implementations.local import LocalFileSystem

import temper
from temper.app.cluster import Cluster
from temper.app.store import Store
from temper.app.verify import verify
from temper.errors import CheckpointError, SettingError, TemperError, WriteError
from temper.study.cluster import Ended, Job, _do_stored, _look_at_store
from temper.study.work import StudyFolder
from temper.training.config import digest
from temper.training.progress import Progress
from tests.cli.calls import call
from tests.cli.tiny_project import study_tree
from tests.study.test_workers import one_thread, weights

__all__ = ["one_thread"]


class OneMachine:
    """Stand for a cluster of one machine, whose runs lie in a folder of its own."""

    runs = 1

    def __init__(self, cluster: Cluster, at_step: Callable[[int], object]) -> None:
        assert cluster.store is not None
        self.store, self.at_step = cluster.store, at_step
        self.messages: list[tuple[Any, ...]] = []
        self._steps = 0

    def check(self, folder: StudyFolder, file: Path) -> None:
        with self.store.probe() as name:
            if fault := _look_at_store(folder, self.store, name, ()):
                raise TemperError(fault)

    def do(self, jobs: Sequence[Job]) -> Generator[Ended]:
        self.store.push()
        for job in jobs:
            channel: Any = self
            seconds = _do_stored(job.folder.load(), job.cell, channel, self.store)
            self.store.fetch(job.run.path, weights=False)
            yield Ended(job, seconds)

    def put(self, message: tuple[Any, ...]) -> None:
        self.messages.append(message)

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
    assert {name for name in files(there) if not name.endswith("/.attempt")} == files(here)
    assert weights(there) == weights(here)
    assert scores(there) == scores(here)
    assert all(not found.faults for found in verify(there))
    before = {file: file.stat().st_mtime_ns for file in there.glob("runs/**/*")}
    again = study(f"file://{there}")
    assert [message for message in again.messages if message[1] == "steps"] == []
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
    assert any("is resumed at step 2" in str(message) for message in resumed.messages)
    assert weights(left) == weights(there)
    assert scores(left) == scores(there)


def test_a_run_that_is_put_by_half_goes_on_from_its_last_checkpoint(
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
    (record,) = there.glob("runs/*/run.json")
    assert json.loads(record.read_text())["status"] == "running"
    resumed = study(f"file://{there}")
    assert any("is resumed at step 3" in str(message) for message in resumed.messages)
    assert len(weights(there)) == 2
    assert all(not found.faults for found in verify(there))


def break_off(self: LocalFileSystem, path: str, place: str, **options: Any) -> None:
    """Get a file as a connection does that breaks inside it."""
    Path(place).parent.mkdir(parents=True, exist_ok=True)
    Path(place).write_bytes(Path(path).read_bytes()[:5])
    raise ConnectionError("reset by peer")


def test_a_run_that_cannot_be_fetched_stays_whole_in_the_store(
    tmp_path: Path, study: Callable[..., OneMachine], monkeypatch: pytest.MonkeyPatch
) -> None:
    there = tmp_path / "there"
    with monkeypatch.context() as patched:
        # A new run is put by its machine, and first fetched by the study's process.
        patched.setattr(LocalFileSystem, "get_file", break_off)
        with pytest.raises(WriteError, match="ConnectionError: reset by peer"):
            study(f"file://{there}")
    (run,) = there.glob("runs/*")
    assert all(not found.faults for found in verify(run))
    before = {file: file.stat().st_mtime_ns for file in run.rglob("*")}
    study(f"file://{there}")
    assert before == {file: file.stat().st_mtime_ns for file in run.rglob("*")}
    assert all(not found.faults for found in verify(there))


CELL = ("vanilla", 0)
RUN = StudyFolder(Path(), cast("Any", None), {CELL: digest("settings")}).run(CELL).path.as_posix()
CHECKPOINTS = ("checkpoints/checkpoint-1", "checkpoints/checkpoint-2")


def write(folder: Path, texts: Mapping[str, str]) -> None:
    """Write text files by their names."""
    for name, text in texts.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


def test_a_study_s_process_puts_nothing_of_a_run_but_a_temperature(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there, copy = tmp_path / "there", tmp_path / "copy"
    run = {f"{RUN}/{name}": "whole" for name in ("run.json", "rows", "evaluation/scores.json")}
    write(there, run)
    store = Store(f"file://{there}", copy)
    store.fetch(weights=False)
    with monkeypatch.context() as patched:
        patched.setattr(LocalFileSystem, "get_file", break_off)
        with pytest.raises(WriteError):
            store.fetch(copy / RUN, weights=True)
    assert {name: (copy / name).read_text() for name in files(copy)} == run
    own = dict.fromkeys((f"{RUN}/calibration.json", "study.json", "runs/knn-s0/run.json"), "own")
    write(copy, {**own, f"{RUN}/run.json": "own", f"{RUN}/more": "own"})
    (copy / RUN / "rows").unlink()
    store.push()
    assert {name: (there / name).read_text() for name in files(there)} == {**run, **own}


@contextmanager
def lost_at(number: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Lose the process at one of the operations on a store; give those that were done."""
    done: list[str] = []
    with monkeypatch.context() as patched:
        for operation in ("put_file", "rm_file"):
            whole = getattr(LocalFileSystem, operation)

            def do(self: Any, *names: str, whole: Any = whole, **options: Any) -> None:
                if len(done) == number:
                    raise KeyboardInterrupt
                done.append(names[-1])
                whole(self, *names, **options)

            patched.setattr(LocalFileSystem, operation, do)
        yield done


def test_whenever_a_put_is_interrupted_the_last_whole_checkpoint_can_be_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in itertools.count():
        there, here, other = (tmp_path / f"{number}" / name for name in ("there", "here", "other"))
        store = Store(f"file://{there}", here)
        run, first, second = (here / RUN / name for name in ("", *CHECKPOINTS))
        store.begin(run)
        write(run, {"run.json": "running", "metrics.jsonl": "1"})
        write(first, {"model.safetensors": "1", "state.json": "1", "checksums.json": "1"})
        store.put(run)
        write(run, {"metrics.jsonl": "1 2"})
        write(second, {"model.safetensors": "2", "state.json": "2", "checksums.json": "2"})
        shutil.rmtree(first)
        with lost_at(number, monkeypatch) as done, suppress(KeyboardInterrupt):
            store.put(run)
        Store(f"file://{there}", other).fetch(other / RUN, weights=True)
        checkpoints = sorted((other / RUN / "checkpoints").iterdir())
        assert all(files(checkpoint) == files(second) for checkpoint in checkpoints)
        newest = checkpoints[-1]
        # The logs up to a checkpoint are there with it.
        assert newest.name[-1] in (other / RUN / "metrics.jsonl").read_text()
        if len(done) < number:
            break
        # Ctrl-C puts once more.
        store.put(run)
        assert files(there) == {*files(here), f"{RUN}/.attempt"}
    # A new checkpoint of three files, the logs, and the older checkpoint: nothing is sent twice.
    assert number - 1 == 3 + 1 + 3


def test_a_run_whose_first_put_is_interrupted_counts_as_not_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = tmp_path / "there"
    lost, other = (Store(f"file://{there}", tmp_path / name) for name in ("lost", "other"))
    lost.begin(lost.folder / RUN)
    write(lost.folder / RUN, dict.fromkeys(("run.json", "rows", "more"), "of the lost one"))
    with lost_at(2, monkeypatch), pytest.raises(KeyboardInterrupt):
        lost.put(lost.folder / RUN)
    other.begin(other.folder / RUN)
    other.fetch(other.folder / RUN, weights=True)
    assert not files(other.folder)
    write(other.folder / RUN, {"run.json": "running", "rows": "others"})
    other.put(other.folder / RUN)
    assert files(there) == {*files(other.folder), f"{RUN}/.attempt"}


def test_a_replaced_evaluation_has_no_mark_of_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        there, here = (tmp_path / f"{number}" / name for name in ("there", "here"))
        store, evaluation = Store(f"file://{there}", here), f"{RUN}/evaluation"
        store.begin(here / RUN)
        for content in ("old", "newer"):
            texts = dict.fromkeys((f"{evaluation}/rows", f"{evaluation}/settings.json"), content)
            write(here, {f"{RUN}/run.json": content, **texts})
            at = number if content == "newer" else -1
            with lost_at(at, monkeypatch) as done, suppress(KeyboardInterrupt):
                store.put(here / RUN)
        mark, rows = (there / evaluation / name for name in ("settings.json", "rows"))
        assert not mark.exists() or mark.read_text() == rows.read_text()
        # The run's own mark comes last.
        assert mark.exists() or (there / RUN / "run.json").read_text() == "old"
    assert len(done) == number


def test_a_machine_whose_run_another_took_over_puts_nothing_more(tmp_path: Path) -> None:
    there = tmp_path / "there"
    old, new = (Store(f"file://{there}", tmp_path / name) for name in ("old", "new"))
    for store in (old, new):
        store.begin(store.folder / RUN)
        write(store.folder / RUN, {"run.json": store.folder.name})
    with pytest.raises(TemperError, match=f"Another machine has taken .*{RUN}/ over"):
        old.put(old.folder / RUN)
    new.put(new.folder / RUN)
    assert (there / RUN / "run.json").read_text() == "new"


@pytest.mark.parametrize(
    "url", ["ftp://user:secret@127.0.0.1:1/study", "http://127.0.0.1:1/study?sig=secret"]
)
def test_no_message_has_the_secrets_of_a_url(
    url: str, study: Callable[..., OneMachine], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings: Any = {"model": "minilm", "data": "demo"}
    printed = []
    for command in (study, partial(temper.compare, **settings), partial(temper.train, **settings)):
        with pytest.raises(TemperError, match=r"127\.0\.0\.1:1/study") as raised:
            command(url)
        printed.append(str(raised.value))
    monkeypatch.setattr("temper.cli.compare.compare_methods", lambda *_, **__: PAGE)
    monkeypatch.setattr("temper.cli.compare.print_headline", lambda _: None)
    monkeypatch.setattr("temper.report.headline", lambda _: None)
    monkeypatch.setattr("temper.report.trained.with_seen", lambda *_: None)
    for more in ((), ("--json",)):
        output = call("compare", *("--out", url), *("--model", "minilm"), *more).output
        assert "127.0.0.1:1/study/report.html" in output
        printed.append(output)
    assert not [text for text in printed if "secret" in text]


PAGE = SimpleNamespace(
    page=Path("report.html"), comparison=SimpleNamespace(to_json=dict, missing=(), columns=())
)


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
