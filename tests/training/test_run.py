"""One run in its folder: resumed to the same weights, completed atomically, stopped cleanly."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from temper.checkpoints.folder import OF_A_RUN
from temper.checkpoints.identity import model_identity
from temper.data.examples import Examples
from temper.errors import CheckpointError, NonFiniteError, SettingError, Terminated, WriteError
from temper.locks import locked
from temper.progress import Progress
from temper.training import run as module
from temper.training.config import RunConfig
from temper.training.prepared import class_weights
from temper.training.run import train
from tests.cli.tiny_project import make_data, make_model, sentences, write_csv
from tests.training.listeners import Heard, StopAt
from tests.training.tiny_training import (
    logs,
    record,
    settings_of_run,
)

STOPS = (signal.SIGTERM, signal.SIGINT)


def config(project: Path, **train_settings: Any) -> RunConfig:
    train_settings = {"max_steps": 5, **train_settings}
    return RunConfig.of(settings_of_run(project, method="uegr", **train_settings))


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


@pytest.fixture(scope="module")
def whole(project: Path) -> Path:
    return train(config(project), project / "whole")


def test_a_stopped_run_resumes_to_the_same_weights_and_logs(project: Path, whole: Path) -> None:
    out = project / "stopped"
    with pytest.raises(KeyboardInterrupt):
        train(config(project), out, progress=StopAt(3))
    assert record(out)["status"] == "stopped"
    assert [entry.name for entry in (out / "checkpoints").iterdir()] == ["checkpoint-2"]
    assert not (out / "model.safetensors").exists()
    heard = Heard()
    train(config(project), out, progress=heard)
    assert f"{out} is resumed at step 2." in heard.notices
    assert (out / "model.safetensors").stat().st_mode == (out / "config.json").stat().st_mode
    assert (out / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    assert logs(out) == logs(whole)
    assert [log["step"] for log in logs(out) if "loss" in log] == [1, 2, 3, 4, 5]
    assert (record(out)["status"], record(out)["times"]["steps"]) == ("finished", 5)
    assert not (out / "checkpoints").exists()


def test_another_checkpoint_interval_or_device_is_the_same_run(project: Path, whole: Path) -> None:
    before = (whole / "run.json").stat().st_mtime_ns
    assert train(config(project, save_steps=3, device="auto"), whole) == whole
    assert (whole / "run.json").stat().st_mtime_ns == before


def test_truncated_rows_and_unknown_tokens_are_reported_before_training_and_recorded(
    project: Path,
) -> None:
    write_csv(project / "strange" / "train.csv", [(f"zzz {text}", y) for text, y in sentences(20)])
    write_csv(project / "strange" / "dev.csv", sentences(6))
    settings = settings_of_run(project, method="plain", max_steps=1)
    settings["data"] = {"source": str(project / "strange"), "max_length": 6}
    heard = Heard()
    result = record(train(RunConfig.of(settings), project / "strange-run", progress=heard))
    assert any(
        "--max-length" in message and "training rows" in message for message in heard.notices
    )
    (message,) = (message for message in result["notices"] if "unknown" in message)
    assert message in heard.notices
    assert result["truncated"] > 0.05
    assert 0.05 < result["unknown_tokens"] < 0.5


def test_a_stop_before_the_first_step_leaves_no_files(project: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(config(project), project / "a" / "b", progress=StopAt(0))
    assert not (project / "a").exists()


def test_a_run_killed_during_the_setup_of_its_trainer_resumes(
    project: Path, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        """Passes every handler, as the end of the process would."""

    def killed(begun: module.ActiveRun) -> None:
        begun.folder.checkpoints.mkdir()
        raise Killed("killed")

    out = project / "killed"
    with monkeypatch.context() as patched:
        patched.setattr(module.ActiveRun, "_trainer", killed)
        with pytest.raises(Killed, match="killed"):
            train(config(project), out)
    train(config(project), out)
    assert (out / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()


def test_leftovers_of_a_run_killed_at_its_first_record_are_ignored(
    project: Path, whole: Path
) -> None:
    out = project / "first-record"
    out.mkdir()
    for name in (".run.json.4711", ".lock"):
        (out / name).touch()
    train(config(project), out)
    assert names(out) == names(whole)


@pytest.mark.parametrize("left", ["checkpoints/checkpoint-5", ".lock"])
def test_leftovers_in_a_finished_run_are_removed(project: Path, whole: Path, left: str) -> None:
    out = Path(shutil.copytree(whole, project / "swept"))
    if left == ".lock":
        (out / left).touch()
    else:
        (out / left).mkdir(parents=True)
    train(config(project), out)
    assert names(out) == names(whole)
    shutil.rmtree(out)


def test_a_finished_run_locked_by_another_process_is_reused(project: Path, whole: Path) -> None:
    out = Path(shutil.copytree(whole, project / "tidied"))
    with locked(out):
        kept = names(out)
        train(config(project), out)
        assert names(out) == kept


def test_the_second_process_on_a_folder_raises_an_error_and_changes_nothing(
    project: Path, whole: Path
) -> None:
    out = project / "twice"

    class Second(Progress):
        refusal: str | None = None

        def steps(self, done: int, total: int, *, loss: float | None) -> None:
            if done == 3:
                # A child, because a process may look into what it writes itself.
                code = (
                    "import sys; from pathlib import Path\n"
                    "from temper.checkpoints.folder import RunFolder\n"
                    "RunFolder(Path(sys.argv[1])).record()"
                )
                child = subprocess.run(
                    [sys.executable, "-c", code, str(out)], capture_output=True, text=True
                )
                self.refusal = child.stderr.splitlines()[-1]

    second = Second()
    train(config(project), out, progress=second)
    assert f"is being written by process {os.getpid()} on" in (second.refusal or "")
    assert logs(out) == logs(whole)
    assert names(out) == names(whole)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_a_checkpoint_of_the_current_step(
    project: Path, whole: Path, number: signal.Signals
) -> None:
    class Signalled(Progress):
        def steps(self, done: int, total: int, *, loss: float | None) -> None:
            if done == 3:
                signal.raise_signal(number)

    # Whoever starts the tests may ignore a signal.
    older = {each: signal.signal(each, signal.default_int_handler) for each in STOPS}
    out = project / f"signal-{number}"
    try:
        with pytest.raises((KeyboardInterrupt, Terminated)) as stopped:
            train(config(project, save_steps=100), out, progress=Signalled())
        assert [signal.getsignal(each) for each in STOPS] == [signal.default_int_handler] * 2
    finally:
        for each, handler in older.items():
            signal.signal(each, handler)
    assert isinstance(stopped.value, Terminated) == (number == signal.SIGTERM)
    assert getattr(stopped.value, "code", 143) == 143
    assert [entry.name for entry in (out / "checkpoints").iterdir()] == ["checkpoint-3"]
    assert (record(out)["status"], record(out)["times"]["steps"]) == ("stopped", 3)
    train(config(project), out)
    assert (out / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    assert logs(out) == logs(whole)


@pytest.mark.parametrize("apart", [0.0, 3600.0])
def test_a_second_signal_ends_the_run_without_a_checkpoint(
    project: Path, monkeypatch: pytest.MonkeyPatch, apart: float
) -> None:
    class Impatient(Progress):
        def steps(self, done: int, total: int, *, loss: float | None) -> None:
            if done == 3:
                signal.raise_signal(signal.SIGTERM)
                signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr("temper.stopping.FORWARDED", apart)
    out = project / f"impatient-{apart}"
    with pytest.raises(Terminated, match="143"):
        train(config(project, save_steps=100), out, progress=Impatient())
    assert record(out)["status"] == "stopped"
    kept = [path.name for path in (out / "checkpoints").glob("checkpoint-*")]
    assert kept == ([] if apart == 0 else ["checkpoint-3"])


def test_a_flipped_bit_in_a_checkpoint_is_not_resumed_from(project: Path) -> None:
    out = project / "flipped"
    with pytest.raises(KeyboardInterrupt):
        train(config(project), out, progress=StopAt(3))
    file = out / "checkpoints" / "checkpoint-2" / "optimizer.safetensors"
    content = bytearray(file.read_bytes())
    content[-5] ^= 1
    file.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"optimizer\.safetensors is damaged"):
        train(config(project), out)


def test_a_run_in_a_linked_folder_keeps_the_link(project: Path, whole: Path) -> None:
    link = project / "link"
    link.symlink_to(project / "linked", target_is_directory=True)
    train(config(project), link)
    assert link.is_symlink()
    assert names(project / "linked") == names(whole)


def test_a_full_disk_is_reported_before_the_first_step(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("temper.files.free_bytes", lambda _: 1000)
    heard = Heard()
    with pytest.raises(WriteError, match=r"has room for 1 kB, .*with a checkpoint"):
        train(config(project), project / "no-room", progress=heard)
    assert not heard.done
    assert not (project / "no-room").exists()


def test_a_stopped_run_can_be_restarted(project: Path, whole: Path) -> None:
    out = project / "anew"
    with pytest.raises(KeyboardInterrupt):
        train(config(project), out, progress=StopAt(4))
    heard = Heard()
    train(config(project), out, resume=False, progress=heard)
    assert heard.done == [0, 1, 2, 3, 4, 5]
    assert (out / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()


def test_training_again_on_changed_rows_raises_an_error(project: Path) -> None:
    data = project / "changing"
    make_data(data)
    base = config(project).settings()
    tree = {
        "model": str(project / "model"),
        **base,
        "data": {**base["data"], "source": str(data / "reviews")},
    }
    out = train(RunConfig.of(tree), project / "rows")
    path = data / "reviews" / "train.csv"
    path.write_text(path.read_text().replace("the film", "a film", 1), encoding="utf-8")
    with pytest.raises(CheckpointError, match="the rows of the data"):
        train(RunConfig.of(tree), out)


def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_the_checkpoint(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Breaking(Progress):
        def steps(self, done: int, total: int, *, loss: float | None) -> None:
            if done == 3:
                raise NonFiniteError("`task` is NaN", step=3, term="task", rows=[1])

    out = project / "broken"
    with pytest.raises(NonFiniteError, match="`task` is NaN"):
        train(config(project), out, progress=Breaking())
    assert record(out)["status"] == "stopped"
    assert (out / "checkpoints" / "checkpoint-2").is_dir()


def test_an_error_while_building_the_trainer_leaves_no_files(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise SettingError("no such device")

    monkeypatch.setattr(module, "training_arguments", refuse)
    with pytest.raises(SettingError, match="no such device"):
        train(config(project), project / "x" / "y")
    assert not (project / "x").exists()


def examples(labels: list[int]) -> Examples:
    return Examples(
        "toy", [f"text {index}" for index in range(len(labels))], labels=labels,
        label_names=("no", "yes"), kind="classification",
    )  # fmt: skip


def test_balanced_class_weights_equal_the_formula() -> None:
    assert class_weights("balanced", examples([0, 0, 0, 1])) == [4 / 6, 4 / 2]
    assert class_weights((1.0, 3.0), examples([0, 1])) == [1.0, 3.0]
    assert class_weights(None, examples([0, 1])) is None


def test_class_weights_must_fit_the_labels() -> None:
    with pytest.raises(SettingError, match=r"`train\.class_weights` .*2 numbers, .*no, yes"):
        class_weights((1.0,), examples([0, 1]))
    scores = Examples("toy", ["a", "b"], labels=[0.5, 1.5], kind="regression")
    with pytest.raises(SettingError, match="needs classes"):
        class_weights("balanced", scores)


def test_the_identity_of_a_model_depends_on_its_weights_and_not_its_report(tmp_path: Path) -> None:
    make_model(tmp_path / "model")
    before = model_identity(str(tmp_path / "model"))
    (tmp_path / "model" / "report.html").write_text("x", encoding="utf-8")
    for name in OF_A_RUN:
        (tmp_path / "model" / name).write_text("{}", encoding="utf-8")
    assert model_identity(str(tmp_path / "model")) == before
    weights = tmp_path / "model" / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(bytes(content))
    assert model_identity(str(tmp_path / "model")) != before
    assert model_identity("someone/some-model") == "someone/some-model"
