"""Every example runs with a tiny model and few rows."""

from __future__ import annotations

import ast
import os
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from temper.cli.app import app
from tests.cli.tiny_project import make_model

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("examples") / "model")


@pytest.fixture
def run(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    """Return what runs an example in this process, to spare the imports, and gives its output."""

    def run_example(name: str, *arguments: object) -> str:
        monkeypatch.setattr(sys, "argv", [name, str(model), *map(str, arguments)])
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out.strip()

    return run_example


def test_the_trainer_example_trains_saves_and_prints_its_accuracy(
    run: Callable[..., str], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    printed = run("trainer.py", "--rows", 160, "--epochs", 1, "--out", out)
    assert re.search(rf"accuracy [01]\.\d{{3}}, saved to {out}$", printed)
    assert "loss/adversarial" in printed
    assert (out / "model.safetensors").is_file()
    assert (out / "checkpoint-10" / "method.json").is_file()


def test_the_calls_train_evaluate_and_compare(run: Callable[..., str], tmp_path: Path) -> None:
    printed = run("calls.py", "--rows", 64, "--epochs", 1, "--out", tmp_path)
    assert re.search(rf"\d+ scores: {tmp_path}/study/report.html$", printed)


@pytest.mark.parametrize("method", ["uegr", "r_drop"])
def test_the_stepper_example_trains_with_any_method(run: Callable[..., str], method: str) -> None:
    printed = run("stepper.py", "--method", method, "--rows", 32, "--epochs", 1)
    pattern = r"epoch 1: .*loss \d\.\d{3}, .*loss/divergence .*\naccuracy [01]\.\d{3}"
    assert re.fullmatch(pattern, printed)


def test_the_stepper_example_needs_fewer_than_15_lines_of_loop() -> None:
    lines = (EXAMPLES / "stepper.py").read_text(encoding="utf-8").splitlines()
    first = next(index for index, line in enumerate(lines) if line.startswith("stepper = "))
    last = lines.index("stepper.remove_hooks()")
    assert 5 < last - first + 1 < 15


def test_the_command_line_example_runs(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Commands are recorded and run in this process: five processes would import torch again.
    stand_in = tmp_path / "bin" / "temper"
    stand_in.parent.mkdir()
    stand_in.write_text(
        f"#!{sys.executable}\nimport pathlib, shlex, sys\nif '--out' in sys.argv:\n    "
        "pathlib.Path(sys.argv[sys.argv.index('--out') + 1]).parent.mkdir(\n        parents=True, "
        f"exist_ok=True)\nwith open({str(tmp_path / 'calls')!r}, 'a') as calls:\n    "
        "calls.write(shlex.join(sys.argv[1:]) + '\\n')\n",
        encoding="utf-8",
    )
    stand_in.chmod(0o755)
    settings = {"MODEL": str(model), "ROWS": "32", "EVAL_ROWS": "8", "EPOCHS": "1.0"}
    out = tmp_path / "out"
    subprocess.run(
        ["sh", str(EXAMPLES / "command_line.sh")],
        env={
            **os.environ,
            **settings,
            "OUT": str(out),
            "PATH": f"{stand_in.parent}{os.pathsep}{os.environ['PATH']}",
        },
        cwd=tmp_path,
        check=True,
    )
    calls = [shlex.split(line) for line in (tmp_path / "calls").read_text().splitlines()]
    assert [words[0] for words in calls] == ["list", "train", "evaluate", "predict", "compare"]
    monkeypatch.chdir(tmp_path)
    for words in calls:
        result = CliRunner().invoke(app, words)
        assert result.exit_code == 0, (words, result.stderr)
    assert (out / "uegr" / "model.safetensors").is_file()
    assert (out / "uegr-evaluation" / "scores.json").is_file()
    assert (out / "compare" / "report.html").is_file()


def test_every_example_documents_its_command() -> None:
    for path in sorted(EXAMPLES.iterdir()):
        if path.suffix not in {".py", ".sh"}:
            continue
        text = path.read_text(encoding="utf-8")
        about = ast.get_docstring(ast.parse(text)) if path.suffix == ".py" else text
        assert f"examples/{path.name}" in (about or ""), path.name


def test_every_example_is_tested_here() -> None:
    mine = Path(__file__).read_text(encoding="utf-8")
    result = [path.name for path in EXAMPLES.iterdir() if path.suffix in {".py", ".sh"}]
    assert len(result) >= 3
    assert [name for name in result if name not in mine] == []
