"""Kill one of several cooperating processes: ``python -m dev.drills.workers``.

Target ``compare`` is a study with ``--workers 2``. A worker is killed (SIGKILL, as when memory runs
out) at a random time, and the command must end with one message that names the run. Target
``ranks`` is a training in two processes that exchange gradients (gloo). One is killed at a random
time after a random step, and the other must end with one message within `SOON` seconds, although no
launcher ends it. Repeated, both must end like an uninterrupted run. Each kill is a function of
(seed, target, number), as far as the scheduling of processes allows.
"""

from __future__ import annotations

import mmap
import os
import random
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dev.drills.commands import Child, Command, Ended, make_project, outcome, stages
from dev.drills.drilling import Found, drilled

STUDY = Command(
    "compare",
    "compare --model {0}/tiny --data {0}/data.jsonl --methods plain,r_drop --seeds 0"
    " --epochs 2 --max-length 8 --set train.save_steps=2 --perspectives task --workers 2"
    " --out {0}/out",
)
RANKS, STEPS, SAVE_STEPS = 2, 10, 2
SOON = 60.0
"""Seconds in which a process must end after its partner was killed; a step takes milliseconds."""
TOLD = {"compare": "was ended by SIGKILL", "ranks": "cannot reach another one"}


def kill_worker(project: Path, *, inputs: int, seed: int) -> Found:
    """Kill a worker of a study, many times.

    Args:
        project: The folder of `make_project`.
        inputs: Number of kills.
        seed: Seed of the choice of worker and time.
    """
    result = Found()
    for number, draws, stage in stages(project, STUDY, inputs=inputs, seed=seed):
        child = Child(stage.command.of(stage.folder), stage.folder)
        # Only after a worker has started a run, so that there is a run to lose.
        while not any(stage.folder.glob("out/runs/*")) and child.is_running():
            time.sleep(0.01)
        time.sleep(draws.uniform(0, stage.whole.seconds / 4))
        if workers := _workers(child.pid):
            # A worker may end in between.
            with suppress(ProcessLookupError):
                os.kill(draws.choice(workers), signal.SIGKILL)
        ended = child.wait()
        result.count("killed" if ended.code else "ended first")
        if message := _unclear(ended, "compare") or stage.given_again():
            result.fault(number, "a worker is killed", message)
    return result


def _workers(pid: int) -> list[int]:
    """Return the process ids of a study's workers, without the resource tracker."""
    listed = Path(f"/proc/{pid}/task/{pid}/children")
    children = [int(child) for child in listed.read_text(encoding="ascii").split()]
    return sorted(
        child for child in children if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()
    )


def _unclear(ended: Ended, target: str) -> str:
    """Return what is wrong with the end of a process whose partner was killed; empty if nothing."""
    if not ended.code:
        return ""
    if ended.code not in (1, 2) or "Traceback" in ended.said or TOLD[target] not in ended.said:
        return f"ended with {ended.code}:\n{ended.said}"
    return ""


