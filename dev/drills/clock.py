"""Change the clock while commands run: ``python -m dev.drills.clock``.

At random operations on files the clock jumps ahead or back by minutes to ten years: the result of
``time.time``, and the age of every file, including locks. Some commands are killed in between and
repeated. Each must succeed with the files of an uninterrupted run, and no metadata file may have a
negative duration. Each jump is a function of (seed, command, number).
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from dev.drills.commands import CHANGES, COMMANDS, TIMES, Command, Fault, make_project, run, stages
from dev.drills.drilling import Found, drilled

SHARE = 0.2
"""Fraction of the operations before which the clock is changed."""


def drill(project: Path, command: Command, *, inputs: int, seed: int) -> Found:
    """Change the clock during one command, many times.

    Args:
        project: The folder of `make_project`.
        command: Command to test.
        inputs: Number of repetitions.
        seed: Seed of the jumps.
    """
    result = Found()
    for number, draws, stage in stages(project, command, inputs=inputs, seed=seed):
        main = jumping(stage.folder, draws)
        fault = Fault(at=draws.randint(1, stage.whole.operations), kill=True)
        is_killed = number % 2 == 1
        ended = run(command.of(stage.folder), stage.folder, fault if is_killed else None, main=main)
        result.count("killed" if ended.code < 0 else "ended")
        if ended.code and not is_killed:
            result.fault(number, "the clock is set", ended.said)
        elif message := (stage.given_again() if is_killed else stage.differing()):
            result.fault(number, "the clock is set", message)
        elif negative := [*negative_times(stage.folder)]:
            result.fault(number, "the clock is set", "\n".join(negative))
    return result


def jumping(root: Path, draws: random.Random) -> Callable[[list[str]], None]:
    """Return a function that runs a command while the clock jumps.

    Args:
        root: Folder whose files change their age with the clock.
        draws: Random generator for the times and sizes of the jumps.
    """
    clocks = {name: getattr(time, name) for name in ("time", "time_ns")}
    ahead = 0.0

    def jump(event: str, _: tuple[Any, ...]) -> None:
        nonlocal ahead
        if event not in CHANGES or draws.random() > SHARE:
            return
        by = draws.choice((-1, 1)) * 10 ** draws.uniform(2, 8.5)
        ahead += by
        for file in root.rglob("*"):
            # A file that was removed in between has no age.
            with suppress(OSError):
                changed = file.stat().st_mtime - by
                os.utime(file, (changed, changed))

    def main(arguments: list[str]) -> None:
        from temper.cli import main as command

        time.time = lambda: clocks["time"]() + ahead
        time.time_ns = lambda: clocks["time_ns"]() + int(ahead * 1e9)
        sys.addaudithook(jump)
        command(arguments)

    return main


def negative_times(folder: Path) -> Iterator[str]:
    """Yield each negative time in a metadata file."""
    for file in folder.rglob("*.json*"):
        text = file.read_text(encoding="utf-8")
        for part in text.splitlines() if file.suffix == ".jsonl" else [text]:
            for number in _times(json.loads(part), is_time=False):
                if number < 0:
                    yield f"{file.relative_to(folder)} has the time {number}"


def _times(node: Any, *, is_time: bool) -> Iterator[float]:
    if isinstance(node, dict):
        for key, value in node.items():
            yield from _times(value, is_time=is_time or key in TIMES)
    elif isinstance(node, list):
        for value in node:
            yield from _times(value, is_time=is_time)
    elif is_time and isinstance(node, int | float):
        yield node


def main() -> int:
    """Run the drill on all commands, or the given ones, and print the results."""
    return drilled(__doc__, COMMANDS, make_project, drill, inputs=12)


if __name__ == "__main__":
    sys.exit(main())
