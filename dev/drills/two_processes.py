"""Run every command in two processes at once: ``python -m dev.drills.two_processes``.

Two processes start together, or one later, or the first is frozen (SIGSTOP) at a random time while
the second runs. One may be refused with a message that names the owner of the folder's lock. No
process may end with a traceback, and the folder must be that of one uninterrupted run. Each pair is
a function of (seed, command, number), as far as the scheduling of processes allows.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path

from dev.drills.commands import COMMANDS, Child, Command, Ended, Stage, make_project, stages
from dev.drills.drilling import Found, drilled

REFUSED = "is being written by process"


def drill(project: Path, command: Command, *, inputs: int, seed: int) -> Found:
    """Run one command in two processes, many times.

    Args:
        project: The folder of `make_project`.
        command: Command to test.
        inputs: Number of repetitions.
        seed: Seed of the times.
    """
    result = Found()
    for number, draws, stage in stages(project, command, inputs=inputs, seed=seed):
        kind = ("together", "later", "frozen")[number % 3]
        ends = _both(stage, kind, draws)
        refused = [ended for ended in ends if ended.code]
        result.count(f"{kind}: {'one refused' if refused else 'both done'}")
        messages = [ended.said for ended in refused if not _well_refused(ended)]
        if len(refused) > 1 or messages:
            result.fault(number, kind, "\n".join(messages) or "both were refused")
        elif differing := stage.differing():
            result.fault(number, kind, differing)
    return result


def _both(stage: Stage, kind: str, draws: random.Random) -> list[Ended]:
    arguments, folder = stage.command.of(stage.folder), stage.folder
    first = Child(arguments, folder)
    if kind != "together":
        time.sleep(draws.uniform(0, stage.whole.seconds))
    if kind != "frozen":
        second = Child(arguments, folder)
        return [first.wait(), second.wait()]
    os.kill(first.pid, signal.SIGSTOP)
    second = Child(arguments, folder)
    ended = second.wait()
    os.kill(first.pid, signal.SIGCONT)
    return [first.wait(), ended]


def _well_refused(ended: Ended) -> bool:
    return ended.code > 0 and REFUSED in ended.said and "Traceback" not in ended.said


def main() -> int:
    """Run the drill on all commands, or the given ones, and print the results."""
    return drilled(__doc__, COMMANDS, make_project, drill, inputs=12)


if __name__ == "__main__":
    sys.exit(main())
