"""Time of commands that need no torch: lists, and errors in settings, names and paths.

Run ``python -m dev.benchmarks.start_up``. Each command runs in separate processes, five by default,
and the median counts. The Hub is not used.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import time

from rich.console import Console
from rich.table import Table

from dev.benchmarks.record import write

RUNS = 5
AIM = 1.0
TRAIN = ("train", "--model", "text_cnn", "--data", "demo", "--out", "no-run")
COMPARE = ("compare", "--model", "text_cnn", "--data", "demo", "--out", "no-study")
COMMANDS = (
    ("--help",),
    ("list", "methods"),
    ("list", "models"),
    ("report", "NOWHERE"),
    ("train", "--model", "NOWHERE", "--data", "demo", "--out", "no-run"),
    ("train", "--model", "text_cnn", "--data", "nowhere.csv", "--out", "no-run"),
    ("compare", "--model", "text_cnn", "--data", "demo", "--methods", "nope", "--out", "no-study"),
    ("evaluate", "NOWHERE", "--data", "demo", "--out", "no-evaluation"),
    ("predict", "NOWHERE", "--text", "a film"),
    (*TRAIN, "--method", "uegrr"),
    (*TRAIN, "--method", "uegr", "--set", "method.epsilon=abc"),
    (*TRAIN, "--method", "at + pgd"),
    (*TRAIN, "--set", "train.dtype=bf16"),
    (*TRAIN, "--set", "data.eval_rows=x"),
    (*COMPARE, "--variant", "x=uegr,method.passes=0"),
    (*COMPARE, "--set", "evaluate.attack_rows=x"),
    (*COMPARE, "--perspectives", "tsk"),
    ("evaluate", "minilm", "--data", "demo", "--out", "no-run", "--perspectives", "tsk"),
    ("tune", "--data", "demo", "--out", "no-run", "--set", "train.epochs=x"),
)


def seconds(arguments: tuple[str, ...]) -> tuple[float, float]:
    """Time one process from its start to its end.

    Args:
        arguments: The arguments of ``temper``.

    Returns:
        Wall-clock seconds, and processor seconds, which other work on the machine affects less.

    Raises:
        RuntimeError: The output is neither a list nor one error.
    """
    before, begin = processor_seconds(), time.perf_counter()
    made = subprocess.run(
        [sys.executable, "-m", "temper", *arguments],
        capture_output=True,
        text=True,
        # As with an installed package, modules are compiled already.
        env={**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONDONTWRITEBYTECODE": ""},
    )
    taken = (time.perf_counter() - begin, processor_seconds() - before)
    if made.returncode not in (0, 2) or "Traceback" in made.stderr:
        raise RuntimeError(f"temper {' '.join(arguments)} failed: {made.stderr}")
    return taken


def processor_seconds() -> float:
    """Return the processor seconds of all finished child processes."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Time every command, print the table and save the samples."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=RUNS, help="processes of each command")
    runs = parser.parse_args().runs
    # The first process compiles the modules.
    seconds(COMMANDS[0])
    samples = {" ".join(each): [seconds(each) for _ in range(runs)] for each in COMMANDS}
    table = Table("command", "seconds", "processor seconds", box=None)
    for command, taken in samples.items():
        medians = [f"{statistics.median(each):.2f}" for each in zip(*taken, strict=True)]
        table.add_row(f"temper {command}", *medians)
    Console(width=120).print(table)
    print(f"Goal: under {AIM} s each on two idle cores.")
    print(f"Written: {write('start_up', {'aim': AIM, 'seconds': samples})}")


if __name__ == "__main__":
    main()
