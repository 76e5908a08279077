"""Files and folders are written completely or not at all, and failed writes are clear errors."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from temper import files
from temper.checkpoints.folder import check_output_folder
from temper.errors import CheckpointError, LockedError, WriteError
from temper.files import check_free, disagreements, make_folder, staged_folder, write_text, writing


def fill(folder: Path, text: str) -> None:
    with staged_folder(folder) as staged:
        (staged / "a.txt").write_text(text, encoding="utf-8")


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def test_a_folder_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    fill(tmp_path / "out", "old")

    def broken() -> None:
        with staged_folder(tmp_path / "out") as staged:
            (staged / "b.txt").touch()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        broken()
    assert (names(tmp_path), names(tmp_path / "out")) == (["out"], ["a.txt"])
    fill(tmp_path / "out", "new")
    assert (names(tmp_path), (tmp_path / "out" / "a.txt").read_text()) == (["out"], "new")


def test_a_folder_that_a_killed_process_had_moved_away_is_put_back(tmp_path: Path) -> None:
    fill(tmp_path / ".out.writing" / "older", "old")
    (tmp_path / ".out.writing" / "new").mkdir()

    def interrupted() -> None:
        with staged_folder(tmp_path / "out"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert (names(tmp_path), (tmp_path / "out" / "a.txt").read_text()) == (["out"], "old")


def test_two_do_not_write_one_folder(tmp_path: Path) -> None:
    error = pytest.raises(LockedError, match=r"out is being written .*process \d+ on")
    with staged_folder(tmp_path / "out"), error:
        fill(tmp_path / "out", "second")
    assert names(tmp_path / "out") == []


def test_a_link_is_kept_and_its_target_is_written(tmp_path: Path) -> None:
    for name, there in (("out", True), ("dangling", False)):
        target = tmp_path / f"disk-{name}"
        if there:
            fill(target, "old")
        (tmp_path / name).symlink_to(target, target_is_directory=True)
        fill(tmp_path / name, "new")
        assert (tmp_path / name).is_symlink()
        assert (target / "a.txt").read_text(encoding="utf-8") == "new"
    (tmp_path / "made").symlink_to(tmp_path / "not-yet", target_is_directory=True)
    make_folder(tmp_path / "made")
    assert (tmp_path / "not-yet").is_dir()
    (tmp_path / "p.csv").symlink_to(tmp_path / "disk-out" / "p.csv")
    write_text(tmp_path / "p.csv", "x")
    assert (tmp_path / "p.csv").is_symlink()
    assert (tmp_path / "disk-out" / "p.csv").read_text(encoding="utf-8") == "x"


def test_names_up_to_the_limit_of_the_file_system_are_written(tmp_path: Path) -> None:
    fill(tmp_path / ("n" * 255), "new")
    write_text(tmp_path / ("f" * 255), "x")
    assert names(tmp_path) == ["f" * 255, "n" * 255]
    long = tmp_path / ("n" * 300)
    with pytest.raises(WriteError, match="Names have at most 255 bytes: choose a shorter one"):
        check_output_folder(long, what="run.json", held=lambda: False)
    with pytest.raises(CheckpointError, match="File name too long"):
        fill(long, "new")


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
        OSError(errno.EDQUOT, os.strerror(errno.EDQUOT), "/elsewhere/tmp"),
        # As safetensors and tokenizers, which are written in Rust, say it.
        RuntimeError("I/O error: No space left on device (os error 28)"),
        ValueError('Os { code: 28, kind: StorageFull, message: "No space left on device" }'),
    ],
)
def test_a_full_disk_is_one_line_with_the_room_that_is_left(
    tmp_path: Path, error: Exception
) -> None:
    words = r"out cannot be written: (No space left on device|Disk quota exceeded) \([\d.]+ \w+ are"
    with pytest.raises(WriteError, match=words), writing(tmp_path / "out"):
        raise error


def test_other_errors_than_failed_writes_pass_unchanged(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="data"), writing(tmp_path / "out"):
        raise OSError(errno.EACCES, "data", "/elsewhere/data.csv")
    with pytest.raises(ValueError, match="28"), writing(tmp_path / "out"):
        raise ValueError("28")


def test_a_read_only_folder_is_reported(tmp_path: Path) -> None:
    error = OSError(errno.EACCES, "", str(tmp_path / "out" / "x"))
    refusal = pytest.raises(WriteError, match="Permission denied. Make the folder")
    with refusal, writing(tmp_path / "out"):
        raise error


def test_work_without_disk_space_is_not_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "free_bytes", lambda _: 5_000_000)
    check_free(tmp_path, 5_000_000, what="the model")
    with pytest.raises(WriteError, match=r"room for 5 MB, .*the model .* 6\.5 MB"):
        check_free(tmp_path, 6_500_000, what="the model")


@pytest.mark.parametrize("name", ["x" * 3000, "a\0b", "gone"])
def test_a_name_that_no_file_can_have_is_missing(tmp_path: Path, name: str) -> None:
    assert "is missing" in disagreements(tmp_path, {name: ""})[0]
