"""Train a tiny model in a process that kills itself; run as a module by test_resume_killed.py.

Usage: python -m tests.training.killed FOLDER between|writing STEP rows|windows
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback

from temper.training import checkpoint_files
from temper.training.trainer import RobustTrainer
from tests.training.tiny_training import make_trainer, windows_trainer

SETTINGS: dict[str, Any] = {
    "rows": 14,
    "num_train_epochs": 2,
    "save_strategy": "steps",
    "save_steps": 2,
    "logging_steps": 3,
}


TRAINERS: dict[str, Callable[..., RobustTrainer]] = {
    "rows": partial(make_trainer, more={"method": "uegr"}),
    "windows": windows_trainer,
}


def die() -> None:
    """End this process as `kill -9` does."""
    os.kill(os.getpid(), signal.SIGKILL)


class DieAfter(TrainerCallback):
    """Die once a step is done."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == self.step:
            die()


def main(folder: Path, moment: str, step: int, kind: str) -> None:
    """Train until death."""
    torch.set_num_threads(1)
    trainer = TRAINERS[kind](folder, **SETTINGS)
    if moment == "between":
        trainer.add_callback(DieAfter(step))
    else:
        states = checkpoint_files.generator_states

        def die_while_saving() -> dict[str, Any]:
            if trainer.state.global_step == step:
                die()
            return states()

        checkpoint_files.generator_states = die_while_saving
    trainer.train()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4])
