"""A study in an object store equals one in a folder, also after interruptions."""

from __future__ import annotations

import itertools
import signal
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fsspec.implementations.local import LocalFileSystem

import temper
from temper.cluster.machines import Cluster
from temper.cluster.store import Store
from temper.errors import CheckpointError, SettingError, TemperError, WriteError
from temper.export.verify import verify
from temper.progress import Progress
from temper.study.cluster import Job, _do_stored
from tests.cli.calls import call
from tests.cli.tiny_project import study_tree
from tests.study.test_workers import one_thread, weights

__all__ = ["one_thread"]


class OneMachine(Progress):
    """Simulate a cluster of one machine, whose runs are in a separate folder."""

    runs = 1

    def __init__(self, at_step: Callable[[int], object]) -> None:
        self.at_step = at_step
        self.notices: list[str] = []
        self.trained = 0

    def do_runs(
        self, jobs: Sequence[Job], cluster: Cluster, progress: Progress
    ) -> Generator[tuple[Job, float | None]]:
        assert cluster.store is not None
        cluster.store.push()
        for job in jobs:
            seconds = _do_stored(job.folder.load(), job.cell, cluster.store, self)
            cluster.store.fetch(job.run.path)
            yield job, seconds

    def steps(self, done: int, total: int, *, loss: float | None) -> None:
        self.trained += 1
        self.at_step(self.trained)

    def notice(self, text: str) -> None:
        self.notices.append(text)


@pytest.fixture
def study(
    tiny_model: Path, tiny_data: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., OneMachine]:
    """Return a function that does a small study: in a folder here, or at a URL on a machine."""

    def do(
        out: object,
        at_step: Callable[[int], object] = lambda _: None,
        seeds: tuple[int, ...] = (0,),
    ) -> OneMachine:
        machine = OneMachine(at_step)
        monkeypatch.setattr(Cluster, "check", lambda _: None)
        monkeypatch.setattr(Cluster, "connection", lambda _: nullcontext())
        monkeypatch.setattr("temper.study.schedule.do_runs", machine.do_runs)
        temper.compare(
            out=str(out),
            methods="plain,ema",
            seeds=seeds,
            cluster="HOST:1" if "://" in str(out) else None,
            config=study_tree(tiny_model, tiny_data / "reviews", train=TRAIN),
        )
        return machine

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
    assert all(not result.faults for result in verify(there))
    before = {file: file.stat().st_mtime_ns for file in there.glob("runs/**/*")}
    assert study(f"file://{there}").trained == 0
    assert before == {file: file.stat().st_mtime_ns for file in there.glob("runs/**/*")}


def test_a_stopped_run_resumes_from_its_checkpoint_in_the_store(
    tmp_path: Path, study: Callable[..., OneMachine]
) -> None:
    # A shell's background jobs ignore SIGINT, and so would these tests.
    signal.signal(signal.SIGINT, signal.default_int_handler)

    def stop(step: int) -> None:
        if step == 2:
            signal.raise_signal(signal.SIGINT)

    there = tmp_path / "there"
    with pytest.raises(KeyboardInterrupt):
        study(f"file://{there}", stop)
    resumed = study(f"file://{there}")
    assert any("is resumed at step" in text for text in resumed.notices)
    study(tmp_path / "here")
    assert weights(there) == weights(tmp_path / "here")
    assert scores(there) == scores(tmp_path / "here")
    assert files(there) == files(tmp_path / "here")


def test_a_run_that_is_put_by_half_starts_again(
    tmp_path: Path, study: Callable[..., OneMachine], monkeypatch: pytest.MonkeyPatch
) -> None:
    there, whole = tmp_path / "there", LocalFileSystem.put_file

    def full(self: LocalFileSystem, path: str, target: str, **options: Any) -> None:
        if target.endswith("scores.json"):
            raise OSError(28, "No space left on device")
        whole(self, path, target, **options)

    with monkeypatch.context() as patched:
        patched.setattr(LocalFileSystem, "put_file", full)
        with pytest.raises(WriteError, match=f"file://{there} cannot be used: OSError: .*No space"):
            study(f"file://{there}")
    assert not list(there.glob("runs/*/run.json"))
    study(f"file://{there}")
    assert len(weights(there)) == 2
    assert all(not result.faults for result in verify(there))


