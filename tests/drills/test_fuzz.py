"""Damaged files of every kind: a short form of ``python -m dev.drills.fuzz``."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from dev.drills import fuzz
from dev.drills.fuzz import TARGETS, Target, damaged, drill
from temper.errors import DataError, TemperError


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_damaged_files_are_read_or_raise_a_temper_error(project: Path, target: Target) -> None:
    result = drill(project, target, inputs=12, seed=7)
    assert result.faults == []
    assert result.counts.total() == 12


def make(folder: Path, _: Path) -> None:
    (folder / "a.json").write_text('{"rows": [1, 2, 3]}')


def test_the_drill_sees_tracebacks_hangs_and_endless_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def traceback(folder: Path) -> None:
        raise KeyError("rows")

    def hang(folder: Path) -> None:
        try:
            time.sleep(60)
        except OSError as error:
            raise DataError("As every reader says of a file that cannot be read.") from error

    def talk(folder: Path) -> None:
        error = DataError("")
        error.args = ("a long word " * 5000,)
        raise error

    monkeypatch.setattr(fuzz, "SECONDS", 1)
    monkeypatch.setattr(fuzz, "KEPT", tmp_path)
    for read, message in ((traceback, "KeyError"), (hang, "Overtime"), (talk, "a message of")):
        result = drill(tmp_path, Target("planted", make, ("*",), read), inputs=1, seed=0)
        (fault,) = result.faults
        assert message in fault
    assert (tmp_path / "planted-0" / "a.json").is_file()


def test_the_drill_sees_a_damaged_file_that_verify_accepts(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fuzz, "KEPT", tmp_path)
    monkeypatch.setattr("temper.export.verify.disagreements", lambda *_: [])
    monkeypatch.setattr("temper.export.verify._rescored", lambda *_: (0, []))
    (target,) = [target for target in TARGETS if target.name == "verify"]
    result = drill(project, target, inputs=12, seed=7)
    assert any("was accepted" in fault for fault in result.faults)


def test_damage_is_a_function_of_seed_and_number() -> None:
    raw = b'{"rows": [1, 2, 3], "name": "x"}'
    changed = [damaged(raw, random.Random(f"s {n}"), is_json=True) for n in range(50)]
    assert changed == [damaged(raw, random.Random(f"s {n}"), is_json=True) for n in range(50)]
    assert len(set(changed)) > 25


def test_no_message_is_too_long_to_read() -> None:
    assert len(str(TemperError(f"got {'x' * 10**6}, expected y"))) < 600
    assert len(str(TemperError("many words " * 10**5))) <= 12_000
