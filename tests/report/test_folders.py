"""What is said when a folder is not what docs/formats.md describes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from temper.display.folders import read
from temper.errors import CheckpointError
from temper.report import build, comparison


def change(path: Path, edit: Callable[[dict], None]) -> None:
    document = json.loads(path.read_text())
    edit(document)
    path.write_text(json.dumps(document))


def test_a_folder_without_records_is_named_with_what_was_expected(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"study.json, run.json or scores.json, but .* none"):
        build(tmp_path)


def test_a_folder_that_does_not_exist_is_said(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="is not a folder"):
        build(tmp_path / "nowhere")


def test_broken_json_names_the_file(study: Path) -> None:
    (study / "study.json").write_text('{"schema": 1,')
    with pytest.raises(CheckpointError, match=r"study.json is not what .* Invalid JSON"):
        comparison(study)


def test_undecodable_bytes_name_the_file(study: Path) -> None:
    (study / "study.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(CheckpointError, match=r"Cannot read .*study.json"):
        comparison(study)


def test_all_faults_of_a_file_are_named_at_once(study: Path) -> None:
    def spoil(document: dict) -> None:
        del document["model"]
        document["seeds"] = "all"

    change(study / "study.json", spoil)
    with pytest.raises(CheckpointError, match="model: Field required; seeds: Input should be"):
        comparison(study)


def test_a_value_that_is_not_a_number_is_an_error(study: Path) -> None:
    path = study / "runs/uegr-s0-abc/evaluation/scores.json"
    path.write_text(path.read_text().replace("0.83", "NaN"))
    with pytest.raises(CheckpointError, match="finite number"):
        comparison(study)


def test_an_unknown_reference_lists_near_matches(study: Path) -> None:
    change(study / "study.json", lambda document: document.update(reference="vanila"))
    with pytest.raises(CheckpointError, match="Did you mean 'vanilla'"):
        comparison(study)


def test_a_run_under_another_seed_is_an_error(study: Path) -> None:
    change(study / "runs/uegr-s0-abc/run.json", lambda document: document.update(seed=7))
    with pytest.raises(CheckpointError, match="has seed 7, but study.json lists it as 0"):
        comparison(study)


def test_a_column_that_stands_twice_is_an_error(study: Path) -> None:
    change(
        study / "study.json",
        lambda document: document["columns"].append({"name": "uegr", "method": "uegr"}),
    )
    with pytest.raises(CheckpointError, match="lists a column twice"):
        comparison(study)


def test_a_study_without_a_finished_run_is_an_error_that_says_why(study: Path) -> None:
    change(study / "study.json", lambda document: document.update(runs={}))
    with pytest.raises(CheckpointError, match=r"no finished and evaluated run. vanilla, seed 0"):
        comparison(study)


def test_an_unfinished_single_run_asks_to_be_resumed(run: Path) -> None:
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
    with pytest.raises(CheckpointError, match=r"Cannot read the evaluated rows in .*rows.parquet"):
        build(study)


def test_rows_without_a_needed_column_are_an_error(study: Path) -> None:
    with pytest.raises(CheckpointError, match="confidence"):
        read(study).runs[0].rows(["confidence"], "task")


@pytest.mark.parametrize(
    ("line", "said"), [("{", "line 11: not JSON"), ("3", "expected an object")]
)
def test_a_broken_line_of_metrics_is_named(study: Path, line: str, said: str) -> None:
    path = study / "runs/uegr-s0-abc/metrics.jsonl"
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(CheckpointError, match=said):
        build(study)


def test_the_report_is_not_written_over_a_folder(study: Path) -> None:
    with pytest.raises(CheckpointError, match="is a folder"):
        build(study, study / "runs")
