"""What the drills share: counts and faults of a drill, and the command that prints them."""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console


@dataclass
class Found:
    """What came out of a drill.

    Args:
        counts: How often inputs ended in which way.
        faults: What was wrong, with the input's number.
    """

    counts: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)

    def count(self, ending: str) -> None:
        """Count how an input ended."""
        self.counts[ending] += 1

    def fault(self, number: int, what: object, said: str) -> None:
        """Keep what was wrong.

        Args:
            number: The input's number.
            what: What was done.
            said: What came of it.
        """
        self.faults.append(f"number {number}, {what}:\n{said}")


def drilled(
    what: str | None,
    targets: Sequence[Any],
    prepare: Callable[[Path], Path],
    drill: Callable[..., Found],
    *,
    inputs: int,
) -> int:
    """Drill all targets, or those named, and print what came out.

    Args:
        what: Description of the command.
        targets: What is drilled; each has a ``name``.
        prepare: Makes in a new folder what all drills need, and returns the folder.
        drill: Drills one: folder, target, ``inputs`` and ``seed``.
        inputs: Inputs of each target, if nobody says.

    Returns:
        The exit code: 1 where there was a fault.
    """
    parser = argparse.ArgumentParser(description=what)
    parser.add_argument("--inputs", type=int, default=inputs, help="inputs of each target")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--targets", help="names with commas between")
    arguments = parser.parse_args()
    named = arguments.targets.split(",") if arguments.targets else None
    chosen = [target for target in targets if named is None or target.name in named]
    console, faults = Console(highlight=False, soft_wrap=True), 0
    with tempfile.TemporaryDirectory() as made:
        folder = prepare(Path(made) / "made")
        for target in chosen:
            found = drill(folder, target, inputs=arguments.inputs, seed=arguments.seed)
            for fault in found.faults:
                console.print(f"{target.name}, {fault}", markup=False)
            endings = ", ".join(f"{count} {ending}" for ending, count in found.counts.items())
            said = f"{arguments.inputs} inputs, {endings}; {len(found.faults)} faults"
            console.print(f"{target.name}: {said}", markup=False)
            faults += len(found.faults)
    return 1 if faults else 0