def test_a_run_that_cannot_be_fetched_stays_whole_in_the_store(
    tmp_path: Path, study: Callable[..., OneMachine], monkeypatch: pytest.MonkeyPatch
) -> None:
    def break_off(self: LocalFileSystem, path: str, target: str, **options: Any) -> None:
        Path(target).parent.mkdir(parents=True, exist_ok=True)
        Path(target).write_bytes(Path(path).read_bytes()[:5])
        raise ConnectionError("reset by peer")

    there = tmp_path / "there"
    with monkeypatch.context() as patched:
        patched.setattr(LocalFileSystem, "get_file", break_off)
        with pytest.raises(WriteError, match="ConnectionError: reset by peer"):
            study(f"file://{there}")
    (run,) = there.glob("runs/*")
    before = {file: file.stat().st_mtime_ns for file in run.rglob("*")}
    study(f"file://{there}")
    assert before == {file: file.stat().st_mtime_ns for file in run.rglob("*")}
    assert all(not result.faults for result in verify(there))


def write(folder: Path, texts: Mapping[str, str]) -> None:
    """Write text files by their names."""
    for name, text in texts.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


@contextmanager
def lost_at(number: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Interrupt the process at one of the operations on a store; yield those before."""
    done: list[str] = []
    with monkeypatch.context() as patched:
        for operation in ("put_file", "rm_file", "rm"):
            whole = getattr(LocalFileSystem, operation)

            def do(self: Any, *names: str, whole: Any = whole, **options: Any) -> None:
                if len(done) == number:
                    raise KeyboardInterrupt
                done.append(names[-1])
                whole(self, *names, **options)

            patched.setattr(LocalFileSystem, operation, do)
        yield done


@pytest.mark.parametrize("part", [".", "evaluation"])
def test_an_interrupted_put_never_leaves_a_mark_with_other_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    mark = {".": "run.json", "evaluation": "settings.json"}[part]
    for number in itertools.count():
        there, here = (tmp_path / f"{number}" / name for name in ("there", "here"))
        store, run = Store(f"file://{there}", here), here / "runs" / "plain-s0"
        before = {"run.json": "old", "evaluation/rows": "old", "evaluation/settings.json": "old"}
        write(run, before)
        store.put(run, "run.json")
        if part == ".":
            # An older checkpoint is gone from the copy.
            write(there / "runs" / "plain-s0", {"checkpoints/checkpoint-1/state": "old"})
        now = [f"{part}/{name}" for name in ("rows", "more", mark)]
        write(run, dict.fromkeys(now, "new"))
        with lost_at(number, monkeypatch) as done, suppress(KeyboardInterrupt):
            store.put(run / part, mark)
        target = there / "runs" / "plain-s0" / part
        if (target / mark).exists():
            assert {file.read_text() for file in target.glob("*") if file.is_file()} in (
                {"old"},
                {"new"},
            )
        if len(done) < number:
            break
    assert files(there) == files(here)
    assert number > 3


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
            command(out=url)
        printed.append(str(raised.value))
    monkeypatch.setattr("temper.cli.compare.compare_methods", lambda *_, **__: PAGE)
    monkeypatch.setattr("temper.cli.compare.print_headline", lambda _: None)
    monkeypatch.setattr("temper.report.headline", lambda _: None)
    for more in ((), ("--json",)):
        output = call("compare", *("--out", url), *("--model", "minilm"), *more).output
        assert "127.0.0.1:1/study/report.html" in output
        printed.append(output)
    assert not [text for text in printed if "secret" in text]


PAGE = SimpleNamespace(
    page=Path("report.html"), comparison=SimpleNamespace(to_json=dict, missing=(), columns=())
)


def test_a_store_that_cannot_be_used_raises_an_error_before_any_work(
    tmp_path: Path, study: Callable[..., OneMachine]
) -> None:
    (tmp_path / "file").write_text("not a folder")
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "notes.txt").write_text("mine")
    before = files(tmp_path)
    for url, error, message in (
        (f"file://{tmp_path}/file/study", WriteError, "cannot be used: NotADirectoryError"),
        (f"file://{tmp_path}/foreign", CheckpointError, "has 'notes.txt' but no study"),
        ("gs://bucket/study", SettingError, "gcsfs.*Install it with pip"),
        ("nowhere://bucket/study", WriteError, "Protocol not known"),
    ):
        with pytest.raises(error, match=message):
            study(url)
    with pytest.raises(SettingError, match=r"is a URL.* address as --cluster"):
        temper.compare(out=f"file://{tmp_path}/study", model="minilm", data="demo")
    assert files(tmp_path) == before
