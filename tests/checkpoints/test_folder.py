"""A run's folder: records are written whole, and logs end at the resumed step."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from temper.checkpoints.folder import RunFolder, differences, read_json
from temper.errors import CheckpointError
from temper.files import SCHEMA, make_folder, remove_empty, sha256, write_json, write_text


def test_a_folder_that_does_not_exist_has_no_record(tmp_path: Path) -> None:
    assert RunFolder(tmp_path / "new").record() is None
    assert not (tmp_path / "new").exists()


def test_a_folder_with_other_content_raises_an_error(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("x", encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"has 'thesis\.tex' but no run\.json"):
        RunFolder(tmp_path).record()


def test_a_file_instead_of_a_folder_raises_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x", encoding="utf-8")
    with pytest.raises(CheckpointError, match="is a file, expected a folder"):
        RunFolder(tmp_path / "file").record()


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"{", "cannot be read"), (b"\xff", "cannot be read"), (b"[1]", "must hold a JSON object")],
)
def test_a_damaged_record_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "run.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=rf"run\.json {message}"):
        RunFolder(tmp_path).record()


def test_the_newest_checkpoint_is_the_one_with_the_highest_step(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert folder.last_checkpoint() is None
    for name in ("checkpoint-9", "checkpoint-10", "tmp-checkpoint-11", "checkpoint-x"):
        (folder.checkpoints / name).mkdir(parents=True)
    assert folder.last_checkpoint() == folder.checkpoints / "checkpoint-10"


def test_logs_behind_the_resumed_step_are_cut_with_a_torn_last_line(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    for step in (1, 2, 3):
        folder.append_metrics({"step": step, "loss": 0.5})
    with folder.metrics.open("a", encoding="utf-8") as file:
        file.write('{"step": 4, "lo')
    folder.cut_metrics(4)
    assert len(folder.metrics.read_text(encoding="utf-8").splitlines()) == 3
    folder.cut_metrics(2)
    logs = [json.loads(line) for line in folder.metrics.read_text(encoding="utf-8").splitlines()]
    assert [log["step"] for log in logs] == [1, 2]
    folder.cut_metrics(0)
    assert folder.metrics.read_text(encoding="utf-8") == ""


def test_a_value_that_is_not_finite_is_logged_as_unknown(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.append_metrics({"step": 1, "grad_norm": float("inf"), "loss": 1.0})
    line = json.loads(folder.metrics.read_text(encoding="utf-8"))
    assert line == {"step": 1, "grad_norm": None, "loss": 1.0}


def test_publishing_moves_the_files_and_drops_the_checkpoints(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    (folder.checkpoints / "checkpoint-1").mkdir(parents=True)
    folder.staging.mkdir()
    (folder.staging / "model.safetensors").write_bytes(b"new")
    (tmp_path / "model.safetensors").write_bytes(b"old")
    folder.publish({"status": "finished"})
    assert (tmp_path / "model.safetensors").read_bytes() == b"new"
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["model.safetensors", "run.json"]
    files = {"model.safetensors": sha256(tmp_path / "model.safetensors")}
    assert folder.record() == {"schema": SCHEMA, "status": "finished", "files": files}


def test_clearing_keeps_files_that_no_run_wrote(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    (folder.checkpoints / "checkpoint-1").mkdir(parents=True)
    folder.write_record({})
    (tmp_path / "notes.txt").write_text("mine", encoding="utf-8")
    folder.clear()
    assert [entry.name for entry in tmp_path.iterdir()] == ["notes.txt"]


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_json(path, {"a": 1})
    with pytest.raises(ValueError, match="Out of range float"):
        write_json(path, {"a": float("nan")})
    assert read_json(path) == {"schema": SCHEMA, "a": 1}
    with pytest.raises(UnicodeEncodeError, match="surrogates not allowed"):
        write_text(path, "good \ud800")
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.json"]
    assert read_json(path) == {"schema": SCHEMA, "a": 1}


def test_a_record_of_another_release_raises_an_error(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    write_json(path, {"schema": SCHEMA + 1})
    with pytest.raises(CheckpointError, match=r"run\.json has schema 2.*another release of Temper"):
        read_json(path)


def test_created_folders_are_removed_if_they_are_empty(tmp_path: Path) -> None:
    made = make_folder(tmp_path / "a" / "b" / "c")
    assert made == [tmp_path / "a" / "b" / "c", tmp_path / "a" / "b", tmp_path / "a"]
    (tmp_path / "a" / "kept").write_text("x", encoding="utf-8")
    remove_empty(made)
    assert [entry.name for entry in (tmp_path / "a").iterdir()] == ["kept"]


def test_a_folder_under_a_file_raises_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x", encoding="utf-8")
    with pytest.raises(CheckpointError, match="cannot be created: Not a directory"):
        make_folder(tmp_path / "file" / "run")


def test_differences_name_the_dotted_setting() -> None:
    before = {"model": "a", "train": {"epochs": 3, "seed": 1}, "old": 1}
    now = {"model": "a", "train": {"epochs": 1, "seed": 1}, "new": 2}
    assert differences(before, now) == [
        "train.epochs: 3 -> 1",
        "old: 1 -> None",
        "new: None -> 2",
    ]
