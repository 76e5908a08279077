"""After SIGKILL, training resumes from its checkpoints to the same weights."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from temper.errors import CheckpointError
from tests.training.killed import SETTINGS, TRAINERS
from tests.training.tiny_training import make_trainer, training_logs, unequal, weights

ROOT = Path(__file__).resolve().parents[2]


def killed(folder: Path, moment: str, step: int, kind: str) -> list[str]:
    """Run the process and return the names that it left."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.training.killed", str(folder), moment, str(step), kind],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    return sorted(entry.name for entry in folder.iterdir())


@pytest.mark.parametrize(
    ("moment", "step", "left", "kind"),
    [
        ("between", 5, ["checkpoint-2", "checkpoint-4"], "rows"),
        ("writing", 4, [".partial-4", "checkpoint-2"], "rows"),
        ("between", 5, ["checkpoint-2", "checkpoint-4"], "windows"),
    ],
)
def test_a_killed_run_resumes_to_the_weights_of_an_uninterrupted_one(
    tmp_path: Path, moment: str, step: int, left: list[str], kind: str
) -> None:
    assert killed(tmp_path / "killed", moment, step, kind) == left
    whole = TRAINERS[kind](tmp_path / "whole", **SETTINGS)
    whole.train()
    resumed = TRAINERS[kind](tmp_path / "killed", **SETTINGS)
    resumed.train(resume_from_checkpoint=True)
    assert not unequal(weights(whole.model), weights(resumed.model))
    assert training_logs(whole) == training_logs(resumed)
    names = sorted(entry.name for entry in (tmp_path / "killed").iterdir())
    assert names == ["checkpoint-2", "checkpoint-4", "checkpoint-6", "checkpoint-8"]


def test_half_written_checkpoints_are_neither_found_nor_kept(tmp_path: Path) -> None:
    planted = tmp_path / ".partial-6"
    planted.mkdir()
    (planted / "trainer_state.json").write_text("{}", encoding="utf-8")
    trainer = make_trainer(tmp_path, rows=4)
    with pytest.raises(CheckpointError, match=r"has no checkpoint-N to resume from"):
        trainer.train(resume_from_checkpoint=True)
    trainer.train()
    assert not planted.exists()
