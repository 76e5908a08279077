"""Kill commands at operations on files and at random times: ``python -m dev.drills.kill``.

A killed command is repeated until it succeeds; every third is killed a second time. The folder must
then have the same files as after an uninterrupted run, and no others: weights, scores, rows and
logs, except times and speeds. Each kill is a function of (seed, command, number).
"""

from __future__ import annotations

import random
import signal
import sys
from pathlib import Path

from dev.drills.commands import COMMANDS, SECONDS, Command, Fault, Stage, make_project, stages
from dev.drills.drilling import Found, drilled


def drill(project: Path, command: Command, *, inputs: int, seed: int) -> Found:
    """Kill one command many times.

    Args:
        project: The folder of `make_project`.
        command: Command to test.
        inputs: Number of kills; each operation once, in order, if there are enough.
        seed: Seed of the choice of operations and times.
    """
    result = Found()
    for number, draws, stage in stages(project, command, inputs=inputs, seed=seed):
        fault = _kill(stage, draws, inputs, number)
        ended = stage.run(fault)
        if number % 3 == 2:
            ended = stage.run(_kill(stage, draws, 0, number))
        killed = ended.code == -signal.SIGKILL and ended.seconds < SECONDS
        result.count("killed" if killed else "ended first")
        if not killed and ended.code:
            result.fault(number, fault, ended.said)
        elif message := stage.given_again():
            result.fault(number, fault, message)
    return result


def _kill(stage: Stage, draws: random.Random, inputs: int, number: int) -> Fault:
    operations = stage.whole.operations
    if number % 4 == 3:
        return Fault(after=draws.uniform(0.02, stage.whole.seconds))
    if inputs * 3 // 4 >= operations:
        return Fault(at=number % operations + 1, kill=True)
    return Fault(at=draws.randint(1, operations), kill=True)


def main() -> int:
    """Run the drill on all commands, or the given ones, and print the results."""
    return drilled(__doc__, COMMANDS, make_project, drill, inputs=40)


if __name__ == "__main__":
    sys.exit(main())
