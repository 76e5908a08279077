"""Refuse writes to every command, as a full or broken disk does: ``python -m dev.drills.disk``.

An operation on a file ends in ENOSPC, EIO, EROFS or EDQUOT, once or from there on, or no file may
be larger than some size (which the system enforces, on libraries that write by themselves too). The
command must end in one message without a traceback, or well; given again with the disk in order, it
must end as an undisturbed run. Each fault follows from (seed, command, number).
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
"""Characters of the message, progress not counted."""


def drill(project: Path, command: Command, *, inputs: int, seed: int) -> Found:
    """Refuse writes to one command many times.

    Args:
        project: The folder of `make_project`.
        command: The command.
        inputs: How many times.
        seed: Seed of the faults.
    """
    found = Found()
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
        found.count("refused" if ended.code else "ended well")
        if said := _wrong(stage, fault, ended) or stage.given_again():
            found.fault(number, fault, said)
    return found


def _wrong(stage: Stage, fault: Fault, ended: Ended) -> str:
    """Say what is wrong about how a refused command ended; empty if nothing."""
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
            return f"run.json says that it runs:\n{ended.said}"
    return ""


def main() -> int:
    """Drill all commands, or those named, and print what came out."""
    return drilled(__doc__, COMMANDS, make_project, drill, inputs=40)


if __name__ == "__main__":
    sys.exit(main())
