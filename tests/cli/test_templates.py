"""The template of ``temper new-perspective`` is complete and passes the contract tests."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from temper.cli.templates import start
from temper.errors import SettingError

ROOT = Path(__file__).resolve().parents[2]
NAME = "fewer_words_of_a_test"


def test_a_new_perspective_passes_its_test_and_the_test_finds_draws_by_position(
    tmp_path: Path,
) -> None:
    file, test, card = start("perspective", NAME, tmp_path)
    assert card.read_text(encoding="utf-8").startswith(f"# `{NAME}`")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", test.name]

    def run() -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    result = run()
    assert result.returncode == 0, result.stdout
    text = file.read_text(encoding="utf-8")
    # One generator for all rows: the words that a row loses then depend on earlier rows.
    careless = text.replace("random.Random(seed)", "drawn")
    file.write_text(careless.replace("\n\ndef rows", "\n\ndrawn = random.Random(0)\n\n\ndef rows"))
    assert "depends on the batch size" in run().stdout


def test_a_new_perspective_is_measured_if_it_is_imported(tmp_path: Path) -> None:
    file, _, _ = start("perspective", NAME, tmp_path)
    data = tmp_path / "reviews.csv"
    lines = [f"word{n} a word{2 * n},{('bad', 'good')[n % 2]}" for n in range(12)]
    data.write_text("\n".join(["text,label", *lines]) + "\n", encoding="utf-8")
    model = tmp_path / "lengths.py"
    model.write_text("def predict(texts):\n    return [len(text) / 100 for text in texts]\n")
    regression = tmp_path / "values.csv"
    regression.write_text(data.read_text().replace("bad", "0.5").replace("good", "1.5"))
    result = subprocess.run(
        [
            sys.executable, "-m", "temper", "evaluate", f"{model}:predict", "--gives", "values",
            "--data", str(regression), "--import", str(file), "--perspectives", f"task,{NAME}",
            "--set", f"evaluate.{NAME}.fractions=0.5", "--set", "evaluate.bootstrap=0",
            "--out", str(tmp_path / "e"), "--json",
        ],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    scores = json.loads(result.stdout)["scores"]
    assert {"fraction": 0.5} in [one["parameters"] for one in scores if one["perspective"] == NAME]


def test_written_templates_are_formatted(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "src" / "temper", tmp_path / "src" / "temper")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    written = [str(path) for path in start("perspective", "fewer_words", tmp_path)]
    for command in (["check"], ["format", "--check"]):
        ruff = [sys.executable, "-m", "ruff", *command, "--no-cache", *written]
        result = subprocess.run(ruff, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stdout


def test_an_existing_name_raises_an_error(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="already a perspective 'calibration'"):
        start("perspective", "calibration", tmp_path)
