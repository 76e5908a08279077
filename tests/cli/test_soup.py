"""``temper soup`` as a command: what it prints, writes and refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.calls import call, refused, succeed


@pytest.fixture(scope="module")
def runs(tiny_model: Path, tiny_data: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("runs")
    made = []
    for seed in (0, 1):
        made.append(folder / f"s{seed}")
        succeed(
            "train", "--model", tiny_model, "--data", tiny_data / "reviews", "--method", "vanilla",
            "--set", "train.max_steps=1", "--seed", seed, "--max-length", "32", "--device", "cpu",
            "--out", made[-1],
        )  # fmt: skip
    return made


def test_runs_become_one_checkpoint_that_other_commands_read(
    runs: list[Path], tiny_data: Path, tmp_path: Path
) -> None:
    out = tmp_path / "soup"
    held_out = tiny_data / "shift.csv"
    result = succeed("soup", *runs, "--data", held_out, "--out", out, "--device", "cpu", "--json")
    made = json.loads(result.stdout)
    assert made["out"] == str(out)
    assert made["held_out"]["rows"] == 10
    assert {line["run"] for line in made["runs"]} == {str(run) for run in runs}
    assert made["settings"]["data"]["max_length"] == 32
    assert "seeds 0, 1" in result.stderr
    again = succeed("soup", *runs, "--data", held_out, "--out", out, "--device", "cpu")
    assert "score with it" in again.stdout
    assert "accuracy" in again.stdout
    predicted = succeed("predict", out, "--data", held_out, "--device", "cpu", "--json")
    assert len(json.loads(predicted.stdout)) == 10
    succeed(
        "evaluate", out, "--data", tiny_data / "reviews", "--perspectives", "task", "--device",
        "cpu", "--out", tmp_path / "evaluation",
    )  # fmt: skip


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
    refused(call("soup", *runs, *more, "--out", tmp_path / "soup"), *words)
    assert list(tmp_path.iterdir()) == []
