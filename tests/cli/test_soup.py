"""``temper soup`` as a command: what it prints, writes and refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.calls import call


@pytest.fixture(scope="module")
def runs(tiny_model: Path, tiny_data: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("runs")
    made = []
    for seed in (0, 1):
        made.append(folder / f"s{seed}")
        result = call(
            "train", "--model", tiny_model, "--data", tiny_data / "reviews", "--method", "vanilla",
            "--set", "train.max_steps=1", "--seed", seed, "--max-length", "32", "--device", "cpu",
            "--out", made[-1],
        )  # fmt: skip
        assert result.exit_code == 0, result.stderr
    return made


def test_runs_become_one_checkpoint_that_other_commands_read(
    runs: list[Path], tiny_data: Path, tmp_path: Path
) -> None:
    out = tmp_path / "soup"
    held_out = tiny_data / "shift.csv"
    result = call("soup", *runs, "--data", held_out, "--out", out, "--device", "cpu", "--json")
    assert result.exit_code == 0, result.stderr
    made = json.loads(result.stdout)
    assert made["out"] == str(out)
    assert made["held_out"]["rows"] == 10
    assert {line["run"] for line in made["runs"]} == {str(run) for run in runs}
    assert made["settings"]["data"]["max_length"] == 32
    assert "seeds 0, 1" in result.stderr
    again = call("soup", *runs, "--data", held_out, "--out", out, "--device", "cpu")
    assert again.exit_code == 0, again.stderr
    assert "score with it" in again.stdout
    assert "accuracy" in again.stdout
    predicted = call("predict", out, "--data", held_out, "--device", "cpu", "--json")
    assert predicted.exit_code == 0, predicted.stderr
    assert len(json.loads(predicted.stdout)) == 10
    evaluated = call(
        "evaluate", out, "--data", tiny_data / "reviews", "--perspectives", "task", "--device",
        "cpu", "--out", tmp_path / "evaluation",
    )  # fmt: skip
    assert evaluated.exit_code == 0, evaluated.stderr


def test_the_dev_rows_of_the_runs_are_warned_of(
    runs: list[Path], tiny_data: Path, tmp_path: Path
) -> None:
    result = call(
        "soup",
        *runs,
        "--data",
        tiny_data / "reviews",
        "--out",
        tmp_path / "soup",
        "--device",
        "cpu",
    )
    assert result.exit_code == 0, result.stderr
    assert "The held-out rows are the dev rows of" in result.stderr


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--data", "missing.csv"), ("missing.csv",)),
        (("--data", "d", "--set", "data.rows=3"), ("data.rows",)),
        (("--data", "d", "--set", "train.epochs=3"), ("train",)),
        ((), ("--data",)),
    ],
)
def test_wrong_options_leave_nothing(
    runs: list[Path], tmp_path: Path, more: tuple[str, ...], words: tuple[str, ...]
) -> None:
    result = call("soup", *runs, *more, "--out", tmp_path / "soup")
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    assert all(word in result.stderr for word in words)
    assert list(tmp_path.iterdir()) == []


def test_one_run_is_no_soup(runs: list[Path], tiny_data: Path, tmp_path: Path) -> None:
    result = call("soup", runs[0], "--data", tiny_data / "shift.csv", "--out", tmp_path / "soup")
    assert result.exit_code == 2
    assert "two runs or more, got 1" in result.stderr


def test_help_says_which_rows_to_give() -> None:
    result = call("soup", "--help")
    assert result.exit_code == 0
    assert "never the split that you report" in " ".join(result.stdout.split())