class Ranks:
    """A training in two processes.

    Args:
        folder: A copy of the project.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.steps = mmap.mmap(-1, RANKS)
        train = _trained(self.steps)
        self.children = [
            Child([str(folder), str(rank), str(port)], folder, main=train) for rank in range(RANKS)
        ]

    def wait(self) -> list[Ended]:
        """Wait until both have ended."""
        return [child.wait() for child in self.children]

    def kill(self, rank: int, *, step: int, delay: float) -> None:
        """Kill one of them some time after it has begun a step."""
        child = self.children[rank]
        while self.steps[rank] < step and child.is_running():
            time.sleep(0.001)
        time.sleep(delay)
        with suppress(ProcessLookupError):
            os.kill(child.pid, signal.SIGKILL)


def _trained(steps: mmap.mmap) -> Callable[[list[str]], None]:
    """Return a function that trains as one of the processes and writes its current step."""

    def train(arguments: list[str]) -> None:
        from transformers import TrainerCallback, TrainingArguments

        from temper.checkpoints.folder import newest_checkpoint_in
        from temper.data.collator import Collator
        from temper.data.encode import encode
        from temper.data.settings import DataSettings
        from temper.data.sources import load_splits
        from temper.errors import TemperError
        from temper.models.hf import load_classifier
        from temper.training.trainer import RobustTrainer

        folder, rank, port = Path(arguments[0]), arguments[1], arguments[2]
        os.environ |= {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": str(RANKS)}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        os.environ["ACCELERATE_USE_CPU"] = "true"

        class Watch(TrainerCallback):
            def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
                steps[int(rank)] = state.global_step + 1

        rows = load_splits(DataSettings(source=str(folder / "data.jsonl"))).train
        model, tokenizer = load_classifier(str(folder / "tiny"), labels=["0", "1"])
        out = folder / "out"
        trainer = RobustTrainer(
            model,
            TrainingArguments(
                str(out),
                per_device_train_batch_size=4,
                max_steps=STEPS,
                save_steps=SAVE_STEPS,
                logging_steps=1,
                report_to="none",
                disable_tqdm=True,
                use_cpu=True,
            ),
            method="uegr",
            train_dataset=encode(rows, tokenizer, max_length=8),
            data_collator=Collator(tokenizer),
            callbacks=[Watch()],
        )
        last = newest_checkpoint_in(out)
        try:
            trainer.train(None if last is None else str(last))
        except TemperError as error:
            # Like a script of a user; the command line prints errors in the same way.
            sys.stdout.write(f"Error: {error}\n")
            sys.exit(error.exit_code)
        trainer.save_model(str(out / "model"))

    return train


def kill_rank(project: Path, *, inputs: int, seed: int) -> Found:
    """Kill one of two processes of a training, many times.

    Args:
        project: The folder of `make_project`.
        inputs: Number of kills.
        seed: Seed of the choice of process, step and time.
    """
    result = Found()
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work) / "project"
        shutil.copytree(project, folder)
        begun = time.monotonic()
        for ended in Ranks(folder).wait():
            if ended.code:
                raise RuntimeError(f"An undisturbed process ended with {ended.code}:\n{ended.said}")
        whole, seconds = outcome(folder / "out"), time.monotonic() - begun
        for number in range(inputs):
            draws = random.Random(f"{seed} ranks {number}")
            shutil.rmtree(folder / "out")
            ranks, lost = Ranks(folder), draws.randrange(RANKS)
            ranks.kill(lost, step=draws.randint(1, STEPS), delay=draws.uniform(0, seconds / STEPS))
            begun = time.monotonic()
            ends = ranks.wait()
            waited = time.monotonic() - begun
            result.count("killed" if ends[lost].code == -signal.SIGKILL else "ended first")
            message = _unclear(ends[1 - lost], "ranks")
            if waited > SOON:
                message = f"the other process ended after {waited:.0f} s"
            again = [ended for ended in Ranks(folder).wait() if ended.code]
            if again:
                message = message or f"repeated, one ended with {again[0].code}:\n{again[0].said}"
            elif outcome(folder / "out") != whole:
                message = message or "repeated, the training left other files"
            if message:
                result.fault(number, f"process {lost} is killed", message)
    return result


@dataclass(frozen=True)
class Target:
    """Processes of which one is killed."""

    name: str
    drill: Callable[..., Found]


TARGETS = (Target("compare", kill_worker), Target("ranks", kill_rank))


def drill(project: Path, target: Target, *, inputs: int, seed: int) -> Found:
    """Run the drill on a target."""
    return target.drill(project, inputs=inputs, seed=seed)


def main() -> int:
    """Run the drill on both targets, or the given ones, and print the results."""
    return drilled(__doc__, TARGETS, make_project, drill, inputs=10)


if __name__ == "__main__":
    sys.exit(main())
