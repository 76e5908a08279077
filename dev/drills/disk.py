"""Refuse writes like a full or broken disk: ``python -m dev.drills.disk``.

An operation on a file raises ENOSPC, EIO, EROFS or EDQUOT, once or from then on, or the system
limits the size of files, also for writes inside libraries. The command must succeed, or end with
one message and no traceback. Repeated without the fault, it must end like an uninterrupted run.
Each fault is a function of (seed, command, number).
"""

from __future__ import annotations

import errno
import json
import sys
from pathlib import Path

from dev.drills.commands import COMMANDS, Command, Ended, Fault, Stage, make_project, stages
from dev.drills.drilling import Found, drilled

ERRORS = (errno.ENOSPC, errno.EIO, errno.EROFS, errno.EDQUOT)
LONGEST = 1500
"""Maximum number of characters of the message, without progress."""


def drill(project: Path, command: Command, *, inputs: int, seed: int) -> Found:
    """Refuse writes to one command many times.

    Args:
        project: The folder of `make_project`.
        command: Command to test.
        inputs: Number of repetitions.
        seed: Seed of the faults.
    """
    result = Found()
    for number, draws, stage in stages(project, command, inputs=inputs, seed=seed):
        if number % 4 == 3:
            fault = Fault(largest=int(10 ** draws.uniform(1, 5)))
        else:
            fault = Fault(
                at=draws.randint(1, stage.whole.operations),
                error=draws.choice(ERRORS),
                lasting=draws.random() < 0.5,
            )
        ended = stage.run(fault)
        result.count("refused" if ended.code else "ended well")
        if message := _wrong(stage, fault, ended) or stage.given_again():
            result.fault(number, fault, message)
    return result


def _wrong(stage: Stage, fault: Fault, ended: Ended) -> str:
    """Return what is wrong with the end of a refused command; empty if nothing."""
    if ended.code not in (0, 1, 2) or "Traceback" in ended.said:
        return f"ended with {ended.code}:\n{ended.said}"
    if not ended.code:
        return ""
    message = ended.said.rpartition("Error:")[2]
    if "Error:" not in ended.said or len(message) > LONGEST:
        return f"no message, or a long one:\n{ended.said}"
    record = stage.folder / "out" / "run.json"
    once = not fault.lasting and fault.largest is None
    if once and record.is_file():
        status = json.loads(record.read_text(encoding="utf-8"))["status"]
        if status == "running":
            return f"run.json has the status running:\n{ended.said}"
    return ""


def main() -> int:
    """Run the drill on all commands, or the given ones, and print the results."""
    return drilled(__doc__, COMMANDS, make_project, drill, inputs=40)


if __name__ == "__main__":
    sys.exit(main())
