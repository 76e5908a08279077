"""A run's card and page have the evaluation in its folder, and no other."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import Result

from tests.cli.calls import call, succeed


def train(model: Path, data: Path, out: Path, *more: object, seed: int = 0) -> Result:
    return call(
        "train", "--model", model, "--data", data / "reviews", "--method", "plain", "--set",
        "train.max_steps=1", "--max-length", "32", "--device", "cpu", "--seed", seed, "--out", out,
        *more,
    )  # fmt: skip


def evaluate(run: Path, out: Path) -> Path:
    succeed(
        "evaluate", run, "--perspectives", "task", "--set", "evaluate.bootstrap=20", "--device",
        "cpu", "--out", out,
    )  # fmt: skip
    return out


@pytest.fixture(scope="module")
def run(tiny_model: Path, tiny_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("beside") / "run"
    assert train(tiny_model, tiny_data, out).exit_code == 0
    evaluate(out, out.with_name("run-evaluation"))
    return out


def test_the_default_evaluation_folder_is_in_the_run(
    tiny_model: Path, run: Path, tmp_path: Path
) -> None:
    copied = shutil.copytree(run, tmp_path / "copied")
    more = ("--perspectives", "task", "--set", "evaluate.bootstrap=20", "--device", "cpu")
    done = succeed("evaluate", f"{copied}/", *more)
    assert (tmp_path / "copied-evaluation" / "scores.json").is_file()
    assert "copied-evaluation" in done.stderr
    refused = call("evaluate", tiny_model, *more)
    assert refused.exit_code == 2
    assert "Pass --out FOLDER" in refused.stderr


def test_an_evaluation_names_its_run(run: Path) -> None:
    settings = json.loads((run.with_name("run-evaluation") / "settings.json").read_text())
    assert settings["run"] == json.loads((run / "run.json").read_text())["key"]


def test_the_page_of_a_run_shows_the_evaluation_in_its_folder(run: Path) -> None:
    succeed("report", run)
    scores = json.loads((run.with_name("run-evaluation") / "scores.json").read_text())["scores"]
    rows = (run / "scores.csv").read_text().splitlines()
    assert len(rows) > len(scores) / 2
    succeed("report", run, "--markdown")


def test_the_evaluation_of_another_run_is_skipped_with_a_note(
    run: Path, tiny_model: Path, tiny_data: Path, tmp_path: Path
) -> None:
    other = tmp_path / "run"
    assert train(tiny_model, tiny_data, other, seed=1).exit_code == 0
    shutil.copytree(run.with_name("run-evaluation"), tmp_path / "run-evaluation")
    succeed("report", other)
    assert "is an evaluation of the" in (other / "report.md").read_text()
