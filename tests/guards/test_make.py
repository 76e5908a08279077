"""`make demo` turns its variables into a command line that exists, and needs no network itself."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import typer

from temper.cli.app import app

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="needs make")


def demo(*variables: str) -> tuple[list[str], dict[str, object]]:
    """Return what ``make demo`` would run: the environment it sets and the options it passes."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    result = subprocess.run(
        ["make", "--dry-run", "demo", *variables],
        cwd=ROOT,
        env=plain,
        capture_output=True,
        text=True,
        check=True,
    )
    lines = result.stdout.replace("\\\n", " ").splitlines()
    (line,) = [line for line in lines if "temper compare" in line]
    words = shlex.split(line)
    start = words.index("compare")
    command = typer.main.get_command(app).commands["compare"]
    return words[: start - 1], command.make_context("compare", words[start + 1 :]).params


def test_the_demo_runs_offline_on_the_generated_corpus() -> None:
    environment, options = demo()
    assert "HF_HUB_OFFLINE=1" in environment
    assert options["model"] == "minilm"
    assert options["data"] == "demo"
    assert options["methods"] == "vanilla,uegr"
    assert options["seeds"] == "0,1"
    assert str(options["out"]) == "runs/demo"
    assert options["shift"]
    assert options["anomaly"]


def test_the_demo_takes_other_data_with_a_bounded_number_of_rows() -> None:
    environment, options = demo("DATA=../shared/data/sst2")
    assert "HF_HUB_OFFLINE=1" not in environment
    assert options["data"] == "../shared/data/sst2"
    assert (options["rows"], options["eval_rows"]) == (2000, 500)
    assert str(options["out"]) != "runs/demo"


def test_the_demo_takes_a_number_of_rows() -> None:
    _, options = demo("DATA=../shared/data/sst2", "ROWS=300", "EVAL_ROWS=100")
    assert (options["rows"], options["eval_rows"]) == (300, 100)
