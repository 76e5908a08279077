"""`temper verify` reports a flipped bit and a changed score; intact and old folders pass."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from temper.export.verify import verify
from tests.cli.calls import call, json_output, refused, succeed
from tests.messages import assert_messages


@pytest.fixture(scope="module")
def measured(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a run and its evaluation."""
    root = tmp_path_factory.mktemp("verify")
    shutil.copytree(trained, root / "run")
    succeed(
        "evaluate", root / "run", "--out", root / "run-evaluation", "--set",
        'evaluate.perspectives=["task", "calibration", "embedding_noise"]',
        "--set", "evaluate.bootstrap=20",
    )  # fmt: skip
    return root


def flip(file: Path, position: int) -> None:
    content = bytearray(file.read_bytes())
    content[position % len(content)] ^= 1 << (position % 8)
    file.write_bytes(content)


def test_unchanged_folders_pass_verification(measured: Path) -> None:
    output: list[dict[str, Any]] = json_output("verify", measured)
    assert [(each["kind"], each["faults"]) for each in output] == [("run", []), ("evaluation", [])]
    assert output[0]["files"] == len(list((measured / "run").iterdir())) - 1
    assert output[1]["scores"] == len(
        json.loads((measured / "run-evaluation" / "scores.json").read_text())["scores"]
    )


def test_no_resample_is_drawn_to_compare_scores(
    measured: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def draw(*_: object, **__: object) -> None:
        raise AssertionError("a damaged record may ask for any number of resamples")

    monkeypatch.setattr("temper.functional.intervals.resampled", draw)
    assert all(not result.faults for result in verify(measured))


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(position=st.integers(0, 10**6), data=st.data())
def test_a_flipped_bit_in_any_file_is_named(
    measured: Path, tmp_path: Path, position: int, data: st.DataObject
) -> None:
    copy = tmp_path / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(measured / "run", copy)
    files = [entry for entry in sorted(copy.iterdir()) if entry.name != "run.json"]
    file = data.draw(st.sampled_from(files))
    flip(file, position)
    (verified,) = verify(copy)
    assert_messages(verified.faults, f"^{re.escape(str(file))} is damaged")


def test_a_changed_score_is_reported_even_if_its_hash_was_updated(
    measured: Path, tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(measured / "run-evaluation", tmp_path / "copy"))
    content = json.loads((copy / "scores.json").read_text(encoding="utf-8"))
    content["scores"][0]["value"] = 0.123
    (copy / "scores.json").write_text(json.dumps(content), encoding="utf-8")
    record = json.loads((copy / "settings.json").read_text(encoding="utf-8"))
    del record["files"]
    (copy / "settings.json").write_text(json.dumps(record), encoding="utf-8")
    refused(call("verify", copy), "scores.json: task dev clean", "is 0.123, and the rows give")


def test_a_folder_without_checksums_is_reported(measured: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(measured / "run", tmp_path / "copy"))
    record = json.loads((copy / "run.json").read_text(encoding="utf-8"))
    del record["files"]
    (copy / "run.json").write_text(json.dumps(record), encoding="utf-8")
    assert "No checksums: an older Temper wrote it." in succeed("verify", copy).stdout


def test_a_missing_file_and_an_empty_folder_are_reported(measured: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(measured / "run", tmp_path / "copy"))
    (copy / "config.json").unlink()
    refused(call("verify", copy), "config.json is missing")
    (tmp_path / "empty").mkdir()
    refused(call("verify", tmp_path / "empty"), "folder that Temper wrote")
