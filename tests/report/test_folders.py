"""Errors for folders that do not match docs/formats.md."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from temper.display.folders import read
from temper.errors import CheckpointError
from temper.report import build, comparison


def change(path: Path, edit: Callable[[dict], None]) -> None:
    document = json.loads(path.read_text())
    edit(document)
    path.write_text(json.dumps(document))


def test_a_folder_without_records_is_named_with_what_was_expected(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"has no study.json, run.json or scores.json"):
        build(tmp_path)


def test_a_missing_folder_is_reported(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="is not a folder"):
        build(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'{"schema": 1,', "study.json"),
        (b"\xff\xfe\x00", "study.json"),
    ],
)
def test_a_broken_file_raises_an_error_with_its_name(
    study: Path, content: bytes, said: str
) -> None:
    (study / "study.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=said):
        comparison(study)


STUDY, RUN = "study.json", "runs/uegr-s0-abc/run.json"


@pytest.mark.parametrize(
    ("file", "values", "said"),
    [
        (STUDY, {"model": None, "seeds": "all"}, "model: Input .*; seeds: Input should be"),
        (STUDY, {"reference": "plian"}, "Did you mean 'plain'"),
        (STUDY, {"columns": [{"name": "uegr", "method": "uegr"}] * 2}, "lists a method twice"),
        (STUDY, {"runs": {}}, r"no finished and evaluated run. plain, seed 0"),
        (RUN, {"seed": 7}, "has seed 7, but study.json lists it as 0"),
    ],
)
def test_incompatible_folders_are_reported(
    study: Path, file: str, values: dict[str, Any], said: str
) -> None:
    change(study / file, lambda document: document.update(values))
    with pytest.raises(CheckpointError, match=said):
        comparison(study)


def test_a_value_that_is_not_a_number_is_an_error(study: Path) -> None:
    path = study / "runs/uegr-s0-abc/evaluation/scores.json"
    path.write_text(path.read_text().replace("0.83", "NaN"))
    with pytest.raises(CheckpointError, match="finite number"):
        comparison(study)


def test_an_unfinished_run_raises_an_error_with_advice_to_resume(run: Path) -> None:
    change(run / "run.json", lambda document: document.update(status="running"))
    with pytest.raises(CheckpointError, match=r"not finished .* Resume it"):
        comparison(run)


def test_a_run_without_evaluation_still_has_a_report(run: Path) -> None:
    (run / "evaluation/scores.json").unlink()
    text = build(run).read_text(encoding="utf-8")
    assert "This run was not evaluated" in text
    assert "Total loss" in text


def test_damaged_rows_name_the_file(study: Path) -> None:
    (study / "runs/uegr-s0-abc/evaluation/rows.parquet").write_bytes(b"PAR1 nothing")
    with pytest.raises(CheckpointError, match=r"Cannot read .*rows\.parquet"):
        build(study)


def test_rows_without_a_needed_column_are_an_error(study: Path) -> None:
    with pytest.raises(CheckpointError, match="confidence"):
        read(study).runs[0].rows(["confidence"], "task")


@pytest.mark.parametrize("line", ["{", "3"])
def test_a_broken_line_of_metrics_raises_an_error_with_its_number(study: Path, line: str) -> None:
    path = study / "runs/uegr-s0-abc/metrics.jsonl"
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(CheckpointError, match=r"Line 11 of .*metrics\.jsonl .*JSON object"):
        build(study)


def test_writing_the_report_over_a_folder_raises_an_error(study: Path) -> None:
    with pytest.raises(CheckpointError, match="is a folder"):
        build(study, study / "runs")
